package idempotency

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// secretWords are in the names of values that must be compared in constant time: an attacker could
// otherwise find them byte by byte, from the duration of comparisons.
var secretWords = []string{"fingerprint", "mac", "hmac", "digest", "secret", "signature"}

// isSecret says whether one of the words is in the name of what is compared: fp.stored,
// rowFingerprint, string(mac), mac[:].
func isSecret(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		w := words(e.Name)
		if slices.Contains([]string{"len", "version", "mode", "id"}, w[len(w)-1]) {
			return false // of one
		}
		return slices.ContainsFunc(w, func(w string) bool { return slices.Contains(secretWords, w) })
	case *ast.SelectorExpr:
		return isSecret(e.Sel)
	case *ast.IndexExpr:
		return isSecret(e.X)
	case *ast.SliceExpr:
		return isSecret(e.X)
	case *ast.StarExpr:
		return isSecret(e.X)
	case *ast.ParenExpr:
		return isSecret(e.X)
	case *ast.CallExpr: // a conversion or a hash's Sum; a length is no secret
		if f, ok := e.Fun.(*ast.Ident); ok && (f.Name == "len" || f.Name == "cap") {
			return false
		}
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && isSecret(f.X) {
			return true
		}
		return isSecret(e.Fun) || slices.ContainsFunc(e.Args, isSecret)
	}
	return false
}

// words splits a name where its case changes.
func words(name string) []string {
	var out []string
	for _, part := range strings.Split(name, "_") {
		begin := 0
		runes := []rune(part)
		for i := 1; i < len(runes); i++ {
			if unicode.IsUpper(runes[i]) && !unicode.IsUpper(runes[i-1]) {
				out = append(out, strings.ToLower(string(runes[begin:i])))
				begin = i
			}
		}
		out = append(out, strings.ToLower(string(runes[begin:])))
	}
	return out
}

// unsafeComparisons returns where a file compares secrets in a time that depends on them.
// bytes.Equal and bytes.Compare are found whatever they compare: nothing else in this package is
// worth comparing as bytes.
func unsafeComparisons(files *token.FileSet, file *ast.File) (found []string, safe int) {
	constant := func(e ast.Expr) bool { // nil, a number, fingerprintJSON
		if id, ok := e.(*ast.Ident); ok {
			return id.Name == "nil" || id.Name == "fingerprintRaw" || id.Name == "fingerprintJSON"
		}
		if composite, ok := e.(*ast.ParenExpr); ok { // (seal.Key{}): whether it is all zeros, at construction
			_, ok := composite.X.(*ast.CompositeLit)
			return ok
		}
		_, ok := e.(*ast.BasicLit)
		return ok
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			compares := n.Op == token.EQL || n.Op == token.NEQ
			secret := isSecret(n.X) || isSecret(n.Y)
			fixed := constant(n.X) || constant(n.Y)
			if compares && secret && !fixed {
				found = append(found, fmt.Sprintf("%s: %s", files.Position(n.Pos()), n.Op))
			}
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			pkg, ok := f.X.(*ast.Ident)
			if !ok {
				break
			}
			switch name := pkg.Name + "." + f.Sel.Name; name {
			case "hmac.Equal", "subtle.ConstantTimeCompare":
				safe++
			case "bytes.Equal", "bytes.Compare":
				found = append(found, fmt.Sprintf("%s: %s", files.Position(n.Pos()), name))
			case "slices.Equal", "slices.Compare", "reflect.DeepEqual", "strings.Compare",
				"cmp.Compare", "strings.EqualFold", "bytes.HasPrefix":
				if slices.ContainsFunc(n.Args, isSecret) {
					found = append(found, fmt.Sprintf("%s: %s", files.Position(n.Pos()), name))
				}
			}
		}
		return true
	})
	return found, safe
}

// H7: fingerprints are compared in constant time, wherever this package compares them.
func TestH7SecretsAreComparedInConstantTime(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	total := 0
	read := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		found, safe := unsafeComparisons(files, file)
		for _, f := range found {
			t.Errorf("%s on a secret: use hmac.Equal", f)
		}
		total = total + safe
		read = read + 1
	}
	if total == 0 || read < 10 {
		t.Errorf("%d files with %d comparisons in constant time: this test has looked at nothing", read, total)
	}
}

// What the test above would find, and what it lets pass.
func TestUnsafeComparisonsAreFound(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]int{
		"bytes.Equal(a, b)":                  1,
		"bytes.Compare(a, b) == 0":           1,
		"fingerprint == other":               1,
		"string(r.Fingerprint) != string(b)": 1,
		"a == [32]byte(mac)":                 1,
		"rowFingerprint[0] == b[0]":          1,
		"mac[:6] == b":                       1,
		"slices.Equal(s.mac, b)":             1,
		"reflect.DeepEqual(a, storedDigest)": 1,
		"*row.stored_fingerprint == b":       1,
		"string(mac.Sum(nil)) == b":          1,
		"(secret) == b":                      1,
		"hmac.Equal(fingerprint, b)":         0,
		"fingerprint == nil":                 0,
		"len(fingerprint) == 38":             0,
		"mode == fingerprintJSON":            0,
		"slices.Equal(methods, other)":       0,
		"a == b":                             0,
		"machine == b":                       0,
		"len(mac) != n":                      0,
		"n == fingerprintLen":                0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "x.go", "package x\nfunc f() { _ = "+expr+" }\n", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if found, _ := unsafeComparisons(files, file); len(found) != want {
			t.Errorf("%s: %v", expr, found)
		}
	}
}
