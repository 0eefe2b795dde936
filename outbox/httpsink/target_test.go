package httpsink

import (
	"path"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// Whatever target is accepted, the request goes to the base URL's host and stays below its path
// (O11).
func FuzzTarget(f *testing.F) {
	for _, t := range []string{
		"", "/", "/a", "?q=1", "/a?q=//x", "//h", "/%2e%2e/", "/a;b=c", "/@h", "/:80", "/a%2Fb",
		"?a=b#c", "/..", "/%5c..",
	} {
		f.Add(t)
	}
	s, err := New(Config{Name: "x", BaseURL: "https://api.example.com:8443/v1/x", KeyWindow: outbox.Forever})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, target string) {
		if frozen.Target(target) != nil {
			return
		}
		u, err := s.targetURL(target)
		if err != nil {
			return
		}
		good := u.Scheme == "https" &&
			u.Host == "api.example.com:8443" &&
			u.User == nil &&
			u.Fragment == ""
		if !good {
			t.Errorf("%q became %s", target, u)
		}
		if clean := path.Clean(strings.ReplaceAll(u.Path, `\`, "/")); clean != "/v1/x" && !strings.HasPrefix(clean, "/v1/x/") {
			t.Errorf("%q became %s, which resolves to %s", target, u, clean)
		}
	})
}

// Where a target leads, and that none leads to another scheme, host or path.
func TestO11WhereATargetLeads(t *testing.T) {
	t.Parallel()
	for base, targets := range map[string]map[string]string{
		"https://h:8443/v1": {
			"":       "https://h:8443/v1",
			"/":      "https://h:8443/v1/",
			"/a?b=c": "https://h:8443/v1/a?b=c",
			"?b":     "https://h:8443/v1?b",
		},
		"https://h:8443/v1/": {"/a": "https://h:8443/v1/a", "?b": "https://h:8443/v1/?b"},
		"https://h": {
			"/a":      "https://h/a",
			".evil/a": "target: leaves the base URL",
			":1/a":    "target: leaves the base URL",
			"@evil/a": "target: leaves the base URL",
			"%zz":     "target: is not a path",
		},
	} {
		s, err := New(Config{Name: "x", BaseURL: base, KeyWindow: outbox.Forever})
		if err != nil {
			t.Fatal(err)
		}
		for target, want := range targets {
			got := ""
			if u, err := s.targetURL(target); err != nil {
				got = err.Error()
			} else {
				got = u.String()
			}
			if got != want {
				t.Errorf("%s, %q: %s, want %s", base, target, got, want)
			}
		}
	}
}
