package protocol_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// H4: both forms name one key; what is neither is none.
func TestH4Syntax(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"k"`:                                "k",
		"k":                                  "k",
		` "k" `:                              "k",
		"\tk ":                               "k",
		`"a b"`:                              "a b",
		`"a,b"`:                              "a,b",
		`"a\"b\\c"`:                          `a"b\c`,
		`a"b`:                                `a"b`,
		`a;b=c`:                              "a;b=c",
		`"k";a`:                              "k",
		`"k"; a=1;b=-1.5 ;c=?1`:              "",
		`"k"; a=1;b=-1.5;c=?1`:               "k",
		`"k";a="x;y"`:                        "k",
		`"k";a=tok/en:x`:                     "k",
		`"k";a=:aGk=:`:                       "k",
		`"k";a=@1659578233`:                  "k",
		`"k";a=%"f%c3%bc"`:                   "k",
		`"k";*a`:                             "k",
		`"k";a_-.*9=1`:                       "k",
		`"k";a=*x`:                           "k",
		`"k";a=:YQ:`:                         "k",
		`"k";`:                               "",
		`"k";A`:                              "",
		`"k";1`:                              "",
		`"k";a=`:                             "",
		`"k";a=?2`:                           "",
		`"k";a=?`:                            "",
		`"k";a=1.`:                           "",
		`"k";a=1.2345`:                       "",
		`"k";a=-`:                            "",
		`"k";a=1234567890123456`:             "",
		`"k";a=1234567890123.1`:              "",
		`"k";a=:a b:`:                        "",
		`"k";a=:aGk=`:                        "",
		`"k";a=:a=b:`:                        "",
		`"k";a=:aaa===:`:                     "",
		`"k";a=@1.5`:                         "",
		`"k";a=@`:                            "",
		`"k";a=%"`:                           "",
		`"k";a=%"%C3"`:                       "",
		`"k";a=%"%c"`:                        "",
		`"k";a=%x`:                           "",
		`"k";a="`:                            "",
		`"k";a=ü`:                            "",
		`"k" x`:                              "",
		`"k", "l"`:                           "",
		`"k"x`:                               "",
		`"`:                                  "",
		`"k`:                                 "",
		`""`:                                 "",
		``:                                   "",
		` `:                                  "",
		`"a\b"`:                              "",
		`"a\`:                                "",
		"\"a\tb\"":                           "",
		`"ü"`:                                "",
		"a b":                                "",
		"a,b":                                "",
		"ü":                                  "",
		"a\x7f":                              "",
		`"` + strings.Repeat("k", 255) + `"`: strings.Repeat("k", 255),
		`"` + strings.Repeat("k", 256) + `"`: "",
		strings.Repeat("k", 255):             strings.Repeat("k", 255),
		strings.Repeat("k", 256):             "",
	} {
		got, err := protocol.ParseKey(value)
		if (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
		if err != nil && len(value) > 2 && strings.Contains(err.Error(), value) {
			t.Errorf("%q is quoted: %v", value, err)
		}
	}
}

func FuzzKey(f *testing.F) {
	for _, s := range []string{`"k"`, "k", `"a\"b";p="x";q=:aa==:`, `a,b`, `"`, `"k";a=@1;b=%"%c3"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// What can be read can be written, and names the same key.
		if key, err := protocol.ParseKey(s); err == nil {
			written, err := protocol.FormatString(key)
			if err != nil {
				t.Fatalf("%q was read from %q and cannot be written: %v", key, s, err)
			}
			if again, err := protocol.ParseKey(written); err != nil || again != key {
				t.Fatalf("%q: %q, %v", written, again, err)
			}
		}
		// What can be written is read as it was.
		for _, write := range []func(string) (string, error){protocol.FormatString, protocol.FormatBare} {
			if written, err := write(s); err == nil {
				if again, err := protocol.ParseKey(written); err != nil || again != s {
					t.Fatalf("%q: %q, %v", written, again, err)
				}
				if strings.Trim(written, " ") != written || strings.ContainsAny(written, "\r\n\x00") {
					t.Fatalf("%q is no header", written)
				}
			}
		}
	})
}
