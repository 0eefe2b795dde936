package idempotency

import (
	"bytes"
	"io"
	"mime/multipart"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// form is a multipart request: the boundary, and the body as a client sends it.
func form(boundary, body string) *fingerprintSubject {
	s := wholeSubject()
	s.MediaType = "multipart/form-data; boundary=" + boundary
	s.Coding = ""
	s.Body = []byte(body)
	return s
}

// H7: a form that is built anew has another boundary, and the same parts. All else counts.
func TestH7MultipartBoundary(t *testing.T) {
	t.Parallel()
	f := testPrinter(t, 1, 1)
	const head = "Content-Disposition: form-data; name=\"a\"\r\n\r\n"
	whole := func(b string, parts ...string) string {
		return "--" + b + "\r\n" + strings.Join(parts, "\r\n--"+b+"\r\n") + "\r\n--" + b + "--\r\n"
	}
	many := make([]string, maxParts+1)
	base := form("xx", whole("xx", head+"1", head+"2"))
	coded := form("yy", whole("yy", head+"1", head+"2"))
	coded.Coding = "gzip"
	codedToo := form("xx", whole("xx", head+"1", head+"2"))
	codedToo.Coding = "gzip"
	for name, c := range map[string]struct {
		a, b *fingerprintSubject
		same bool
	}{
		"another boundary":     {base, form("yy", whole("yy", head+"1", head+"2")), true},
		"a quoted one":         {base, form(`"y y"`, whole("y y", head+"1", head+"2")), true},
		"no parts":             {form("xx", "--xx--"), form("yy", "--yy--"), true},
		"most parts":           {form("xx", whole("xx", many[:maxParts]...)), form("yy", whole("yy", many[:maxParts]...)), true},
		"another content":      {base, form("yy", whole("yy", head+"1", head+"3")), false},
		"another header":       {base, form("yy", whole("yy", head+"1", "X-A: 1\r\n"+head+"2")), false},
		"another order":        {base, form("yy", whole("yy", head+"2", head+"1")), false},
		"a part more":          {base, form("yy", whole("yy", head+"1", head+"2", head+"2")), false},
		"a part into the next": {form("xx", whole("xx", "a", "bc")), form("yy", whole("yy", "ab", "c")), false},
		"another end":          {base, form("yy", strings.TrimSuffix(whole("yy", head+"1", head+"2"), "\r\n")), false},
		"another coding":       {base, coded, false},
		"coded":                {codedToo, coded, false},
		"another boundary of a part": {
			base,
			form("yy", strings.Replace(whole("yy", head+"1", head+"2"), "\r\n--yy\r\n", "\r\n--yy \r\n", 1)),
			false,
		},
		"text in front": {form("xx", "x\r\n"+whole("xx", head)), form("yy", "x\r\n"+whole("yy", head)), false},
		"text behind":   {form("xx", whole("xx", head)+"x"), form("yy", whole("yy", head)+"x"), false},
		"cut off":       {form("xx", "--xx\r\n"+head), form("yy", "--yy\r\n"+head), false},
		"lines without CR": {
			form("xx", strings.ReplaceAll(whole("xx", head), "\r", "")),
			form("yy", strings.ReplaceAll(whole("yy", head), "\r", "")),
			false,
		},
		"a boundary within a part": {form("xx", whole("xx", head+"a--xxb")), form("yy", whole("yy", head+"a--yyb")), false},
		"one at a line's end":      {form("xx", whole("xx", head+"a--xx\r\nb")), form("yy", whole("yy", head+"a--yy\r\nb")), false},
		"too many parts":           {form("xx", whole("xx", many...)), form("yy", whole("yy", many...)), false},
		"no boundary":              {form("xx", "1"), form("", "1"), false},
		"parts of another type": {base, func() *fingerprintSubject {
			s := form("yy", whole("yy", head+"1", head+"2"))
			s.MediaType = "multipart/mixed; boundary=yy"
			return s
		}(), false},
		"two boundaries": {form("xx; boundary*=xx", whole("xx", head)), form("yy; boundary*=yy", whole("yy", head)), false},
		"the same bytes": {form("xx", "x"+whole("xx", head)), form("xx", "x"+whole("xx", head)), true},
	} {
		if got := sameFingerprint(t, f, c.a, c.b); got != c.same {
			t.Errorf("%s: the same is %v", name, got)
		}
	}
}

// H7: if two bodies count as the same, a reader finds the same parts in both.
func TestH7MultipartAsReadersSeeIt(t *testing.T) {
	t.Parallel()
	f := testPrinter(t, 1, 1)
	piece := rapid.SampledFrom([]string{
		"--xx", "--yy", "--", "\r\n", "\r\n--xx\r\n", "\r\n--yy\r\n", "\n--xx\n", "A: b\r\n\r\n",
		"|", "x", "y", " ", "",
	})
	read := func(s *fingerprintSubject, boundary string) (all string) {
		in := multipart.NewReader(bytes.NewReader(s.Body), boundary)
		for {
			part, err := in.NextRawPart()
			if err != nil {
				return all
			}
			content, err := io.ReadAll(part)
			if err != nil {
				return all + "broken"
			}
			all += part.Header.Get("A") + ":" + string(content) + ";"
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		body := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "body"), "")
		framed := func(b string) *fingerprintSubject {
			return form(b, "--"+b+"\r\n"+strings.ReplaceAll(body, "|", "\r\n--"+b+"\r\n")+"\r\n--"+b+"--")
		}
		other := rapid.SampledFrom([]string{"yy", "x", "zz", "xxx"}).Draw(t, "other")
		a := framed("xx")
		b := framed(other)
		one, err := f.sum(a)
		if err != nil {
			t.Fatal(err)
		}
		two, err := f.sum(b)
		if err != nil {
			t.Fatal(err)
		}
		first, second := read(a, "xx"), read(b, other)
		if bytes.Equal(one, two) && first != second {
			t.Fatalf("%q and %q: %s, %s", a.Body, b.Body, first, second)
		}
	})
}
