package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// send makes one request and returns what the base transport got.
func send(t *testing.T, cfg client.Config, req *http.Request) ([]sent, error) {
	t.Helper()
	s := &script{plays: []play{{status: 200}}}
	cfg.Base = s
	resp, err := transport(t, cfg).RoundTrip(req)
	if err == nil {
		read(t, resp)
	}
	return s.got, err
}

func TestKeyOfAnOperation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		form   client.Form
		ctx    string
		header []string
		want   string
		fails  string
	}{
		"context":                        {ctx: "order-17", want: `"order-17"`},
		"context, bare":                  {ctx: "order-17", form: client.FormBare, want: "order-17"},
		"context, escaped":               {ctx: `a"b\c d,e`, want: `"a\"b\\c d,e"`},
		"header":                         {header: []string{"mine"}, want: "mine"},
		"header, quoted":                 {header: []string{`"mine"; v=1`}, want: `"mine"; v=1`},
		"header and context agree":       {header: []string{`"mine"`}, ctx: "mine", want: `"mine"`},
		"header and context, bare":       {header: []string{"mine"}, ctx: "mine", want: "mine"},
		"header and context disagree":    {header: []string{`"mine"`}, ctx: "yours", fails: "different keys"},
		"two lines":                      {header: []string{"mine", "mine"}, fails: "2 times"},
		"empty header":                   {header: []string{""}, fails: "empty"},
		"no lines":                       {header: []string{}, ctx: "k", want: `"k"`},
		"header that is no string":       {header: []string{`"mine`}, fails: "RFC 9651"},
		"header with a comma":            {header: []string{"a,b"}, fails: "commas"},
		"header that is too long":        {header: []string{strings.Repeat("k", 256)}, fails: "256 bytes"},
		"context, empty":                 {ctx: "-", fails: "0 bytes"},
		"context, too long":              {ctx: strings.Repeat("k", 256), fails: "256 bytes"},
		"context, not ASCII":             {ctx: "schlüssel", fails: "ASCII"},
		"context, line end":              {ctx: "a\r\nX: y", fails: "ASCII"},
		"context, bare and with a space": {ctx: "a b", form: client.FormBare, fails: "without quotes"},
		"context, bare and with a quote": {ctx: `"a"`, form: client.FormBare, fails: "without quotes"},
		"context, bare and with a comma": {ctx: `a,b`, form: client.FormBare, fails: "without quotes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if c.ctx != "" {
				ctx = client.WithKey(ctx, strings.Trim(c.ctx, "-"))
				if c.ctx != "-" {
					ctx = client.WithKey(ctx, c.ctx)
				}
			}
			body := &tracked{Reader: strings.NewReader("x"), ctx: ctx}
			req := post(t, ctx, url, "x")
			req.Body = body
			if c.header != nil {
				req.Header["Idempotency-Key"] = c.header
			}
			got, err := send(t, client.Config{Form: c.form}, req)
			if !body.closed {
				t.Error("the body is open")
			}
			if c.fails != "" {
				if !errors.Is(err, client.ErrKey) || !strings.Contains(err.Error(), c.fails) || len(got) > 0 {
					t.Errorf("%v after %d requests", err, len(got))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got[0].key != c.want {
				t.Errorf("%s, want %s", got[0].key, c.want)
			}
		})
	}
}

// Names of headers have no case, in a map that was filled by hand too.
func TestKeyInAHeaderOfAnotherCase(t *testing.T) {
	t.Parallel()
	req := post(t, t.Context(), url, "x")
	req.Header["idempotency-KEY"] = []string{"mine"}
	if got, err := send(t, client.Config{}, req); err != nil || got[0].key != "mine" {
		t.Errorf("%+v, %v", got, err)
	}
	req.Header["Idempotency-Key"] = []string{"mine"}
	if _, err := send(t, client.Config{}, req); !errors.Is(err, client.ErrKey) {
		t.Error(err)
	}
}

// The caller's request is as it was (http.RoundTripper's contract).
func TestRequestIsLeftAlone(t *testing.T) {
	t.Parallel()
	req := post(t, t.Context(), url, "x")
	if _, err := send(t, client.Config{}, req); err != nil {
		t.Fatal(err)
	}
	if len(req.Header) > 0 || req.GetBody == nil || req.ContentLength != 1 {
		t.Errorf("%+v", req)
	}
	req.Header = nil
	req.Body = nil
	req.ContentLength = 0
	if got, err := send(t, client.Config{}, req); err != nil || got[0].key == "" || req.Header != nil {
		t.Errorf("%+v %v", got, err)
	}
}

func TestH1MethodsThatGetAKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		methods []string
		method  string
		want    bool
	}{
		{nil, "POST", true},
		{nil, "PATCH", true},
		{nil, "PUT", false},
		{nil, "DELETE", false},
		{nil, "GET", false},
		{nil, "", false},
		{nil, "HEAD", false},
		{[]string{"PUT", "DELETE"}, "PUT", true},
		{[]string{"PUT", "DELETE"}, "DELETE", true},
		{[]string{"PUT"}, "POST", false},
	} {
		s := &script{plays: []play{{status: 503}, {status: 200}}}
		req := post(t, client.WithKey(t.Context(), "k"), url, "x")
		req.Method = c.method
		resp, err := transport(t, client.Config{Base: s, Methods: c.methods}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		read(t, resp)
		if keyed := s.got[0].key != ""; keyed != c.want || (len(s.got) == 2) != c.want {
			t.Errorf("%v, %s: key %s, %d attempts", c.methods, c.method, s.got[0].key, len(s.got))
		}
	}
}

func TestAnotherHeader(t *testing.T) {
	t.Parallel()
	req := post(t, client.WithKey(t.Context(), "k"), url, "x")
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("PayPal-Request-Id") != "k" || r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%v", r.Header)
		}
		return &http.Response{StatusCode: 200}, nil // without a body, as test doubles often are
	})
	resp, err := transport(t, client.Config{Base: base, Header: "paypal-request-id", Form: client.FormBare}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestBaseThatReturnsNothing(t *testing.T) {
	t.Parallel()
	base := roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil })
	_, err := transport(t, client.Config{Base: base, MaxAttempts: 2}).RoundTrip(post(t, t.Context(), url, "x"))
	var failed *client.TransportError
	if !errors.As(err, &failed) || failed.Attempts != 2 {
		t.Error(err)
	}
}

// Keys that the transport makes are UUIDv7: new for each operation, and ordered by their time.
func TestNewKeys(t *testing.T) {
	t.Parallel()
	var before string
	for range 100 {
		got, err := send(t, client.Config{Form: client.FormBare}, post(t, context.Background(), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		id, err := uuid.Parse(got[0].key)
		if err != nil || id.Version() != 7 || got[0].key <= before {
			t.Fatalf("%s after %s: %v", got[0].key, before, err)
		}
		sec, nsec := id.Time().UnixTime()
		if at := time.Unix(sec, nsec); time.Since(at).Abs() > time.Minute {
			t.Errorf("its time is %v", at)
		}
		before = got[0].key
	}
}
