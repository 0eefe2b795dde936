package rules

import "strings"

// different are the functions whose results differ from run to run.
var different = func() map[name]bool {
	all := map[name]bool{}
	for pkg, fns := range map[string][]string{
		"time":                         {"Now", "Since", "Until"},
		"os":                           {"Getpid", "Hostname"},
		"crypto/rand":                  {"Text", "Int", "Prime"},
		"github.com/google/uuid":       {"New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"},
		"github.com/gofrs/uuid":        {"NewV1", "NewV4", "NewV6", "NewV7"},
		"github.com/oklog/ulid":        {"Make", "Now"},
		"github.com/rs/xid":            {"New"},
		"github.com/segmentio/ksuid":   {"New", "NewRandom"},
		"github.com/hashicorp/go-uuid": {"GenerateUUID", "GenerateRandomBytes"},
	} {
		for _, fn := range fns {
			all[name{pkg, "", fn}] = true
		}
	}
	return all
}()

// differs reports whether a function's result differs from run to run. All functions of math/rand
// do, but not those that take a seed, and not the methods of what these return.
func differs(n name) bool {
	if n.pkg == "math/rand" && n.recv == "" {
		return !strings.HasPrefix(n.fn, "New")
	}
	return different[n]
}

// fillsRandom are the functions that fill an argument with random bytes.
var fillsRandom = map[name]bool{{"crypto/rand", "", "Read"}: true, {"math/rand", "", "Read"}: true}

// pure are packages whose functions and methods make their results of their arguments alone, unless
// differs.
var pure = map[string]bool{
	"bytes":                      true,
	"cmp":                        true,
	"crypto/hmac":                true,
	"crypto/md5":                 true,
	"crypto/sha1":                true,
	"crypto/sha256":              true,
	"crypto/sha512":              true,
	"encoding/base32":            true,
	"encoding/base64":            true,
	"encoding/binary":            true,
	"encoding/hex":               true,
	"encoding/json":              true,
	"encoding/xml":               true,
	"fmt":                        true,
	"maps":                       true,
	"math":                       true,
	"math/big":                   true,
	"math/rand":                  true,
	"net/url":                    true,
	"path":                       true,
	"slices":                     true,
	"strconv":                    true,
	"strings":                    true,
	"time":                       true,
	"github.com/google/uuid":     true,
	"github.com/gofrs/uuid":      true,
	"github.com/oklog/ulid":      true,
	"github.com/rs/xid":          true,
	"github.com/segmentio/ksuid": true,
}

// passesOn reports whether a function's result is made of its arguments alone.
func passesOn(n name) bool {
	return pure[n.pkg] || n.pkg == "net/http" && n.recv == "Header" || n == name{module + "dedupe", "", "FingerprintOf"}
}

// fills returns which argument of a call the others are written into, or -1.
func fills(n name) int {
	switch n.pkg {
	case "fmt":
		if strings.HasPrefix(n.fn, "Fprint") {
			return 0
		}
	case "strings", "bytes":
		if (n.recv == "Builder" || n.recv == "Buffer") && strings.HasPrefix(n.fn, "Write") {
			return 0
		}
	case "net/http", "net/url":
		multimap := n.recv == "Header" || n.recv == "Values"
		if multimap && (n.fn == "Set" || n.fn == "Add") {
			return 0
		}
	case "encoding/binary":
		if strings.HasPrefix(n.fn, "Put") && n.recv != "" {
			return 1 // the first is the receiver
		}
	case "io":
		if n.fn == "ReadFull" || n.fn == "ReadAtLeast" {
			return 1
		}
	}
	return -1
}
