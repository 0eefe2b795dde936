package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/idempotency"
)

// send makes one request and returns what the base transport got.
func send(t *testing.T, cfg idempotency.TransportConfig, req *http.Request) ([]sent, error) {
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
		form   idempotency.Form
		ctx    string
		header []string
		want   string
		fails  string
	}{
		"context":                        {ctx: "order-17", want: `"order-17"`},
		"context, bare":                  {ctx: "order-17", form: idempotency.FormBare, want: "order-17"},
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
		"context, bare and with a space": {ctx: "a b", form: idempotency.FormBare, fails: "without quotes"},
		"context, bare and with a quote": {ctx: `"a"`, form: idempotency.FormBare, fails: "without quotes"},
		"context, bare and with a comma": {ctx: `a,b`, form: idempotency.FormBare, fails: "without quotes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if c.ctx != "" {
				ctx = idempotency.WithKey(ctx, strings.Trim(c.ctx, "-"))
				if c.ctx != "-" {
					ctx = idempotency.WithKey(ctx, c.ctx)
				}
			}
			body := &tracked{Reader: strings.NewReader("x"), ctx: ctx}
			req := post(t, ctx, url, "x")
			req.Body = body
			if c.header != nil {
				req.Header["Idempotency-Key"] = c.header
			}
			got, err := send(t, idempotency.TransportConfig{Form: c.form}, req)
			if !body.closed {
				t.Error("the body is open")
			}
			if c.fails != "" {
				if !errors.Is(err, idempotency.ErrKey) || !strings.Contains(err.Error(), c.fails) || len(got) > 0 {
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
	if got, err := send(t, idempotency.TransportConfig{}, req); err != nil || got[0].key != "mine" {
		t.Errorf("%+v, %v", got, err)
	}
	req.Header["Idempotency-Key"] = []string{"mine"}
	if _, err := send(t, idempotency.TransportConfig{}, req); !errors.Is(err, idempotency.ErrKey) {
		t.Error(err)
	}
}

// The caller's request is as it was (http.RoundTripper's contract).
func TestRequestIsLeftAlone(t *testing.T) {
	t.Parallel()
	req := post(t, t.Context(), url, "x")
	if _, err := send(t, idempotency.TransportConfig{}, req); err != nil {
		t.Fatal(err)
	}
	if len(req.Header) > 0 || req.GetBody == nil || req.ContentLength != 1 {
		t.Errorf("%+v", req)
	}
	req.Header, req.Body = nil, nil
	req.ContentLength = 0
	if got, err := send(t, idempotency.TransportConfig{}, req); err != nil || got[0].key == "" || req.Header != nil {
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
		{nil, "POST", true}, {nil, "PATCH", true}, {nil, "PUT", false}, {nil, "DELETE", false}, {nil, "GET", false}, {nil, "", false}, {nil, "HEAD", false},
		{[]string{"PUT", "DELETE"}, "PUT", true}, {[]string{"PUT", "DELETE"}, "DELETE", true}, {[]string{"PUT"}, "POST", false},
	} {
		s := &script{plays: []play{{status: 503}, {status: 200}}}
		req := post(t, idempotency.WithKey(t.Context(), "k"), url, "x")
		req.Method = c.method
		resp, err := transport(t, idempotency.TransportConfig{Base: s, Methods: c.methods}).RoundTrip(req)
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
	req := post(t, idempotency.WithKey(t.Context(), "k"), url, "x")
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("PayPal-Request-Id") != "k" || r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%v", r.Header)
		}
		return &http.Response{StatusCode: 200}, nil // without a body, as test doubles often are
	})
	resp, err := transport(t, idempotency.TransportConfig{Base: base, Header: "paypal-request-id", Form: idempotency.FormBare}).RoundTrip(req)
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
	_, err := transport(t, idempotency.TransportConfig{Base: base, Attempts: 2}).RoundTrip(post(t, t.Context(), url, "x"))
	var failed *idempotency.TransportError
	if !errors.As(err, &failed) || failed.Attempts != 2 {
		t.Error(err)
	}
}

// Keys that the transport makes are UUIDv7: new for each operation, and ordered by their time.
func TestNewKeys(t *testing.T) {
	t.Parallel()
	var before string
	for range 100 {
		got, err := send(t, idempotency.TransportConfig{Form: idempotency.FormBare}, post(t, context.Background(), url, "x"))
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
	a, b := idempotency.NewV4(), idempotency.NewV4()
	if id, err := uuid.Parse(a); err != nil || id.Version() != 4 || a == b {
		t.Errorf("%s, %s, %v", a, b, err)
	}
}

// H4: both forms name one key; what is neither is none.
func TestH4Syntax(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"k"`: "k", "k": "k", ` "k" `: "k", "\tk ": "k",
		`"a b"`: "a b", `"a,b"`: "a,b", `"a\"b\\c"`: `a"b\c`, `a"b`: `a"b`, `a;b=c`: "a;b=c",
		`"k";a`: "k", `"k"; a=1;b=-1.5 ;c=?1`: "", `"k"; a=1;b=-1.5;c=?1`: "k", `"k";a="x;y"`: "k", `"k";a=tok/en:x`: "k", `"k";a=:aGk=:`: "k", `"k";a=@1659578233`: "k",
		`"k";a=%"f%c3%bc"`: "k", `"k";*a`: "k", `"k";a_-.*9=1`: "k", `"k";a=*x`: "k", `"k";a=:YQ:`: "k",
		`"k";`: "", `"k";A`: "", `"k";1`: "", `"k";a=`: "", `"k";a=?2`: "", `"k";a=?`: "", `"k";a=1.`: "", `"k";a=1.2345`: "", `"k";a=-`: "", `"k";a=1234567890123456`: "",
		`"k";a=1234567890123.1`: "", `"k";a=:a b:`: "", `"k";a=:aGk=`: "", `"k";a=:a=b:`: "", `"k";a=:aaa===:`: "", `"k";a=@1.5`: "", `"k";a=@`: "", `"k";a=%"`: "", `"k";a=%"%C3"`: "",
		`"k";a=%"%c"`: "", `"k";a=%x`: "", `"k";a="`: "", `"k";a=ü`: "", `"k" x`: "", `"k", "l"`: "", `"k"x`: "",
		`"`: "", `"k`: "", `""`: "", ``: "", ` `: "", `"a\b"`: "", `"a\`: "", "\"a\tb\"": "", `"ü"`: "",
		"a b": "", "a,b": "", "ü": "", "a\x7f": "", `"` + strings.Repeat("k", 255) + `"`: strings.Repeat("k", 255), `"` + strings.Repeat("k", 256) + `"`: "",
		strings.Repeat("k", 255): strings.Repeat("k", 255), strings.Repeat("k", 256): "",
	} {
		got, err := idempotency.ReadKey(value)
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
		if key, err := idempotency.ReadKey(s); err == nil {
			written, err := idempotency.WriteKey(idempotency.FormString, key)
			if err != nil {
				t.Fatalf("%q was read from %q and cannot be written: %v", key, s, err)
			}
			if again, err := idempotency.ReadKey(written); err != nil || again != key {
				t.Fatalf("%q: %q, %v", written, again, err)
			}
		}
		// What can be written is read as it was.
		for _, form := range []idempotency.Form{idempotency.FormString, idempotency.FormBare} {
			if written, err := idempotency.WriteKey(form, s); err == nil {
				if again, err := idempotency.ReadKey(written); err != nil || again != s {
					t.Fatalf("%q: %q, %v", written, again, err)
				}
				if strings.Trim(written, " ") != written || strings.ContainsAny(written, "\r\n\x00") {
					t.Fatalf("%q is no header", written)
				}
			}
		}
	})
}
