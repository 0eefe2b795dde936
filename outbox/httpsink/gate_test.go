package httpsink

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
)

// The check runs after connecting, over TLS too, and before the first byte; on a kept connection as
// on a new one (O7).
func TestGate(t *testing.T) {
	for _, tls := range []bool{false, true} {
		var requests atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.Method == "POST" && r.ProtoMajor != 1 {
				t.Errorf("HTTP/%d", r.ProtoMajor)
			}
		}))
		server.EnableHTTP2 = true
		var given *http.Transport
		if tls {
			server.StartTLS()
			given = server.Client().Transport.(*http.Transport)
			given.ForceAttemptHTTP2 = true
			// Registers HTTP/2 with the given transport.
			resp, err := server.Client().Get(server.URL)
			if err != nil || resp.ProtoMajor != 2 {
				t.Fatal(resp, err)
			}
			_ = resp.Body.Close()
			requests.Store(0)
		} else {
			server.Start()
		}
		defer server.Close()
		transport, err := gatedTransport(given, &dialguard.Guard{AllowPrivate: true, ConnectTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer transport.CloseIdleConnections()
		no := errors.New("too late")
		send := func(may func() error) (*gate, error) {
			g := &gate{mayStart: may}
			ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: g.attach})
			req, err := http.NewRequestWithContext(ctx, "POST", server.URL, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			return g, err
		}
		asked := 0
		yes := func() error { asked++; return nil }
		for i, step := range []struct {
			may  func() error
			want int64
		}{{func() error { return no }, 0}, {yes, 1}, {func() error { return no }, 1}, {yes, 2}} {
			g, err := send(step.may)
			if (err == nil) == (i%2 == 0) {
				t.Errorf("tls %v, step %d: %v", tls, i, err)
			}
			if i%2 == 0 && !errors.Is(g.refusal(), no) {
				t.Errorf("tls %v, step %d: refused with %v", tls, i, g.refusal())
			}
			if n := requests.Load(); n != step.want {
				t.Errorf("tls %v, step %d: %d requests, want %d", tls, i, n, step.want)
			}
		}
		if asked != 2 {
			t.Errorf("tls %v: asked %d times for two requests", tls, asked)
		}
	}
}
