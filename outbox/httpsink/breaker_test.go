package httpsink_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds what tests wait for. No test asserts how long something took.
var patience = pgtest.Patience(time.Minute)

func untilReady(t *testing.T, s *httpsink.Sink, want int) {
	t.Helper()
	pgtest.Until(t, patience, fmt.Sprintf("ready for %d calls", want), func() bool { return s.Ready() == want })
}

// Failures open the breaker, and then no call is made. Answers of a host that is up, and attempts
// that report nothing, do not open it.
func TestBreakerOpens(t *testing.T) {
	var status atomic.Int64
	base, requests := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch code := int(status.Load()); code {
		case 0:
			c, _, _ := w.(http.Hijacker).Hijack()
			_ = c.Close()
		case 1:
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			w.WriteHeader(code)
		}
	})
	inside := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(base, "http://"))
	}}
	refuse := func(*http.Request) error { return errors.New("no token") }
	for name, c := range map[string]struct {
		status int
		change func(*httpsink.Config)
		opens  bool
	}{
		"500":                 {500, nil, true},
		"503":                 {503, nil, true},
		"broken off":          {0, nil, true},
		"timeout":             {1, func(c *httpsink.Config) { c.Timeout = 50 * time.Millisecond }, true},
		"refused":             {200, func(c *httpsink.Config) { c.BaseURL = "http://127.0.0.1:1" }, true},
		"address":             {200, func(c *httpsink.Config) { c.BaseURL, c.AllowPrivate, c.Transport = "http://a.example", false, inside }, true},
		"200":                 {200, nil, false},
		"404":                 {404, nil, false},
		"409":                 {409, nil, false},
		"429":                 {429, nil, false},
		"500, which is final": {500, func(c *httpsink.Config) { c.Outcomes = map[int]outbox.Outcome{500: outbox.Rejected} }, false},
		"no authorization":    {500, func(c *httpsink.Config) { c.Authorize = refuse }, false},
		"off":                 {500, func(c *httpsink.Config) { c.Breaker.Off = true }, false},
	} {
		status.Store(int64(c.status))
		s := newSink(t, base, func(cfg *httpsink.Config) {
			cfg.Breaker = httpsink.Breaker{Failures: 3, OpenFor: time.Hour}
			if c.change != nil {
				c.change(cfg)
			}
		})
		for i := range 3 {
			if s.Ready() != math.MaxInt {
				t.Errorf("%s: ready for %d calls after %d attempts", name, s.Ready(), i)
			}
			s.Send(t.Context(), delivery())
		}
		before := requests.Load()
		r := s.Send(t.Context(), delivery())
		open := errors.Is(r.Err, httpsink.ErrOpen)
		if open != c.opens || (s.Ready() == 0) != c.opens {
			t.Errorf("%s: %+v, ready for %d calls", name, r, s.Ready())
		}
		if open && (r.Outcome != outbox.Retry || r.RetryAfter != time.Hour || requests.Load() != before) {
			t.Errorf("%s: %+v, %d requests", name, r, requests.Load()-before)
		}
	}
}

// Only failures in a row count: a host that answers some calls is up.
func TestBreakerCountsInARow(t *testing.T) {
	var n atomic.Int64
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%3 != 0 {
			w.WriteHeader(500)
		}
	})
	s := newSink(t, base, func(c *httpsink.Config) { c.Breaker = httpsink.Breaker{Failures: 3, OpenFor: time.Hour} })
	for range 12 {
		s.Send(t.Context(), delivery())
	}
	if s.Ready() != math.MaxInt || n.Load() != 12 {
		t.Errorf("ready for %d calls after %d requests", s.Ready(), n.Load())
	}
}

// One call tries whether the host is back, and no other is let out meanwhile. If the call learns
// nothing about the host, the breaker waits for one that does.
func TestBreakerHalfOpen(t *testing.T) {
	var down atomic.Bool
	hold := make(chan chan struct{}, 1)
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		select {
		case c := <-hold:
			<-c
		default:
		}
		if down.Load() {
			w.WriteHeader(500)
		}
	})
	var mu sync.Mutex
	var told []string
	var auth atomic.Value
	s := newSink(t, base, func(c *httpsink.Config) {
		c.Breaker = httpsink.Breaker{Failures: 1, OpenFor: 20 * time.Millisecond, Changed: func(state string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, state)
		}}
		c.Authorize = func(r *http.Request) error {
			if f, ok := auth.Load().(func() error); ok {
				return f()
			}
			return nil
		}
	})
	down.Store(true)
	s.Send(t.Context(), delivery())
	untilReady(t, s, 1)
	s.Send(t.Context(), delivery()) // fails too: open again
	untilReady(t, s, 1)
	down.Store(false)

	for name, f := range map[string]func() error{"fails": func() error { return errors.New("no token") }, "panics": func() error { panic("no token") }} {
		auth.Store(f)
		func() {
			defer func() { _ = recover() }() // as the relay does
			s.Send(t.Context(), delivery())
		}()
		if s.Ready() != 1 {
			t.Errorf("authorization %s: ready for %d calls", name, s.Ready())
		}
	}
	auth.Store(func() error { return nil })
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	s.Send(cancelled, delivery())
	if s.Ready() != 1 {
		t.Errorf("cut off: ready for %d calls", s.Ready())
	}

	held := make(chan struct{})
	hold <- held
	ended := make(chan outbox.Result)
	go func() { ended <- s.Send(t.Context(), delivery()) }()
	for len(hold) > 0 { // until the request has reached the remote
		select {
		case r := <-ended:
			t.Fatalf("%+v", r)
		default:
		}
	}
	if r := s.Send(t.Context(), delivery()); !errors.Is(r.Err, httpsink.ErrOpen) {
		t.Errorf("a second call was let out: %+v", r)
	}
	close(held)
	if r := pgtest.Receive(t, patience, "Run ends", ended); r.Outcome != outbox.Delivered || s.Ready() != math.MaxInt {
		t.Errorf("%+v, ready for %d calls", r, s.Ready())
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"open", "half-open", "open", "half-open", "closed"}; !slices.Equal(told, want) {
		t.Errorf("%v, want %v", told, want)
	}
}

func TestBreakerFaults(t *testing.T) {
	_, err := httpsink.New(httpsink.Config{Name: "x", BaseURL: "https://a.example", KeyWindow: time.Hour, Breaker: httpsink.Breaker{Failures: -1, OpenFor: 2 * time.Hour}})
	for _, want := range []string{"Breaker: Failures: -1", "Breaker: OpenFor: 2h"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q: %v", want, err)
		}
	}
}
