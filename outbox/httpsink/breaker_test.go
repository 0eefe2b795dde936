package httpsink_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// Failures in a row hold calls. Answers of a host that is up, and attempts that report nothing, do
// not: a 500 may be one call's (O6).
func TestBreakerOpens(t *testing.T) {
	var status atomic.Int64
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
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
		"502":        {502, nil, true},
		"503":        {503, nil, true},
		"504":        {504, nil, true},
		"broken off": {0, nil, true},
		"timeout":    {1, func(c *httpsink.Config) { c.Timeout = 50 * time.Millisecond }, true},
		"refused":    {200, func(c *httpsink.Config) { c.BaseURL = "http://127.0.0.1:1" }, true},
		"address": {
			200,
			func(c *httpsink.Config) {
				c.BaseURL = "http://a.example"
				c.AllowPrivate = false
				c.Transport = inside
			},
			true,
		},
		"200":                 {200, nil, false},
		"404":                 {404, nil, false},
		"409":                 {409, nil, false},
		"429":                 {429, nil, false},
		"500":                 {500, nil, false},
		"503, which is final": {503, func(c *httpsink.Config) { c.Outcomes = map[int]outbox.AttemptOutcome{503: outbox.Rejected} }, false},
		"no authorization":    {503, func(c *httpsink.Config) { c.Authorize = refuse }, true},
		"off":                 {503, func(c *httpsink.Config) { c.Breaker.Off = true }, false},
	} {
		status.Store(int64(c.status))
		s := newSink(t, base, func(cfg *httpsink.Config) {
			cfg.Breaker = httpsink.Breaker{Failures: 3, OpenFor: time.Hour}
			if c.change != nil {
				c.change(cfg)
			}
		})
		want := outbox.RetryAuto
		if name == "refused" || name == "address" {
			want = outbox.RetrySink // no call can bring it about
		}
		for i := range 4 {
			r := s.Send(t.Context(), delivery())
			holds := r.RetryAfter > 0
			wrong := holds != (c.opens && i >= 2) ||
				holds && (!again(r) || r.RetryScope != want || r.RetryAfter != time.Hour)
			if wrong {
				t.Errorf("%s: attempt %d: %+v", name, i+1, r)
			}
		}
	}
}

// Only failures in a row count: a host that answers some calls is up.
func TestBreakerCountsInARow(t *testing.T) {
	var n atomic.Int64
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%3 != 0 {
			w.WriteHeader(503)
		}
	})
	s := newSink(t, base, func(c *httpsink.Config) { c.Breaker = httpsink.Breaker{Failures: 3, OpenFor: time.Hour} })
	for range 12 {
		if r := s.Send(t.Context(), delivery()); r.RetryScope != outbox.RetryCall && r.RetryAfter > 0 {
			t.Errorf("after %d requests: %+v", n.Load(), r)
		}
	}
}

func TestBreakerFaults(t *testing.T) {
	_, err := httpsink.New(httpsink.Config{
		Name:      "x",
		BaseURL:   "https://a.example",
		KeyWindow: time.Hour,
		Breaker:   httpsink.Breaker{Failures: -1, OpenFor: 2 * time.Hour},
	})
	for _, want := range []string{"Config.Breaker.Failures: is -1", "Config.Breaker.OpenFor: is 2h"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q: %v", want, err)
		}
	}
}

// again reports whether a call is tried again.
func again(r outbox.Result) bool { return r.Outcome == outbox.Retry || r.Outcome == outbox.Postponed }
