package httpsink_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "51825619-b4aa-834b-8c96-7435425d5a3b"

func delivery() *outbox.Attempt {
	return &outbox.Attempt{Key: key, Sink: "payments", Name: "charge", Method: "POST", Target: "/charges", Body: []byte("body"),
		Header: http.Header{"Content-Type": {"text/plain"}, "X-Two": {"b", "a"}}, Number: 1}
}

func newSink(t *testing.T, base string, change ...func(*httpsink.Config)) *httpsink.Sink {
	t.Helper()
	cfg := httpsink.Config{Name: "payments", BaseURL: base, KeyWindow: time.Hour, Timeout: 5 * time.Second, AllowPrivate: true}
	for _, f := range change {
		f(&cfg)
	}
	s, err := httpsink.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// serve runs a handler and counts its requests.
func serve(t *testing.T, h http.HandlerFunc) (url string, requests *atomic.Int64) {
	requests = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func TestRequest(t *testing.T) {
	var got *http.Request
	var body []byte
	base, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		got = r
	})
	for name, c := range map[string]struct {
		change func(*httpsink.Config)
		header string
		key    string
	}{
		"bare by default": {nil, "Idempotency-Key", key},
		"quoted":          {func(c *httpsink.Config) { c.Profile.Quoted = true }, "Idempotency-Key", `"` + key + `"`},
		"other header":    {func(c *httpsink.Config) { c.Profile.Header = "paypal-request-id" }, "Paypal-Request-Id", key},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*httpsink.Config)
			if c.change != nil {
				changes = append(changes, c.change)
			}
			a := delivery()
			a.Target = "/charges/%2Fx?expand=1"
			if r := newSink(t, base+"/v1/", changes...).Send(t.Context(), a); r.Outcome != outbox.Delivered {
				t.Fatalf("%+v", r)
			}
			good := got.Method == "POST" &&
				got.RequestURI == "/v1/charges/%2Fx?expand=1" &&
				string(body) == "body" &&
				got.ContentLength == 4 &&
				got.Header.Get("Content-Type") == "text/plain" &&
				fmt.Sprint(got.Header["X-Two"]) == "[b a]" &&
				fmt.Sprint(got.Header[c.header]) == "["+c.key+"]"
			if !good {
				t.Errorf("%s %s %q %v", got.Method, got.RequestURI, body, got.Header)
			}
		})
	}
	a := delivery()
	a.Body = nil
	a.Target = ""
	if r := newSink(t, base).Send(t.Context(), a); r.Outcome != outbox.Delivered {
		t.Fatalf("%+v", r)
	}
	if got.ContentLength != 0 || len(got.TransferEncoding) > 0 || got.Header.Get("Content-Length") != "0" {
		t.Errorf("an empty body was sent as %v %v", got.ContentLength, got.TransferEncoding)
	}
}

func TestOutcomes(t *testing.T) {
	var code atomic.Int64
	base, requests := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(int(code.Load()))
	})
	s := newSink(t, base)
	for want, codes := range map[outbox.AttemptOutcome][]int{
		outbox.Delivered: {200, 201, 202, 204, 299},
		outbox.Retry:     {408, 409, 500, 501, 503, 599},
		outbox.Postponed: {425, 429},
		outbox.Rejected:  {300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 410, 422},
	} {
		for _, c := range codes {
			before := requests.Load()
			code.Store(int64(c))
			r := s.Send(t.Context(), delivery())
			good := r.Outcome == want &&
				strings.HasPrefix(r.Reason, fmt.Sprintf("status %d", c)) &&
				strings.Contains(r.Reason, "redirect, which is not followed") == (c/100 == 3) &&
				!strings.Contains(r.Reason, "elsewhere")
			if !good {
				t.Errorf("%d: %+v, want %v", c, r, want)
			}
			if n := requests.Load() - before; n != 1 {
				t.Errorf("%d: %d requests", c, n)
			}
		}
	}
	code.Store(401)
	s = newSink(t, base, func(c *httpsink.Config) { c.Outcomes = map[int]outbox.AttemptOutcome{401: outbox.Retry} })
	if r := s.Send(t.Context(), delivery()); r.Outcome != outbox.Retry {
		t.Errorf("overruled: %+v", r)
	}
}

// A remote dies on a kept connection after it has applied the request. Go's transport would send a
// keyed POST again by itself. One Send must be one request, whatever its body (O7).
func TestTransportDoesNotResend(t *testing.T) {
	for name, body := range map[string][]byte{"body": []byte("body"), "no body": nil} {
		t.Run(name, func(t *testing.T) {
			var got atomic.Int64
			var conns sync.WaitGroup
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			conns.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					conns.Go(func() {
						defer c.Close()
						for in := bufio.NewReader(c); ; {
							r, err := http.ReadRequest(in)
							if err != nil {
								return
							}
							_, _ = io.Copy(io.Discard, r.Body)
							if got.Add(1) == 2 {
								return // applied, but the answer is lost
							}
							_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
						}
					})
				}
			})
			s := newSink(t, "http://"+l.Addr().String())
			a := delivery()
			a.Body = body
			if r := s.Send(t.Context(), a); r.Outcome != outbox.Delivered || got.Load() != 1 {
				t.Errorf("first: %+v, %d requests", r, got.Load())
			}
			if r := s.Send(t.Context(), a); r.Outcome != outbox.Retry || got.Load() != 2 {
				t.Errorf("second: %+v, the remote has seen %d requests, want 2", r, got.Load())
			}
			if r := s.Send(t.Context(), a); r.Outcome != outbox.Delivered || got.Load() != 3 {
				t.Errorf("third: %+v, %d requests", r, got.Load())
			}
			_ = l.Close()
			s.Close()
			conns.Wait()
		})
	}
}

// O12: Authorize signs each attempt, and the body stays as it was enqueued.
func TestAuthorize(t *testing.T) {
	var got *http.Request
	var fault atomic.Value
	base, requests := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write(body)
		if want := hex.EncodeToString(mac.Sum(nil)); r.Header.Get("X-Signature") != want || string(body) != "body" {
			fault.Store(fmt.Sprintf("body %q, signature %s, want %s", body, r.Header.Get("X-Signature"), want))
		}
		got = r
	})
	sign := func(r *http.Request) error {
		body, err := io.ReadAll(r.Body) // a signature reads the body
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write(body)
		r.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
		r.Header.Set("Authorization", "Bearer token")
		q := r.URL.Query()
		q.Set("sig", "1")
		r.URL.RawQuery = q.Encode()
		return err
	}
	with := func(f func(*http.Request) error) func(*httpsink.Config) {
		return func(c *httpsink.Config) { c.Authorize = f }
	}
	if r := newSink(t, base, with(sign)).Send(t.Context(), delivery()); r.Outcome != outbox.Delivered {
		t.Fatalf("%+v", r)
	}
	if f := fault.Load(); f != nil || got.Header.Get("Authorization") != "Bearer token" || got.URL.Query().Get("sig") != "1" {
		t.Errorf("%v %v %v", f, got.Header, got.URL)
	}
	appended := delivery()
	appended.Target += "?z=%7e&a=1"
	if r := newSink(t, base, with(func(r *http.Request) error {
		r.URL.RawQuery += "&sig=1"
		return withoutQuery(sign)(r)
	})).Send(t.Context(), appended); r.Outcome != outbox.Delivered || got.URL.RawQuery != "z=%7e&a=1&sig=1" {
		t.Errorf("%+v, query %s", r, got.URL.RawQuery)
	}
	before := requests.Load()
	other, _ := url.Parse("http://127.0.0.1:1/")
	elsewhere, misled := serve(t, func(http.ResponseWriter, *http.Request) {})
	for name, f := range map[string]func(*http.Request) error{
		"an error":   func(*http.Request) error { return errors.New("token secret-token has expired") },
		"the key":    func(r *http.Request) error { r.Header.Set("Idempotency-Key", "another"); return nil },
		"a 2nd key":  func(r *http.Request) error { r.Header.Add("Idempotency-Key", "another"); return nil },
		"the method": func(r *http.Request) error { r.Method = "PUT"; return nil },
		"the host":   func(r *http.Request) error { r.Host = "elsewhere"; return nil },
		"the URL":    func(r *http.Request) error { r.URL = other; return nil },
		"the path":   func(r *http.Request) error { r.URL.Path = "/x"; return nil },

		"the server to which it goes": func(r *http.Request) error { r.URL.Host = strings.TrimPrefix(elsewhere, "http://"); return nil },
		"the scheme":                  func(r *http.Request) error { r.URL.Scheme = "https"; return nil },
		"the opaque form of the URL":  func(r *http.Request) error { r.URL.Opaque = "//elsewhere/x"; return nil },
		"a 2nd key, in another case":  func(r *http.Request) error { r.Header["idempotency-key"] = []string{"another"}; return nil },
		"a header, in another case":   func(r *http.Request) error { r.Header["x-TWO"] = []string{"c"}; return nil },
		"the framing, in lower case":  func(r *http.Request) error { r.Header["transfer-encoding"] = []string{"chunked"}; return nil },
		"the framing":                 func(r *http.Request) error { r.TransferEncoding = []string{"chunked"}; return nil },
		"a trailer":                   func(r *http.Request) error { r.Trailer = http.Header{"X-Sum": nil}; return nil },
		"a user in the URL":           func(r *http.Request) error { r.URL.User = url.User("x"); return nil },
		"no URL":                      func(r *http.Request) error { r.URL = nil; return nil },
		"the length":                  func(r *http.Request) error { r.Header["content-length"] = []string{"1"}; return nil },
		"the host as a header":        func(r *http.Request) error { r.Header["host"] = []string{"elsewhere"}; return nil },
		"another query":               func(r *http.Request) error { r.URL.RawQuery = "sig=1"; return nil },
		"the query in another order":  func(r *http.Request) error { r.URL.RawQuery = "b=2&amount=1&sig=1"; return nil },
		"the query without its end":   func(r *http.Request) error { r.URL.RawQuery = "amount=1"; return nil },
		"a longer value in the query": func(r *http.Request) error { r.URL.RawQuery += "3"; return nil },
		"a parameter twice":           func(r *http.Request) error { r.URL.RawQuery += "&sig=1&amount=2"; return nil },
		"a parameter in another case": func(r *http.Request) error { r.URL.RawQuery += "&%41mount=2"; return nil },
		"a parameter behind ;":        func(r *http.Request) error { r.URL.RawQuery += "&sig=1;amount=2"; return nil },
	} {
		a := delivery()
		a.Target += "?amount=1&b=2"
		r := newSink(t, base, with(f)).Send(t.Context(), a)
		if r.Outcome != outbox.Postponed || r.Err == nil || strings.Contains(r.Reason, "secret-token") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if n := requests.Load() - before + misled.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// withoutQuery wraps an Authorize so that it leaves the query as it is.
func withoutQuery(authorize func(*http.Request) error) func(*http.Request) error {
	return func(r *http.Request) error {
		query := r.URL.RawQuery
		err := authorize(r)
		r.URL.RawQuery = query
		return err
	}
}

// A row cannot choose the host or leave the base path, neither at Enqueue nor if it was written in
// SQL (O11).
func TestRowsCannotEscape(t *testing.T) {
	base, requests := serve(t, func(http.ResponseWriter, *http.Request) {})
	s := newSink(t, base+"/v1", func(c *httpsink.Config) { c.Profile.Header = "X-Key" })
	for _, target := range []string{
		"//evil.example/x",
		"https://evil.example/",
		"@evil.example/",
		":80/x",
		"x",
		"/../admin",
		"/a/../../admin",
		"/%2e%2e/admin",
		"/..%2fadmin",
		`/..\admin`,
		"/a/./b",
		"/a b",
		"/a\r\nHost: evil",
		"/a#b",
		"/%zz",
		"/x/..;/admin",
		"/x/..;a=b/admin",
		"/.;/admin",
		"/%2e%2e%3b/admin",
		"/%252e%252e/admin",
		"/..%00/admin",
		"/.%0d./admin",
		"/x/..%20/admin",
		"/..%2500/admin",
		"/%7f../admin",
		"/%25252e./admin",
		"/x%252f..%252fadmin",
		"/a%255c..%255cadmin",
		"/\x80",
		"/" + strings.Repeat("a", 3000),
		"?a=%zz",
	} {
		a := delivery()
		a.Target = target
		if r := s.Send(t.Context(), a); r.Outcome != outbox.Rejected {
			t.Errorf("%.30q: %+v", target, r)
		}
	}
	for name, change := range map[string]func(*outbox.Attempt){
		"GET":               func(a *outbox.Attempt) { a.Method = "GET" },
		"split method":      func(a *outbox.Attempt) { a.Method = "POST / HTTP/1.1\r\nX: y" },
		"Host":              func(a *outbox.Attempt) { a.Header = http.Header{"Host": {"evil"}} },
		"transfer-encoding": func(a *outbox.Attempt) { a.Header = http.Header{"transfer-encoding": {"chunked"}} },
		"split value":       func(a *outbox.Attempt) { a.Header = http.Header{"X": {"a\r\nb: c"}} },
		"own key":           func(a *outbox.Attempt) { a.Header = http.Header{"x-key": {"mine"}} },
	} {
		a := delivery()
		change(a)
		if r := s.Send(t.Context(), a); r.Outcome != outbox.Rejected {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// Answers may be endless, and their contents do not get into errors.
func TestAnswers(t *testing.T) {
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/endless":
			for chunk := make([]byte, 32<<10); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		case "/malformed":
			c, _, _ := w.(http.Hijacker).Hijack()
			_, _ = io.WriteString(c, "card \"4242\" of Jane\r\n\r\n")
			_ = c.Close()
		case "/slow":
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	s := newSink(t, base, func(c *httpsink.Config) { c.Timeout = 300 * time.Millisecond })
	for path, want := range map[string]outbox.Result{
		"/endless":   {Outcome: outbox.Delivered, Reason: "status 200"},
		"/malformed": {Outcome: outbox.Retry, Reason: `malformed HTTP status code "..."`},
		"/slow":      {Outcome: outbox.Retry, Reason: "no answer within 300ms"},
	} {
		a := delivery()
		a.Target = path
		if r := s.Send(t.Context(), a); r.Outcome != want.Outcome ||
			!strings.HasSuffix(r.Reason, want.Reason) ||
			strings.Contains(r.Reason, "Jane") {
			t.Errorf("%s: %v %q, want %v %q", path, r.Outcome, r.Reason, want.Outcome, want.Reason)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := s.Send(ctx, delivery()); r.Outcome != outbox.Postponed || !strings.HasPrefix(r.Reason, "cut off") {
		t.Errorf("cancelled: %+v", r)
	}
	if r := newSink(t, "http://127.0.0.1:1").Send(t.Context(), delivery()); r.Outcome != outbox.Postponed ||
		!strings.Contains(r.Reason, "connection refused") {
		t.Errorf("nobody there: %+v", r)
	}
}

func TestConfigFaultsAllAtOnce(t *testing.T) {
	_, err := httpsink.New(httpsink.Config{
		BaseURL: "ftp://x", Timeout: -1, Profile: httpsink.Profile{Header: "a b"}, Outcomes: map[int]outbox.AttemptOutcome{99: 7},
		Transport: &http.Transport{Dial: net.Dial}, //nolint:staticcheck // deprecated, and refused
	})
	if !errors.Is(err, httpsink.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Name:",
		"BaseURL: must start with",
		"Timeout: is -1ns",
		"KeyWindow: must be set",
		`Config.Profile.Header: is "a b"`,
		"Outcomes: 99",
		"Outcome(7) is not",
		"Transport: Dial and",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q in:\n%v", want, err)
		}
	}
	for base, want := range map[string]string{
		"":                   "must start",
		"http://":            "must name a host",
		"https://u:secret@h": "user or password",
		"https://h?a=b":      "query or fragment",
		"https://h/#":        "query or fragment",
		"https://h/a/../b":   "segment",
		"http://h:x/":        "is not a URL",
		"https://u:secret@[": "is not a URL",
	} {
		_, err := httpsink.New(httpsink.Config{Name: "x", BaseURL: base, KeyWindow: outbox.Forever})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", base, err, want)
		}
	}
}

// O6: the sink says of which attempts no byte has left: the remote cannot know the key by them.
func TestO6NoByteHasLeft(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }))
	t.Cleanup(busy.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	noSecret := func(c *httpsink.Config) {
		c.Authorize = func(*http.Request) error { return errors.New("no secret") }
	}
	for name, c := range map[string]struct {
		sink   *httpsink.Sink
		target string
		want   bool
	}{
		"refused by the remote": {newSink(t, busy.URL), "/", false},
		"no connection":         {newSink(t, gone.URL), "/", true},
		"no secret":             {newSink(t, busy.URL, noSecret), "/", true},
		"cannot be sent":        {newSink(t, busy.URL), "/../x", true},
	} {
		r := c.sink.Send(t.Context(), &outbox.Attempt{
			Key:    "6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a",
			Method: "POST",
			Target: c.target,
			Body:   []byte("x"),
		})
		if r.Unseen != c.want {
			t.Errorf("%s: unseen %t, want %t (%+v)", name, r.Unseen, c.want, r)
		}
	}
}

// Of an answer that is asked for the status, the body and the headers that are listed are kept, if
// the call was delivered.
func TestCapturedAnswer(t *testing.T) {
	t.Parallel()
	status := http.StatusCreated
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Request-Id"] = []string{"r1", "r2"}
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Set-Cookie", "secret")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "body")
	})
	sink := newSink(t, base, func(c *httpsink.Config) { c.CaptureHeaders = []string{"x-request-id", "Location"} })
	asked := delivery()
	asked.Capture = true
	want := &outbox.Response{Status: 201, Header: http.Header{"X-Request-Id": {"r1", "r2"}}, Body: []byte("body")}
	if r := sink.Send(t.Context(), asked); r.Outcome != outbox.Delivered || !reflect.DeepEqual(r.Response, want) {
		t.Errorf("%+v, want the answer %+v", r, want)
	}
	if r := sink.Send(t.Context(), delivery()); r.Outcome != outbox.Delivered || r.Response != nil {
		t.Errorf("an answer that nobody asks for: %+v", r)
	}
	status = http.StatusUnprocessableEntity
	if r := sink.Send(t.Context(), asked); r.Outcome != outbox.Rejected || r.Response != nil {
		t.Errorf("an answer that refuses: %+v", r)
	}
}

// Outcomes has an outcome for each status that an answer may have at its end.
func TestOutcomesOfStatuses(t *testing.T) {
	t.Parallel()
	for status, good := range map[int]bool{199: false, 200: true, 599: true, 600: false} {
		for o, known := range map[outbox.AttemptOutcome]bool{
			0: false, outbox.Delivered: true, outbox.Unsafe: true, outbox.Unsafe + 1: false,
		} {
			_, err := httpsink.New(httpsink.Config{
				Name: "x", BaseURL: "https://h", KeyWindow: outbox.Forever, Outcomes: map[int]outbox.AttemptOutcome{status: o},
			})
			if (err == nil) != (good && known) {
				t.Errorf("%d: %v: %v", status, o, err)
			}
		}
	}
}
