package ui

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/test/consoledata"
)

// A text comes out of each helper of the pages as text: it adds no element and no attribute, and a
// payload is never longer than what a page shows of it.
func FuzzU2Texts(f *testing.F) {
	for _, text := range consoledata.Hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, out := range []string{string(cell("error", text)), string(cell(text, &text)), string(tag(text)), string(number(text)), string(ago(text))} {
			out = strings.NewReplacer("<td", "", "</td>", "", "<span", "", "</span>", "").Replace(out)
			inside := strings.TrimSuffix(strings.Join(strings.Split(out, `>`)[1:], ""), ">")
			if strings.ContainsAny(inside, "<") || strings.Contains(out, "<script") || strings.Contains(out, "<img") {
				t.Errorf("%q becomes %q", text, out)
			}
			if quotes := strings.Count(out, `"`); quotes%2 != 0 || quotes > 6 {
				t.Errorf("%q becomes %q, with %d quotes", text, out, quotes)
			}
		}
		p := shownPayload([]byte(text))
		if !utf8.ValidString(p.Text) || p.Bytes != int64(len(text)) {
			t.Errorf("%q is shown as %+v", text, p)
		}
		big := bytes.Repeat([]byte(text+"é"), 1+2*bodyShown/(len(text)+2))
		if p := shownPayload(big); !p.Cut || len(p.Text) > 6*bodyShown || !utf8.ValidString(p.Text) {
			t.Errorf("a payload of %d bytes: %d bytes are shown, cut %v", len(big), len(p.Text), p.Cut)
		}
		if size := int32(len(text)); *bodyOf(&size, []byte(text), false) != (payload{Hidden: true, Bytes: int64(size)}) {
			t.Errorf("%q is hidden as %+v", text, bodyOf(&size, []byte(text), false))
		}
	})
}
