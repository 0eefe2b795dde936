package console

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/test/consoledata"
)

// element is an element that the helpers make, with attributes whose values are escaped.
var element = regexp.MustCompile(`</?(td|span|a|code|time)( (class|data-f|data-v|data-l|role|href|title|datetime)="[^"<>]*")*>`)

// A text comes out of each helper of the pages as text: it adds no element and no attribute, and a
// payload is never longer than what a page shows of it (U2).
func FuzzU2Texts(f *testing.F) {
	for _, text := range consoledata.Hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		type strange struct {
			Error string   `json:"error"`
			Key   *string  `json:"key"`
			Sink  string   `json:"sink"`
			State string   `json:"state"`
			Names []string `json:"names"`
			Body  payload  `json:"body"`
		}
		v := &visit{console: &console{}}
		cells := viewOf(
			col(func(s *strange) any { return &s.Error }).as(anError),
			col(func(s *strange) any { return &s.Key }).as(aCode).leads(func(v *visit, s *strange) string { return v.toKey(s.Key) }),
			col(func(s *strange) any { return &s.Sink }).opens(func(v *visit, s *strange) string { return v.toSink(&s.Sink) }),
			col(func(s *strange) any { return &s.State }).as(aState),
			col(func(s *strange) any { return &s.Names }),
			col(func(s *strange) any { return &s.Body }),
		).table(v, "strange", []strange{{text, &text, text, text, []string{text, text}, shownPayload([]byte(text))}}).Rows[0].Cells
		for _, cell := range append(cells, tag(text), linkTo("/", text)) {
			out := element.ReplaceAllString(string(cell), "")
			if strings.ContainsAny(out, `<>"`) {
				t.Errorf("%q becomes %q", text, cell)
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
		if size := int32(len(text)); *bodyPart("", &size, []byte(text), false).Payload != (payload{Hidden: true, Bytes: int64(size)}) {
			t.Errorf("%q is not hidden", text)
		}
	})
}
