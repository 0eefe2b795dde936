package frozen_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/frozen"
)

// What may be a target, and what it names for a sink without addresses.
func TestDestination(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"":           "",
		"/":          "",
		"/orders":    "orders",
		"/a/b":       "a/b",
		"/a%20b":     "a b",
		"/a%2Fb":     "a/b",
		"?q":         `error: "?q" must be a slash and a name`,
		"orders":     `error: "orders" must be empty or start with / or ?: it is a path below the sink's base URL`,
		"//h":        `error: "//h" must not start with //: that names a host`,
		"/..":        `error: "/.." must not hold . or .. as a segment`,
		"/%2e%2e/a":  `error: "/%2e%2e/a" must not hold . or .. as a segment`,
		"/%252e%2e":  `error: "/%252e%2e" must not hold . or .. as a segment`,
		"/..;a=b/c":  `error: "/..;a=b/c" must not hold . or .. as a segment`,
		"/a b":       `error: "/a b" holds ' ': percent-encode`,
		"/a#b":       `error: "/a#b" holds '#': percent-encode`,
		`/a\b`:       `error: "/a\\b" holds '\\': percent-encode`,
		"/a\x7f":     `error: "/a\x7f" holds '\x7f': percent-encode`,
		"/%zz":       `error: "/%zz": invalid URL escape "%zz"`,
		"/a?q=%zz":   `error: "/a?q=%zz": invalid URL escape "%zz"`,
		"/...":       "...",
		"/.a":        ".a",
		"/a/..b/c..": "a/..b/c..",
	} {
		got, err := frozen.Destination(target)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want && !(strings.HasPrefix(want, "error: ") && strings.HasPrefix(got, want)) {
			t.Errorf("%q: %q, want %q", target, got, want)
		}
	}
	long := "/" + strings.Repeat("a", frozen.MaxTarget-1)
	if err := frozen.Target(long); err != nil {
		t.Errorf("of the greatest length: %v", err)
	}
	if err := frozen.Target(long + "a"); err == nil || err.Error() != "2049 bytes are more than 2048" {
		t.Errorf("one byte longer: %v", err)
	}
}

func TestMethod(t *testing.T) {
	t.Parallel()
	for _, m := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		if err := frozen.Method(m); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
	for _, m := range []string{"", "GET", "post", "POST "} {
		if err := frozen.Method(m); err == nil || !strings.Contains(err.Error(), "is none of POST, PUT, PATCH, DELETE") {
			t.Errorf("%q: %v", m, err)
		}
	}
}
