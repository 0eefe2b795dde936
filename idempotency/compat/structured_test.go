package compat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// H4 against another implementation of RFC 9651 (the one of Mercure), which runs the working
// group's vectors in its own tests. All bytes in all positions of a short string are among the
// cases, as they are in those vectors.
func TestH4StringsAgainstAnotherImplementation(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		for _, format := range []string{
			`"%s"`, `"\%s"`, `"a%sb"`, `%s"a"`, `"a"%s`, `"a";%s`, `"a";b%s`, `"a";b=%s`,
			`"a";b=%s1`, `"a";b="%s"`, `"a";b=:%s:`, `"a";b=a%s`, `"a";b=1%s`, `"a";b=1.0%s`,
			`"a";b=@1%s`, `"a";b=%%"%s"`, `"a";b=%%"%%%s0"`,
		} {
			agreeOnItem(t, fmt.Sprintf(format, string([]byte{byte(c)})))
		}
	}
	for _, s := range []string{
		`"foo bar"`, `""`, `"foo`, `foo"`, `"`, `'foo'`, `"foo \"bar\" \\ baz"`, `"foo \,"`,
		`"foo \`, `"foo \"`, `   "foo"   `, `"füü"`, "\" \t \"", "\" \n \"", `"a" "b"`,
		`"a", "b"`, `"a";b;c=?0;d=?1`, `"a"; b=1`, `"a" ;b=1`, `"a";b =1`, `"a";b= 1`, `"a";;`,
		`"a";b=1;b=2`, `"a";b=-0`, `"a";b=123456789012345`, `"a";b=1234567890123456`,
		`"a";b=123456789012.123`, `"a";b=1234567890123.1`, `"a";b=1.1234`, `"a";b=:aGVsbG8=:`,
		`"a";b=::`, `"a";b=@1659578233`, `"a";b=@-1`, `"a";b=@1.0`, `"a";b=%"f%c3%bc"`,
		`"a";b=%"f%C3%BC"`, `"a";b=(1 2)`, "", " ",
	} {
		agreeOnItem(t, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		agreeOnItem(t, rapid.StringMatching(`[ "]"[ -~]{0,8}[\\"]{0,3}"( ?;? ?[a-z*]{1,2}=?([?:@%]?[0-9a-f."]{0,6}:?))?`).Draw(t, "field"))
	})
}

// agreeOnItem compares what a field line is in the strict syntax.
func agreeOnItem(t interface{ Errorf(string, ...any) }, line string) {
	item, err := httpsfv.UnmarshalItem([]string{line})
	want, isString := item.Value.(string)
	if err != nil {
		isString = false
		if strings.Contains(err.Error(), "illegal base64") && !strings.Contains(line, "=:") {
			return // it wants padding, which section 4.2.7 does not
		}
	}
	got, ok := protocol.StringItem(strings.TrimLeft(line, " "))
	if ok != isString || ok && got != want {
		t.Errorf("%q: %q, %v here; %q, %v there (%v)", line, got, ok, want, isString, err)
	}
}
