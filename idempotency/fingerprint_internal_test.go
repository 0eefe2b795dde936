package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/seal"
)

func testPrinter(t testing.TB, current uint32, ids ...byte) *fingerprinter {
	t.Helper()
	keys := seal.Keys{Current: current, ByID: map[uint32]seal.Key{}}
	for _, id := range ids {
		keys.ByID[uint32(id)] = seal.Key{id}
	}
	f, err := newFingerprinter(keys)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func wholeSubject() *fingerprintSubject {
	return &fingerprintSubject{
		Record:    [16]byte{1, 2, 3},
		Tenant:    "tenant",
		Scope:     "scope",
		Key:       "key",
		Method:    "POST",
		Path:      "/a%2Fb",
		Query:     "q=1&r=2",
		MediaType: "application/json",
		Coding:    "gzip",
		Headers:   [][2]string{{"X-A", "1"}, {"X-B", "2"}},
		Trailers:  [][2]string{{"X-Sum", "3"}},
		Body:      []byte(`{"amount":1}`),
	}
}

func sameFingerprint(t *testing.T, f *fingerprinter, a, b *fingerprintSubject) bool {
	t.Helper()
	made, err := f.sum(a)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 38 {
		t.Fatalf("%d bytes", len(made))
	}
	equal, err := f.matches(made, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.sum(b)
	if err != nil {
		t.Fatal(err)
	}
	if equal != bytes.Equal(made, other) {
		t.Fatal("matches and sum disagree")
	}
	return equal
}

// H7: each field counts, and so does the place where one ends and the next begins.
func TestH7EachFieldCounts(t *testing.T) {
	t.Parallel()
	f := testPrinter(t, 1, 1)
	if !sameFingerprint(t, f, wholeSubject(), wholeSubject()) {
		t.Error("the same request has two fingerprints")
	}
	for name, change := range map[string]func(*fingerprintSubject){
		"record":          func(s *fingerprintSubject) { s.Record[15] = 1 },
		"tenant":          func(s *fingerprintSubject) { s.Tenant = "other" },
		"scope":           func(s *fingerprintSubject) { s.Scope = "other" },
		"key":             func(s *fingerprintSubject) { s.Key = "other" },
		"method":          func(s *fingerprintSubject) { s.Method = "PATCH" },
		"path":            func(s *fingerprintSubject) { s.Path = "/a/b" },
		"query":           func(s *fingerprintSubject) { s.Query = "r=2&q=1" },
		"no query":        func(s *fingerprintSubject) { s.Query = "" },
		"media type":      func(s *fingerprintSubject) { s.MediaType = "application/xml" },
		"coding":          func(s *fingerprintSubject) { s.Coding = "br" },
		"no coding":       func(s *fingerprintSubject) { s.Coding = "" },
		"a coding more":   func(s *fingerprintSubject) { s.Coding = "gzip, br" },
		"trailer's value": func(s *fingerprintSubject) { s.Trailers[0][1] = "4" },
		"no trailer":      func(s *fingerprintSubject) { s.Trailers = nil },
		"trailer into header": func(s *fingerprintSubject) {
			s.Headers = append(s.Headers, s.Trailers...)
			s.Trailers = nil
		},
		"header's value":         func(s *fingerprintSubject) { s.Headers[0][1] = "2" },
		"header's name":          func(s *fingerprintSubject) { s.Headers[0][0] = "X-C" },
		"a header less":          func(s *fingerprintSubject) { s.Headers = s.Headers[:1] },
		"a header's second line": func(s *fingerprintSubject) { s.Headers = append(s.Headers, [2]string{"X-B", "3"}) },
		"body":                   func(s *fingerprintSubject) { s.Body[0] = ' ' },
		"no body":                func(s *fingerprintSubject) { s.Body = nil },
		"white space":            func(s *fingerprintSubject) { s.Body = []byte(`{"amount": 1}`) },
		"mode":                   func(s *fingerprintSubject) { s.Mode = fingerprintJSON },
		"tenant into scope": func(s *fingerprintSubject) {
			s.Tenant = "tenants"
			s.Scope = "cope"
		},
		"path into query": func(s *fingerprintSubject) {
			s.Path = "/a%2Fbq"
			s.Query = "=1&r=2"
		},
		"query into path": func(s *fingerprintSubject) {
			s.Path = "/a%2Fbq=1&r=2"
			s.Query = ""
		},
		"header into body": func(s *fingerprintSubject) {
			s.Headers = nil
			s.Body = append([]byte("x-a1x-b2"), s.Body...)
		},
		"header's name into value": func(s *fingerprintSubject) { s.Headers[0] = [2]string{"X-", "A1"} },
	} {
		s := wholeSubject()
		change(s)
		made, err := f.sum(wholeSubject())
		if err != nil {
			t.Fatal(err)
		}
		other, err := f.sum(s)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(made, other) {
			t.Errorf("%s does not count", name)
		}
		if equal, err := f.matches(made, s, nil); err != nil || equal && name != "mode" {
			t.Errorf("%s: matches: %v, %v", name, equal, err)
		}
	}
	for name, change := range map[string]func(*fingerprintSubject){
		"names' case":   func(s *fingerprintSubject) { s.Headers[0][0] = "x-a" },
		"coding's case": func(s *fingerprintSubject) { s.Coding = "identity, GZIP ,," },
		"names' order":  func(s *fingerprintSubject) { slices.Reverse(s.Headers) },
		"an empty body": func(s *fingerprintSubject) { s.Body = []byte{} },
	} {
		s := wholeSubject()
		base := wholeSubject()
		if name == "an empty body" {
			base.Body = nil
		}
		change(s)
		if !sameFingerprint(t, f, base, s) {
			t.Errorf("%s counts", name)
		}
	}
}

// H7: the algorithm does not change silently: records outlive releases. The values were computed by
// another program, in Python.
func TestH7KnownFingerprint(t *testing.T) {
	t.Parallel()
	for mode, want := range map[fingerprintMode]string{
		fingerprintRaw:  "010000000007f1f9e6e83dba6a59a9a677fdf5fb248cff30412eb8a26ab5fab016a626e95dea",
		fingerprintJSON: "01010000000789b2967a16978ef85116b74dcac0e8908d9c197cab7e326fc3fc22968df0a2ed",
	} {
		s := wholeSubject()
		s.Mode = mode
		made, err := testPrinter(t, 7, 7).sum(s)
		if got := fmt.Sprintf("%x", made); err != nil || got != want {
			t.Errorf("mode %d: %s, %v", mode, got, err)
		}
	}
	const parts = "0100000000072ba81035fe0ef76330b9162fc868380dfd2fa83c408c325319db8b11ecc8cb86"
	made, err := testPrinter(t, 7, 7).sum(form("xx", "--xx\r\nA: b\r\n\r\n1\r\n--xx\r\n2\r\n--xx--\r\n"))
	if got := fmt.Sprintf("%x", made); err != nil || got != parts {
		t.Errorf("parts: %s, %v", got, err)
	}
}

func TestH7MediaType(t *testing.T) {
	t.Parallel()
	f := testPrinter(t, 1, 1)
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"application/json", "Application/JSON", true},
		{"application/json", "application/json; charset=utf-8", true},
		{"application/json", `application/json;charset="UTF-8"`, true},
		{"a/b; x=1; y=2", `a/b;Y=2;X="1"`, true},
		{"text/plain; charset=latin1", "text/plain", false}, {"a/b; x=1", "a/b; x=2", false},
		{"a/b; x=A", "a/b; x=a", false},
		{"multipart/form-data; boundary=a", "multipart/form-data; boundary=b", false},
		{"a/b; x=1; x=2", "a/b; x=1", false}, {"a/b; x=1; x=2", "a/b; x=1; x=2", true},
		{"", "application/json", false}, {"", "", true}, {"a/b;;", "a/b;;", true},
		{"?a/b", "a/b", false},
	} {
		a := wholeSubject()
		b := wholeSubject()
		a.MediaType = c.a
		b.MediaType = c.b
		if sameFingerprint(t, f, a, b) != c.same {
			t.Errorf("%q and %q: %v", c.a, c.b, !c.same)
		}
	}
}

// H7: version, mode and key of a stored fingerprint decide how it is compared.
func TestH7StoredFingerprints(t *testing.T) {
	t.Parallel()
	old := testPrinter(t, 1, 1)
	made, err := old.sum(wholeSubject())
	if err != nil {
		t.Fatal(err)
	}
	if equal, err := testPrinter(t, 2, 1, 2).matches(made, wholeSubject(), nil); !equal || err != nil {
		t.Errorf("after a rotation: %v, %v", equal, err)
	}
	if young, _ := testPrinter(t, 2, 1, 2).sum(wholeSubject()); bytes.Equal(young[6:], made[6:]) {
		t.Error("two keys make one fingerprint")
	}
	s := wholeSubject()
	s.Mode = fingerprintJSON
	if equal, err := old.matches(made, s, nil); !equal || err != nil {
		t.Errorf("a raw one, on a route that is JSON now: %v, %v", equal, err)
	}
	inJSON, err := old.sum(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Mode = fingerprintRaw
	s.Body = []byte(` { "amount" : 1 } `)
	if equal, err := old.matches(inJSON, s, nil); !equal || err != nil {
		t.Errorf("one of JSON, on a route that is raw now: %v, %v", equal, err)
	}
	s.Body = []byte("amount=1")
	if equal, err := old.matches(inJSON, s, nil); equal || !errors.Is(err, errJSON) {
		t.Errorf("one of JSON, and a body that is none: %v, %v", equal, err)
	}
	for name, bad := range map[string][]byte{
		"no key of it": append([]byte{1, 0, 0, 0, 0, 9}, made[6:]...),
		"version":      append([]byte{2}, made[1:]...),
		"version 0":    append([]byte{0}, made[1:]...),
		"mode":         append([]byte{1, 4}, made[2:]...),
		"short":        made[:37],
		"long":         append(slices.Clone(made), 0),
		"none":         nil,
	} {
		if equal, err := old.matches(bad, wholeSubject(), nil); equal || !errors.Is(err, errFingerprint) {
			t.Errorf("%s: %v, %v", name, equal, err)
		}
	}
	for _, own := range [][]byte{nil, made} { // made again under the stored key, or by the request already
		if equal, err := old.matches(made, wholeSubject(), own); !equal || err != nil {
			t.Errorf("the same: %v, %v", equal, err)
		}
		for i := fingerprintHead; i < len(made); i++ {
			changed := slices.Clone(made)
			changed[i] ^= 1
			if equal, err := old.matches(changed, wholeSubject(), own); equal || err != nil {
				t.Errorf("byte %d: %v, %v", i, equal, err)
			}
		}
	}
}

func TestFingerprintKeysAreChecked(t *testing.T) {
	t.Parallel()
	for want, keys := range map[string]map[uint32]seal.Key{
		"the current key, 1,": {2: {1}},
		"key 1 is all zeros":  {1: {}},
		"key 3 is all zeros\nkey 4 is all zeros\nthe current key, 1,": {4: {}, 3: {}},
	} {
		if _, err := newFingerprinter(seal.Keys{Current: 1, ByID: keys}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestH7CanonicalJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:            `{}`,
		`[]`:            `[]`,
		` { } `:         `{}`,
		"\t[\r\n] ":     `[]`,
		`null`:          `null`,
		` true`:         `true`,
		`false `:        `false`,
		`""`:            `""`,
		`0`:             `0`,
		`{"b":1,"a":2}`: `{"a":2,"b":1}`,
		`{"b":{"d":1,"c":[{"f":1,"e":2}]},"a":2}`: `{"a":2,"b":{"c":[{"e":2,"f":1}],"d":1}}`,
		`[3,1,2]`:             `[3,1,2]`,
		`{"aa":1,"a":2,"":3}`: `{"":3,"a":2,"aa":1}`,
		`{"\u0061":1,"B":2}`:  `{"B":2,"a":1}`,
		`{"é":1,"z":2}`:       `{"z":2,"é":1}`,
		`[1,1.0,1e0,1E+0,-0,0.10,1e400,123456789012345678901234567890]`: `[1,1,1,1,0,1e-1,1e400,12345678901234567890123456789e1]`,

		`"\u00e9\/\b\f\n\r\t\"\\\u0000\u001F\u007f\u2028"`: "\"é/\\u0008\\u000c\\u000a\\u000d\\u0009\\\"\\\\\\u0000\\u001f\x7f\u2028\"",

		`"\ud83d\ude00"`: `"😀"`,
		`"\uD83D\uDE00"`: `"😀"`,
		`"😀"`:            `"😀"`,
		`"\ufffd"`:       "\"\ufffd\"",
		`"<>&"`:          `"<>&"`,
		strings.Repeat("[", 64) + strings.Repeat("]", 64): strings.Repeat("[", 64) + strings.Repeat("]", 64),
	} {
		if got, err := canonicalJSON([]byte(text)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		``:                                 "missing",
		` `:                                "missing",
		`{`:                                "name",
		`{"a"}`:                            "':'",
		`{"a":}`:                           "missing",
		`{"a":1,}`:                         "name",
		`{,}`:                              "name",
		`{"a":1 "b":2}`:                    "','",
		`{a:1}`:                            "name",
		`{"a":1`:                           "','",
		`{1:2}`:                            "name",
		`[`:                                "missing",
		`[1`:                               "','",
		`[1,]`:                             "missing",
		`[,]`:                              "missing",
		`[1 2]`:                            "','",
		`]`:                                "missing",
		`1 2`:                              "after the JSON value",
		`{}{}`:                             "after the JSON value",
		"\ufeff{}":                         "missing",
		`nul`:                              "missing",
		`True`:                             "missing",
		"null\x00":                         "after the JSON value",
		`01`:                               "number is malformed",
		`-`:                                "number",
		`+1`:                               "missing",
		`1.`:                               "number",
		`.1`:                               "missing",
		`1e`:                               "number",
		`1e+`:                              "number",
		`0x1`:                              "after the JSON value",
		`-01`:                              "number is malformed",
		`NaN`:                              "missing",
		`-a`:                               "number",
		`1e1234567890123456789`:            "exponent",
		`0e-1000000000000000000`:           "exponent",
		`"`:                                "end",
		`"\"`:                              "end",
		`"\x"`:                             "escape",
		`"\u12"`:                           "escape",
		`"\u12g4"`:                         "escape",
		`"\u+123"`:                         "escape",
		`"\u1_23"`:                         "escape",
		`"\`:                               "escape",
		"\"\n\"":                           "control",
		"\"\x00\"":                         "control",
		`'a'`:                              "missing",
		`"\ud800"`:                         "surrogate",
		`"\udc00"`:                         "surrogate",
		`"\ud800\ud800"`:                   "surrogate",
		`"\ud800x"`:                        "surrogate",
		`"\ud83d\n"`:                       "surrogate",
		`"\udc00\ud800"`:                   "surrogate",
		"\"\xff\"":                         "UTF-8",
		"\"\xc3\"":                         "UTF-8",
		"\"\xed\xa0\x80\"":                 "UTF-8",
		"\"\xc0\x80\"":                     "UTF-8",
		"{\"\xff\":1}":                     "UTF-8",
		`{"a":1,"a":1}`:                    "twice",
		`{"a":1,"b":2,"\u0061":1}`:         "twice",
		`[{"x":{"":1,"":2}}]`:              "twice",
		`{"é":1,"\u00e9":2}`:               "twice",
		`{"amount":1,"Amount":2}`:          "case",
		`[{"x":{"É":1,"b":2,"\u00e9":3}}]`: "case",
		`{"k":1,"\u212a":2}`:               "case",
		`{"ſ":1,"S":2}`:                    "case",
		strings.Repeat("[", 65) + strings.Repeat("]", 65):           "nested",
		strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65): "nested",
		strings.Repeat("[", 1<<20):                                  "nested",
	} {
		got, err := canonicalJSON([]byte(text))
		if !errors.Is(err, errJSON) || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%.100q: %.100q, %v; want an error with %s", text, got, err, want)
		}
	}
	if _, err := canonicalJSON([]byte(`{"secret":1,"secret":2}`)); strings.Contains(err.Error(), "secret") {
		t.Errorf("the body is quoted: %v", err)
	}
}

// rewriteJSON writes a value in one of the ways that say the same.
func rewriteJSON(r *rand.Rand, v any) string {
	spaces := []string{"", "", " ", "\n\t"}
	space := func() string { return spaces[r.IntN(len(spaces))] }
	var out string
	switch v := v.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(v))
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		var members []string
		for _, name := range names {
			members = append(members, space()+rewriteJSON(r, name)+":"+rewriteJSON(r, v[name]))
		}
		out = "{" + strings.Join(members, ",") + space() + "}"
	case []any:
		var elements []string
		for _, e := range v {
			elements = append(elements, rewriteJSON(r, e))
		}
		out = "[" + strings.Join(elements, ",") + "]"
	case string:
		var b strings.Builder
		for _, c := range v {
			switch {
			case r.IntN(3) == 0 && c > 0xffff:
				fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
			case r.IntN(3) == 0 && c <= 0xffff, c < ' ', c == '"', c == '\\':
				fmt.Fprintf(&b, `\u%04x`, c)
			default:
				b.WriteRune(c)
			}
		}
		out = `"` + b.String() + `"`
	case json.Number:
		out = v.String()
	default:
		b, _ := json.Marshal(v)
		out = string(b)
	}
	return space() + out + space()
}

func anyJSON(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) any { return s }),
		rapid.Map(rapid.Int64(), func(n int64) any { return json.Number(strconv.FormatInt(n, 10)) }),
		rapid.Map(rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})\.[0-9]{1,5}([eE][+-]?[0-9]{1,3})?`), func(s string) any {
			return json.Number(s)
		}),
		rapid.SampledFrom([]any{nil, true, false}),
	)
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf,
		rapid.Map(rapid.SliceOfN(anyJSON(depth-1), 0, 4), func(v []any) any { return v }),
		rapid.Map(rapid.MapOfN(rapid.String(), anyJSON(depth-1), 0, 4), func(v map[string]any) any { return apart(v) }))
}

// byValue replaces each number by the fraction that it is.
func byValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, member := range v {
			out[name] = byValue(member)
		}
		return out
	case []any:
		out := []any{}
		for _, element := range v {
			out = append(out, byValue(element))
		}
		return out
	case json.Number:
		value, ok := new(big.Rat).SetString(v.String())
		if !ok {
			panic("no number: " + v.String()) // cannot be: a decoder has taken it
		}
		return json.Number(value.RatString())
	}
	return v
}

// apart leaves out members whose names differ only in case: canonicalJSON refuses them.
func apart(v map[string]any) map[string]any {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(name, other) }) {
			delete(v, name)
			continue
		}
		names = append(names, name)
	}
	return v
}

// H7: however a value is written, its canonical form is one; and other values have other ones.
func TestH7CanonicalJSONOfAnyValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := anyJSON(3).Draw(t, "value")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		a := rewriteJSON(r, v)
		b := rewriteJSON(r, v)
		one, err := canonicalJSON([]byte(a))
		if err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		two, err := canonicalJSON([]byte(b))
		if err != nil || !bytes.Equal(one, two) {
			t.Fatalf("%s and %s: %s and %s, %v", a, b, one, two, err)
		}
		in := json.NewDecoder(bytes.NewReader(one))
		in.UseNumber()
		var back any
		if err := in.Decode(&back); err != nil {
			t.Fatal(err)
		}
		// Printed, because an empty array is not nil and an empty one that was drawn may be.
		got, want := fmt.Sprintf("%#v",
			byValue(back)), fmt.Sprintf("%#v", byValue(v))
		if got != strings.ReplaceAll(want, "[]interface {}(nil)", "[]interface {}{}") {
			t.Fatalf("%s became %s: %s, was %s", a, one, got, want)
		}
	})
}

func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{
		`{"b":1,"a":[1.0,-0e5,"\ud83d\ude00\u0000",{}]}`,
		`{"a":1,"\u0061":2}`,
		`"\ud800"`,
		"\"\xff\"",
		`[[[[1]]]] `,
		`{"a":{"c":1,"b":2},"":null}`,
		"1e400",
		"\ufefftrue",
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		once, err := canonicalJSON(text)
		if err != nil {
			if !errors.Is(err, errJSON) {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("taken, and no JSON: %q", text)
		}
		again, err := canonicalJSON(once)
		if err != nil || !bytes.Equal(once, again) {
			t.Fatalf("%q is not a fixed point: %q, %v", once, again, err)
		}
		in := json.NewDecoder(bytes.NewReader(text))
		in.UseNumber()
		var v any
		if err := in.Decode(&v); err != nil {
			t.Fatal(err)
		}
		other := rewriteJSON(rand.New(rand.NewPCG(seed, 0)), v)
		if again, err = canonicalJSON([]byte(other)); err != nil || !bytes.Equal(once, again) {
			t.Fatalf("%q and %q: %q and %q, %v", text, other, once, again, err)
		}
	})
}

func FuzzFingerprint(f *testing.F) {
	f.Add([]byte(`{"amount":1}`), 3, byte(1), "POST", "/a", "q")
	f.Add([]byte{}, 0, byte(0), "", "", "")
	prints := testPrinter(f, 1, 1, 2)
	f.Fuzz(func(t *testing.T, body []byte, at int, by byte, method, path, query string) {
		s := &fingerprintSubject{Method: method, Path: path, Query: query, Body: body}
		made, err := prints.sum(s)
		if err != nil || len(made) != fingerprintLen {
			t.Fatalf("%x, %v", made, err)
		}
		twin := *s
		twin.Body = bytes.Clone(body)
		if equal, err := prints.matches(made, &twin, nil); !equal || err != nil {
			t.Fatalf("equal bodies: %v, %v", equal, err)
		}
		if len(body) > 0 && by != 0 {
			twin.Body[int(uint(at)%uint(len(body)))] ^= by
			if equal, err := prints.matches(made, &twin, nil); equal || err != nil {
				t.Fatalf("a byte was changed: %v, %v", equal, err)
			}
		}
		twin.Body = append(bytes.Clone(body), by)
		if equal, err := prints.matches(made, &twin, nil); equal || err != nil {
			t.Fatalf("a byte was added: %v, %v", equal, err)
		}
		moved := *s
		moved.Method = method + path
		moved.Path = ""
		if equal, _ := prints.matches(made, &moved, nil); equal != (path == "") {
			t.Fatalf("method and path run into each other")
		}
		if _, err := prints.matches(body, s, nil); err == nil && len(body) != fingerprintLen {
			t.Fatal("a body was taken for a fingerprint")
		}
	})
}
