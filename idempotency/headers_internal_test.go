package idempotency

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

func TestH14StoredHeaders(t *testing.T) {
	t.Parallel()
	extra := []string{"X-Request-Cost", "x-lower", "Connection-Named"}
	for name, c := range map[string]struct{ h, want http.Header }{
		"none": {h: nil, want: http.Header{}},
		"the list": {
			h: http.Header{
				"Content-Type":        {"a/b"},
				"Content-Language":    {"de"},
				"Content-Encoding":    {"gzip"},
				"Content-Disposition": {"inline"},
				"Content-Location":    {"/a"},
				"Location":            {"/b"},
				"Etag":                {`"1"`},
				"Last-Modified":       {"Sat, 21 Nov 2026 12:00:10 GMT"},
				"Link":                {"</c>"},
				"Cache-Control":       {"private"},
				"Vary":                {"Accept"},
			},
			want: http.Header{
				"Content-Type":        {"a/b"},
				"Content-Language":    {"de"},
				"Content-Encoding":    {"gzip"},
				"Content-Disposition": {"inline"},
				"Content-Location":    {"/a"},
				"Location":            {"/b"},
				"Etag":                {`"1"`},
				"Last-Modified":       {"Sat, 21 Nov 2026 12:00:10 GMT"},
				"Link":                {"</c>"},
				"Cache-Control":       {"private"},
				"Vary":                {"Accept"},
			},
		},
		"values and their order": {
			h:    http.Header{"Link": {"</c>", "</a>", "</b>", "</a>"}},
			want: http.Header{"Link": {"</c>", "</a>", "</b>", "</a>"}},
		},
		"not listed": {h: http.Header{"X-Other": {"1"}, "Server": {"x"}}, want: http.Header{}},
		"configured": {
			h:    http.Header{"X-Request-Cost": {"1", "2"}, "X-Lower": {"3"}},
			want: http.Header{"X-Request-Cost": {"1", "2"}, "X-Lower": {"3"}},
		},
		"names in another case": {
			h:    http.Header{"content-TYPE": {"a/b"}, "ETag": {"1"}, "set-cookie": {"a=b"}},
			want: http.Header{"Content-Type": {"a/b"}, "Etag": {"1"}},
		},
		"a name in two cases": {h: http.Header{"vary": {"b"}, "Vary": {"a"}}, want: http.Header{"Vary": {"a", "b"}}},
		"named by Connection": {
			h: http.Header{
				"Connection":       {"close, connection-named", "Vary"},
				"Connection-Named": {"1"},
				"Vary":             {"a"},
				"Link":             {"</a>"},
			},
			want: http.Header{"Link": {"</a>"}},
		},
		"named by another header": {
			h:    http.Header{"Vary": {"Link"}, "Link": {"</a>"}},
			want: http.Header{"Vary": {"Link"}, "Link": {"</a>"}},
		},
		"by connection": {h: http.Header{"connection": {"\tlink"}, "Link": {"</a>"}}, want: http.Header{}},
		"a line end in a value": {
			h:    http.Header{"Location": {"/a\r\nSet-Cookie: a=b"}, "Link": {"</a>\n", "</b>", "</c>\x00"}},
			want: http.Header{"Link": {"</b>"}},
		},
		"no values":      {h: http.Header{"Content-Type": nil, "Vary": {}}, want: http.Header{}},
		"an empty value": {h: http.Header{"Vary": {""}}, want: http.Header{"Vary": {""}}},
	} {
		got, _ := headersToStore(c.h, nil, c.h, extra)
		if !maps.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// H14: what must not be stored cannot be configured, and would not be stored if it were.
func TestH14NeverStored(t *testing.T) {
	t.Parallel()
	never := []string{
		"Set-Cookie", "Set-Cookie2", "Cookie", "Authorization", "WWW-Authenticate",
		"Authentication-Info", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade",
		"Content-Length", "Date", "Age", "Access-Control-Allow-Origin",
		"Access-Control-Expose-Headers", "access-control-max-age", "set-cookie", "SET-COOKIE",
	}
	for _, name := range never {
		if err := checkKeepHeaders([]string{name}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s may be configured: %v", name, err)
		}
		h := http.Header{name: {"1"}, "Vary": {"a"}}
		if set, added := headersToStore(h, h, h, []string{name}); len(set) != 1 || len(added) != 1 {
			t.Errorf("%s is stored: %v, %v", name, set, added)
		}
		both := http.Header{http.CanonicalHeaderKey(name): {"1"}, "Vary": {"a"}}
		r := &storedResponse{Status: 200, Header: both, Added: both}
		if got, err := decodeResponse(r.encode()); err != nil || len(got.Header) != 1 || len(got.Added) != 1 {
			t.Errorf("%s is replayed: %v, %v", name, got, err)
		}
	}
	if err := checkKeepHeaders([]string{"X-A", "Vary", "x-b", "X-A"}); err != nil {
		t.Error(err)
	}
	err := checkKeepHeaders([]string{"X-A", "Date", "a b", "", "x\n"})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("four faults: %v", err)
	}
}

func TestH14FieldsThatCanBeSent(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		"":        true,
		"a b\tc":  true,
		"ü":       true,
		"\xff":    true,
		"~!":      true,
		"a\r\nb":  false,
		"a\nb":    false,
		"a\rb":    false,
		"\x00":    false,
		"a\x7f":   false,
		"\x1b[0m": false,
	} {
		if protocol.ValidHeader("X-A", value) != want {
			t.Errorf("value %q: %v", value, !want)
		}
	}
	for name, want := range map[string]bool{
		"X-A":               true,
		"a!#$%&'*+-.^_`|~1": true,
		"":                  false,
		"a b":               false,
		"a:":                false,
		":status":           false,
		"ü":                 false,
		"a\n":               false,
		"a\x00":             false,
		`"a"`:               false,
	} {
		if protocol.ValidHeader(name, "a") != want {
			t.Errorf("name %q: %v", name, !want)
		}
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ to, set, added, want http.Header }{
		{
			http.Header{"X": {"1"}, "Vary": {"Origin"}},
			http.Header{"Vary": {"a", "b"}, "Content-Type": {"a/b"}},
			nil,
			http.Header{"X": {"1"}, "Vary": {"a", "b"}, "Content-Type": {"a/b"}},
		},
		{http.Header{}, http.Header{"Vary": {"a"}}, nil, http.Header{"Vary": {"a"}, "Content-Type": nil}},
		{
			http.Header{"Vary": {"Origin"}},
			nil,
			http.Header{"Vary": {"a", "b"}, "Link": {"</a>"}},
			http.Header{"Vary": {"Origin", "a", "b"}, "Link": {"</a>"}, "Content-Type": nil},
		},
		{http.Header{"vary": {"Origin"}}, http.Header{"Vary": {"a"}}, nil, http.Header{"Vary": {"a"}, "Content-Type": nil}},
	} {
		applyHeaders(c.to, c.set, c.added)
		if _, has := c.to["Content-Type"]; !has || !maps.EqualFunc(c.to, c.want, slices.Equal) {
			t.Errorf("%v, want %v", c.to, c.want)
		}
	}
	// Without a Content-Type none is guessed.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		applyHeaders(w.Header(), nil, nil)
		_, _ = w.Write([]byte("<html>"))
	}))
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Values("Content-Type") != nil {
		t.Errorf("%v", resp.Header)
	}
}
