package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// server keeps keys as a server does: an effect for each, and the first one's answer for all that
// follow.
type server struct {
	mu      sync.Mutex
	got     []sent
	answers map[string]string
	effects int
	drop    func(n int) bool // whether the connection dies after request n was applied
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.Join(r.Header.Values("Idempotency-Key"), "|")
	s.got = append(s.got, sent{key: key, body: string(body), contentLength: r.ContentLength})
	if s.answers == nil {
		s.answers = map[string]string{}
	}
	answer, known := s.answers[key]
	if !known || key == "" {
		s.effects++
		answer = fmt.Sprintf("effect %d of %s", s.effects, body)
		s.answers[key] = answer
	}
	if s.drop != nil && s.drop(len(s.got)) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
		return
	}
	if known {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	_, _ = io.WriteString(w, answer)
}

// requests are those that came, and effects what they did.
func (s *server) requests() (got []sent, effects int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got), s.effects
}

func start(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// The connection dies after the server has applied the operation: it is asked again under the same
// key and with the same bytes, and applies it no second time.
func TestConnectionThatDiesAfterApplying(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"amount=5", "", strings.Repeat("x", 200<<10)} {
		s := &server{drop: func(n int) bool { return n == 1 || n == 2 || n == 4 }}
		caller := &http.Client{Transport: transport(t, client.Config{})}
		url := start(t, s)
		for op := range 2 {
			resp, err := caller.Do(post(t, t.Context(), url, body))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := read(t, resp), fmt.Sprintf("effect %d of %s", op+1, body); got != want ||
				resp.Header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("%.50q, want %.50q", got, want)
			}
			got, _ := s.requests()
			if key := resp.Request.Header.Get("Idempotency-Key"); key != got[len(got)-1].key {
				t.Errorf("the answer's request has %s", key)
			}
		}
		got, effects := s.requests()
		if effects != 2 || len(got) != 5 {
			t.Fatalf("%d effects of %d requests", effects, len(got))
		}
		first, second := got[:3], got[3:]
		if first[0].key == second[0].key || first[0].key == "" {
			t.Errorf("keys %s and %s", first[0].key, second[0].key)
		}
		for i, g := range got {
			if g != got[i/3*3] || g.body != body || g.contentLength != int64(len(body)) {
				t.Errorf("request %d: %s %.50q %d", i+1, g.key, g.body, g.contentLength)
			}
		}
	}
}

// O7: an attempt is one request. The test's first half shows what Go's transport does if it is left
// to itself.
func TestO7TransportSendsNothingByItself(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		for _, body := range []string{"amount=5", ""} {
			requests := func(with func(http.RoundTripper) http.RoundTripper) int {
				base := http.DefaultTransport.(*http.Transport).Clone()
				defer base.CloseIdleConnections()
				s := &server{drop: func(n int) bool { return n > 1 }} // the first request makes the connection a kept one
				url := start(t, s)
				caller := &http.Client{Transport: with(base)}
				for i := range 2 {
					req := post(t, t.Context(), url, body)
					req.Header.Set(key, fmt.Sprintf(`"%d"`, i))
					resp, err := caller.Do(req)
					if err == nil {
						read(t, resp)
					}
					if (err == nil) != (i == 0) {
						t.Fatalf("request %d: %v", i+1, err)
					}
				}
				got, _ := s.requests()
				return len(got)
			}
			if n := requests(func(base http.RoundTripper) http.RoundTripper { return base }); n < 3 {
				t.Errorf("%s, body %q: Go's transport sent %d requests for 2: this test shows nothing", key, body, n)
			}
			if n := requests(func(base http.RoundTripper) http.RoundTripper {
				return transport(t, client.Config{Base: base, MaxAttempts: 1, Header: key})
			}); n != 2 {
				t.Errorf("%s, body %q: %d requests for 2 attempts", key, body, n)
			}
		}
	}
}

// Failed attempts leave their connection behind for the next one.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	var conns, n atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 4 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(make([]byte, 10<<10))
	}))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	resp, err := transport(t, client.Config{}).RoundTrip(post(t, t.Context(), srv.URL, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if read(t, resp); n.Load() != 4 || conns.Load() != 1 {
		t.Errorf("%d requests on %d connections", n.Load(), conns.Load())
	}
}

// A client's redirect to another address is the same operation: 307 and 308 keep method, body and
// key.
func TestRedirectKeepsTheKey(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"x", ""} {
		s := &server{}
		mux := http.NewServeMux()
		var first []string
		mux.HandleFunc("/old", func(w http.ResponseWriter, r *http.Request) {
			first = append(first, r.Header.Get("Idempotency-Key"))
			http.Redirect(w, r, "/new", http.StatusTemporaryRedirect)
		})
		mux.Handle("/new", s)
		caller := &http.Client{Transport: transport(t, client.Config{})}
		resp, err := caller.Do(post(t, t.Context(), start(t, mux)+"/old", body))
		if err != nil {
			t.Fatal(err)
		}
		read(t, resp)
		got, _ := s.requests()
		good := len(got) == 1 &&
			got[0].key != "" &&
			got[0].key == first[0] &&
			got[0].body == body
		if !good {
			t.Errorf("%q, then %+v", first, got)
		}
	}
}

// Operations at once share nothing.
func TestOperationsAtOnce(t *testing.T) {
	t.Parallel()
	s := &server{drop: func(n int) bool { return n%3 == 0 }}
	url := start(t, s)
	caller := &http.Client{Transport: transport(t, client.Config{MaxAttempts: 100})}
	defer caller.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			resp, err := caller.Do(post(t, client.WithKey(context.Background(), fmt.Sprint(i)), url, fmt.Sprint(i)))
			if err != nil {
				t.Error(err)
				return
			}
			if got := read(t, resp); !strings.HasSuffix(got, fmt.Sprintf(" of %d", i)) {
				t.Errorf("%d got %s", i, got)
			}
		})
	}
	wg.Wait()
	if got, effects := s.requests(); effects != 50 || len(got) <= 50 {
		t.Errorf("%d effects of %d requests", effects, len(got))
	}
}
