package client_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// stream is a body of unknown length.
type stream struct {
	io.Reader
	closed int
}

func (s *stream) Close() error { s.closed++; return nil }

func TestBodies(t *testing.T) {
	t.Parallel()
	again := func(s string) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
	}
	ten := "0123456789"
	for name, c := range map[string]struct {
		body      string
		length    int64
		getBody   func() (io.ReadCloser, error)
		want      string
		announced int64
		fails     string
	}{
		"at the bound":                   {body: ten, length: 10, want: ten, announced: 10},
		"unknown length, at the bound":   {body: ten, length: -1, want: ten, announced: 10},
		"length 0 means unknown":         {body: ten, length: 0, want: ten, announced: 10},
		"unknown and empty":              {body: "", length: -1, want: "", announced: 0},
		"above the bound":                {body: ten + "x", length: 11, fails: "Config.MaxBody"},
		"unknown, above the bound":       {body: ten + "x", length: -1, fails: "Config.MaxBody"},
		"above the bound, with GetBody":  {body: ten + "x", length: 11, getBody: again(ten + "x"), want: ten + "x", announced: 11},
		"unknown, above, with GetBody":   {body: ten + "x", length: -1, getBody: again(ten + "x"), want: ten + "x", announced: -1},
		"a GetBody that was left behind": {body: "new", length: 3, getBody: again("old"), want: "new", announced: 3},
		"shorter than announced":         {body: "abc", length: 4, fails: "ContentLength is 4"},
		"longer than announced":          {body: "abcde", length: 4, fails: "ContentLength is 4"},
		"GetBody that fails": {
			body:    ten + "x",
			length:  11,
			getBody: func() (io.ReadCloser, error) { return nil, io.ErrNoProgress },
			fails:   "GetBody",
		},
		"GetBody that returns none": {
			body:    ten + "x",
			length:  11,
			getBody: func() (io.ReadCloser, error) { return nil, nil },
			fails:   "GetBody",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{plays: []play{{err: io.EOF}, {status: 503}, {status: 200}}}
			b := &stream{Reader: strings.NewReader(c.body)}
			req := post(t, t.Context(), url, "")
			req.Body = b
			req.ContentLength = c.length
			req.GetBody = c.getBody
			resp, err := transport(t, client.Config{Base: s, MaxBody: 10}).RoundTrip(req)
			if b.closed == 0 {
				t.Error("the body is open")
			}
			if c.fails != "" {
				if !errors.Is(err, client.ErrBody) || !strings.Contains(err.Error(), c.fails) || len(s.got) > 0 {
					t.Errorf("%v after %d requests", err, len(s.got))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
			if len(s.got) != 3 {
				t.Fatalf("%d attempts", len(s.got))
			}
			for i, got := range s.got {
				if got.body != c.want || got.contentLength != c.announced || got.key != s.got[0].key {
					t.Errorf("attempt %d: %+v", i+1, got)
				}
			}
		})
	}
}

func TestBodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	req := post(t, t.Context(), url, "")
	b := &stream{Reader: io.MultiReader(strings.NewReader("half"), failing{})}
	req.Body = b
	req.ContentLength = -1
	req.GetBody = nil
	got, err := send(t, client.Config{}, req)
	good := errors.Is(err, client.ErrBody) &&
		errors.Is(err, io.ErrClosedPipe) &&
		len(got) <= 0 &&
		b.closed != 0
	if !good {
		t.Errorf("%v after %d requests", err, len(got))
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Trailers go with each attempt; their values are known once the body has been read.
func TestTrailers(t *testing.T) {
	t.Parallel()
	var got []string
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, string(b)+" "+r.Trailer.Get("Sum"))
		if len(got) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	req := post(t, t.Context(), start(t, server), "")
	req.Trailer = http.Header{"Sum": nil}
	req.Body = &stream{Reader: io.MultiReader(
		strings.NewReader("x"),
		atEnd(func() { req.Trailer.Set("Sum", "1") }),
	)}
	req.ContentLength = -1
	req.GetBody = nil
	resp, err := transport(t, client.Config{}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	if len(got) != 2 || got[0] != "x 1" || got[1] != "x 1" {
		t.Errorf("%q", got)
	}
}

type atEnd func()

func (f atEnd) Read([]byte) (int, error) { f(); return 0, io.EOF }
