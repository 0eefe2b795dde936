// Package suite checks any HTTP server for what it promises about Idempotency-Key. It knows the
// server by its [Config] alone: how to make one request, how to count effects, and what the server
// declares. A check that needs what the configuration does not have is skipped, and says what.
package suite

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Config says how the server is reached and what it promises.
type Config struct {
	// URL is the server's address, for example http://127.0.0.1:8080. Required.
	URL string `json:"url"`
	// Method of the request. Defaults to POST.
	Method string `json:"method"`
	// Path of the request, for example /orders. Required.
	Path string `json:"path"`
	// OtherPath takes the same requests, for checks that a key counts within a path.
	OtherPath string `json:"other_path"`
	// Headers are sent with each request, for example Authorization.
	Headers map[string]string `json:"headers"`
	// OtherHeaders are sent in their place for a second client.
	OtherHeaders map[string]string `json:"other_headers"`
	// KeyHeader carries the key. Defaults to Idempotency-Key.
	KeyHeader string `json:"key_header"`
	// Members are those of the request's JSON object: their names, and their values as JSON text.
	// {{unique}} in a value is replaced, so that each operation is another one. Required.
	Members map[string]string `json:"members"`
	// Number is the member that is a whole number, for checks of equal numbers.
	Number string `json:"number"`
	// Free is a member that takes any JSON value, for checks of arrays, null and strings.
	Free string `json:"free"`
	// Slow are members that replace others, and let a request take about a second.
	Slow map[string]string `json:"slow"`
	// Refused are members that replace others, and let a request be refused with a 4xx.
	Refused map[string]string `json:"refused"`
	// Broken are members that replace others, and let the first request under a key fail with a 5xx
	// and the next one succeed.
	Broken map[string]string `json:"broken"`
	// CountURL and CountCommand print how many effects there are. One of them is enough.
	CountURL     string   `json:"count_url"`
	CountCommand []string `json:"count_command"`
	// RestartCommand kills the server, and returns when it serves again.
	RestartCommand []string `json:"restart_command"`
	// Window is how many seconds answers are kept, if it is short enough to wait for: up to 60.
	Window int `json:"window"`
	// ExpireCommand lets all answers expire, and takes the place of waiting for the window. It is
	// for a server that keeps answers for hours: for example, it ages what the server has stored.
	ExpireCommand []string `json:"expire_command"`
	// Declares is what the server promises beyond the least.
	Declares Declares `json:"declares"`
}

// Declares is what a server promises. What it does not is not checked.
type Declares struct {
	// Profile is acp, ucp or ietf. Defaults to none.
	Profile string `json:"profile"`
	// KeyRequired: requests without a key are refused.
	KeyRequired bool `json:"key_required"`
	// KeyLimit: keys above 255 characters are refused.
	KeyLimit bool `json:"key_limit"`
	// OneKey: a bare key and the same key as a quoted string are one.
	OneKey bool `json:"one_key"`
	// EqualJSON: bodies are compared by what their JSON says.
	EqualJSON bool `json:"equal_json"`
	// EqualBytes: bodies are compared byte by byte.
	EqualBytes bool `json:"equal_bytes"`
	// Conflict: another body under a key is refused.
	Conflict bool `json:"conflict"`
	// Replayed: the header Idempotent-Replayed marks a repeated answer.
	Replayed bool `json:"replayed"`
	// RetryAfter: a 409 for a running request has Retry-After.
	RetryAfter bool `json:"retry_after"`
	// Keeps4xx is yes or no: whether a refusal is repeated. Defaults to unknown.
	Keeps4xx string `json:"keeps_4xx"`
}

// ReadConfig reads a configuration. address is the server's URL in place of the text's, unless it
// is empty. The error lists every fault.
func ReadConfig(text []byte, address string) (Config, error) {
	var c Config
	in := json.NewDecoder(strings.NewReader(string(text)))
	in.DisallowUnknownFields()
	if err := in.Decode(&c); err != nil {
		return c, fmt.Errorf("the configuration cannot be read: %w", err)
	}
	c.URL = cmp.Or(address, c.URL)
	return c.withDefaults()
}

func (c Config) withDefaults() (Config, error) {
	var faults []error
	add := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if u, err := url.Parse(c.URL); err != nil || u.Scheme != "http" || u.Host == "" {
		add("url: is %q: must be an http URL, for example http://127.0.0.1:8080", c.URL)
	}
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.KeyHeader == "" {
		c.KeyHeader = "Idempotency-Key"
	}
	if !strings.HasPrefix(c.Path, "/") {
		add("path: is %q: must begin with /", c.Path)
	}
	if len(c.Members) == 0 {
		add("members: must not be empty: they make the request's body")
	}
	for name, values := range map[string]map[string]string{
		"members": c.Members,
		"slow":    c.Slow,
		"refused": c.Refused,
		"broken":  c.Broken,
	} {
		for member, value := range values {
			if !json.Valid([]byte(strings.ReplaceAll(value, unique, "1"))) {
				add("%s.%s: is %q: must be JSON text", name, member, value)
			}
		}
	}
	for name, member := range map[string]string{"number": c.Number, "free": c.Free} {
		if _, has := c.Members[member]; member != "" && !has {
			add("%s: %q is not among the members", name, member)
		}
	}
	if !slices.Contains([]string{"", "acp", "ucp", "ietf"}, c.Declares.Profile) {
		add("declares.profile: is %q: must be acp, ucp or ietf", c.Declares.Profile)
	}
	if !slices.Contains([]string{"", "yes", "no"}, c.Declares.Keeps4xx) {
		add("declares.keeps_4xx: is %q: must be yes or no", c.Declares.Keeps4xx)
	}
	if c.Window < 0 || c.Window > 60 {
		add("window: is %d: must be from 0 to 60 seconds", c.Window)
	}
	c.declareProfile()
	return c, errors.Join(faults...)
}

// declareProfile adds what a profile promises.
func (c *Config) declareProfile() {
	d := &c.Declares
	switch d.Profile {
	case "acp":
		d.KeyRequired = true
		d.KeyLimit = true
		d.EqualJSON = true
		d.Conflict = true
	case "ucp":
		d.EqualBytes = true
		d.Conflict = true
	case "ietf":
		d.Conflict = true
	}
}

// unique stands for a text that differs for each operation.
const unique = "{{unique}}"
