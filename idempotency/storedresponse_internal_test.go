package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func equalResponses(a, b *storedResponse) bool {
	return a.Status == b.Status &&
		a.Tombstone == b.Tombstone &&
		a.Reference == b.Reference &&
		a.Operation == b.Operation &&
		bytes.Equal(a.Body, b.Body) &&
		maps.EqualFunc(a.Header, b.Header, slices.Equal) &&
		maps.EqualFunc(a.Added, b.Added, slices.Equal) &&
		maps.EqualFunc(a.Trailer, b.Trailer, slices.Equal)
}

// H13: what is stored is what comes back, byte for byte, values in their order.
func TestH13StoredAnswer(t *testing.T) {
	t.Parallel()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for name, r := range map[string]*storedResponse{
		"no body": {Status: 204, Header: http.Header{}},
		"JSON as it is": {
			Status: 201,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   []byte("{\"b\": 1.0,  \"a\":1}\r\n"),
		},
		"every byte": {Status: 200, Header: http.Header{}, Body: every},
		"values, ordered": {
			Status: 302,
			Header: http.Header{"Link": {"</b>", "</a>", "", "</a>"}, "Location": {"/x"}, "Etag": {"\"\xff\""}},
			Body:   []byte("x"),
		},
		"added":           {Status: 200, Header: http.Header{"Vary": {"a"}}, Added: http.Header{"Link": {"</b>", "</a>"}}},
		"trailer":         {Status: 200, Header: http.Header{}, Trailer: http.Header{"Digest": {"b", "a"}}, Body: []byte("x")},
		"reference":       {Status: 201, Header: http.Header{"Location": {"/x"}}, Reference: "ch_17"},
		"operation":       {Status: 202, Header: http.Header{"Location": {"/x"}}, Operation: "operations/17", Body: []byte("{}")},
		"tombstone":       {Status: 201, Header: http.Header{"Location": {"/x"}}, Tombstone: true},
		"a status of 599": {Status: 599, Header: http.Header{}},
	} {
		got, err := decodeResponse(r.encode())
		if err != nil || !equalResponses(got, r) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	a := &storedResponse{Status: 200, Header: http.Header{"A": {"1"}, "B": nil, "C": {"1"}, "D": {"1"}, "E": {"1"}}, Body: []byte{}}
	b := &storedResponse{Status: 200, Header: http.Header{"E": {"1"}, "D": {"1"}, "C": {"1"}, "A": {"1"}}}
	for range 20 {
		if !bytes.Equal(a.encode(), b.encode()) {
			t.Fatal("one answer has two encodings")
		}
	}
	if got, err := decodeResponse(a.encode()); err != nil || got.Body != nil {
		t.Errorf("an empty body: %#v, %v", got.Body, err)
	}
}

// H13: records outlive releases.
func TestH13KnownEncoding(t *testing.T) {
	t.Parallel()
	r := &storedResponse{
		Status:  201,
		Header:  http.Header{"Vary": {"a", "b"}, "Etag": {"1"}},
		Added:   http.Header{"Link": {"</a>"}},
		Trailer: http.Header{"Sum": {"7"}},
		Body:    []byte("ok"),
	}
	const want = "010000c9" + "00000002" + "0000000445746167" + "00000001" + "0000000131" + "0000000456617279" +
		"00000002" + "0000000161" + "0000000162" + "00000001" + "000000044c696e6b" + "00000001" +
		"000000043c2f613e" + "00000001" + "0000000353756d" + "00000001" + "0000000137" + "000000026f6b"
	if got := fmt.Sprintf("%x", r.encode()); got != want {
		t.Errorf("%s", got)
	}
}

func TestH13MalformedAnswers(t *testing.T) {
	t.Parallel()
	good := (&storedResponse{Status: 200, Header: http.Header{"Etag": {"1"}, "Vary": {"a", "b"}}, Body: []byte("body")}).encode()
	for n := range good {
		if _, err := decodeResponse(good[:n]); !errors.Is(err, errMalformedResponse) {
			t.Errorf("cut off after %d bytes: %v", n, err)
		}
	}
	one := func(name string, values ...string) []byte {
		return (&storedResponse{Status: 200, Header: http.Header{name: values}}).encode()
	}
	head := func(version, flags byte, status uint16) []byte {
		return append([]byte{version, flags, byte(status >> 8), byte(status)}, make([]byte, 16)...)
	}
	if _, err := decodeResponse(head(1, 0, 200)); err != nil {
		t.Fatal(err)
	}
	two := (&storedResponse{Status: 200, Header: http.Header{"A": {"1"}, "B": {"1"}}}).encode()
	for name, b := range map[string][]byte{
		"trailing bytes":          append(slices.Clone(good), 0),
		"version 0":               head(0, 0, 200),
		"version 2":               head(2, 0, 200),
		"flags":                   head(1, 2, 200),
		"status 0":                head(1, 0, 0),
		"status 100":              head(1, 0, 100),
		"status 101":              head(1, 0, 101),
		"status 1000":             head(1, 0, 1000),
		"status 65535":            head(1, 0, 65535),
		"line end in a value":     one("Vary", "a\r\nSet-Cookie: b=c"),
		"NUL in a value":          one("Vary", "a\x00"),
		"no name":                 one("", "a"),
		"name with a space":       one("A b", "a"),
		"name not canonical":      one("vary", "a"),
		"names out of order":      bytes.Replace(two, []byte("B"), []byte("A"), 1),
		"a header without values": append([]byte{1, 0, 0, 200, 0, 0, 0, 1, 0, 0, 0, 1, 'A', 0, 0, 0, 0}, make([]byte, 12)...),
	} {
		if r, err := decodeResponse(b); !errors.Is(err, errMalformedResponse) || r != nil {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// A number that the bytes do not justify allocates nothing.
func TestH13HugeNumbers(t *testing.T) {
	// Not parallel: it measures what the process allocates.
	for name, b := range map[string][]byte{
		"headers": {1, 0, 0, 200, 0xff, 0xff, 0xff, 0xff},
		"a name":  {1, 0, 0, 200, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 'A'},
		"values":  {1, 0, 0, 200, 0, 0, 0, 1, 0, 0, 0, 1, 'A', 0, 0xff, 0xff, 0xff},
		"a value": {1, 0, 0, 200, 0, 0, 0, 1, 0, 0, 0, 1, 'A', 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff},
		"body":    {1, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decodeResponse(b)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errMalformedResponse) || grown > 1<<20 {
			t.Errorf("%s: %v, after %d bytes", name, err, grown)
		}
	}
}

func TestH13AnyAnswer(t *testing.T) {
	t.Parallel()
	value := rapid.StringMatching("[ -~\t\u0080-\u00ff]{0,20}")
	rapid.Check(t, func(t *rapid.T) {
		r := &storedResponse{
			Status:    rapid.IntRange(200, 999).Draw(t, "status"),
			Header:    http.Header{},
			Tombstone: rapid.Bool().Draw(t, "tombstone"),
			Body:      rapid.SliceOf(rapid.Byte()).Draw(t, "body"),
		}
		for name, values := range rapid.MapOf(rapid.StringMatching(`X-[A-Za-z0-9!]{1,8}`), rapid.SliceOfN(value, 1, 4)).Draw(t, "header") {
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
		if rapid.Bool().Draw(t, "added") {
			r.Header, r.Added = http.Header{}, r.Header
		}
		if got, err := decodeResponse(r.encode()); err != nil || !equalResponses(got, r) {
			t.Fatalf("%+v: %+v, %v", r, got, err)
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	f.Add((&storedResponse{Status: 200}).encode())
	f.Add((&storedResponse{Status: 201, Header: http.Header{"Etag": {"1"}, "Vary": {"a", ""}}, Body: []byte("body")}).encode())
	f.Add((&storedResponse{Status: 200, Added: http.Header{"Vary": {"a"}}}).encode())
	f.Add((&storedResponse{Status: 200, Trailer: http.Header{"Sum": {"a"}}}).encode())
	f.Add((&storedResponse{Status: 410, Header: http.Header{"Set-Cookie": {"a=b"}}, Tombstone: true}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeResponse(b)
		if err != nil {
			if r != nil || !errors.Is(err, errMalformedResponse) {
				t.Fatalf("%v, %v", r, err)
			}
			return
		}
		extra := append(slices.Collect(maps.Keys(r.Header)), slices.Collect(maps.Keys(r.Added))...)
		if set, added := headersToStore(r.Header, r.Added, nil, extra); len(set) != len(r.Header) || len(added) != len(r.Added) {
			t.Fatalf("not storable: %v", r.Header)
		}
		again, err := decodeResponse(r.encode())
		if err != nil || !equalResponses(again, r) {
			t.Fatalf("%+v, %+v, %v", r, again, err)
		}
		// Nothing but a header that is not replayed is lost.
		if enc := r.encode(); len(enc) > len(b) || len(enc) == len(b) && !bytes.Equal(enc, b) {
			t.Fatalf("%x was read as %x", b, enc)
		}
	})
}
