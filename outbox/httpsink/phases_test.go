package httpsink_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// Each part of an attempt has its own timeout, which ends it long before the attempt's; the call is
// put off.
func TestPhases(t *testing.T) {
	silent, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		// Only then does the server notice that the client has gone.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and nothing is ever answered
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, c := range map[string]struct {
		base    string
		change  func(*httpsink.Config)
		want    string
		outcome outbox.AttemptOutcome
	}{
		"connecting": {silent, func(c *httpsink.Config) {
			c.ConnectTimeout = 20 * time.Millisecond
			c.Transport = &http.Transport{DialContext: hang}
		}, "deadline exceeded", outbox.Postponed},
		"TLS": {"https://" + l.Addr().String(), func(c *httpsink.Config) {
			c.Transport = &http.Transport{TLSHandshakeTimeout: 20 * time.Millisecond}
		}, "TLS handshake timeout", outbox.Postponed},
		"the answer": {silent, func(c *httpsink.Config) {
			c.Transport = &http.Transport{ResponseHeaderTimeout: 20 * time.Millisecond}
		}, "timeout awaiting response headers", outbox.Retry},
	} {
		s := newSink(t, c.base, func(c *httpsink.Config) { c.Timeout = 10 * time.Minute }, c.change)
		if r := s.Send(t.Context(), delivery()); r.Outcome != c.outcome || !strings.Contains(r.Reason, c.want) {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
	_, err = httpsink.New(httpsink.Config{Name: "x", BaseURL: "https://a.example", KeyWindow: outbox.Forever, Timeout: time.Second,
		ConnectTimeout: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "ConnectTimeout: is 2s: must be from 1ms to 1s") {
		t.Error(err)
	}
}

// An answer's headers are bounded like its body.
func TestAnswerHeadersAreBounded(t *testing.T) {
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("a", 1<<20))
		_, _ = io.WriteString(w, "ok")
	})
	if r := newSink(t, base).Send(t.Context(), delivery()); r.Outcome != outbox.Retry || !strings.Contains(r.Reason, "headers exceeded") {
		t.Errorf("%+v", r)
	}
}
