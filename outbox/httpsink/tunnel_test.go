package httpsink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
	"github.com/onlyonce/onlyonce/outbox"
)

// tunnels runs a proxy that makes tunnels (CONNECT), reached over TLS or not.
func tunnels(t *testing.T, secure bool) *url.URL {
	t.Helper()
	var open sync.WaitGroup
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up, err := net.Dial("tcp", r.Host)
		if r.Method != http.MethodConnect || err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		c, in, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		open.Go(func() { _, _ = io.Copy(up, bufio.NewReader(in)); _ = up.Close() })
		open.Go(func() { _, _ = io.Copy(c, up); _ = c.Close() })
	}))
	if secure {
		proxy.StartTLS()
	} else {
		proxy.Start()
	}
	t.Cleanup(func() { proxy.Close(); open.Wait() })
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A tunnel's connection carries TLS, and that is wrapped in TLS again if the proxy is reached over
// TLS. The check is below both: a request goes out once, and only if it may still start. The calls
// have no body, because those are the ones that the transport could send again by itself.
func TestO7ProxyOverTLS(t *testing.T) {
	for name, secure := range map[string]bool{"proxy over TCP": false, "proxy over TLS": true} {
		t.Run(name, func(t *testing.T) {
			var got atomic.Int64
			remote := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if got.Add(1) == 2 { // applied, but the answer is lost
					c, _, _ := w.(http.Hijacker).Hijack()
					_ = c.Close()
				}
			}))
			t.Cleanup(remote.Close)
			proxy := tunnels(t, secure)
			s, err := New(Config{
				Name:         "payments",
				BaseURL:      remote.URL,
				KeyWindow:    time.Hour,
				AllowPrivate: true,
				Transport: &http.Transport{
					Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{
						InsecureSkipVerify: true,
					}, //nolint:gosec // this test's servers
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			row := &outbox.Attempt{Key: "51825619-b4aa-834b-8c96-7435425d5a3b", Method: "DELETE", Target: "/charges/1", Number: 1}
			if r := s.Send(t.Context(), row); r.Outcome != outbox.Delivered || got.Load() != 1 {
				t.Fatalf("first: %+v, %d requests", r, got.Load())
			}
			if r := s.Send(t.Context(), row); r.Outcome != outbox.Retry || got.Load() != 2 {
				t.Errorf("second: %+v, the remote has seen %d requests, want 2", r, got.Load())
			}
			// On a new connection, then on a kept one.
			for i, may := range []error{errors.New("too late"), nil} {
				g, err := through(t, s.transport, remote.URL, may)
				if (err == nil) != (may == nil) || !errors.Is(g.refusal(), may) || got.Load() != int64(2+i) {
					t.Errorf("may start: %v: %v, refused with %v, the remote has seen %d requests, want %d",
						may, err, g.refusal(), got.Load(), 2+i)
				}
			}
		})
	}
}

// through sends one request, whose gate answers with may.
func through(t *testing.T, transport *http.Transport, to string, may error) (*gate, error) {
	t.Helper()
	g := &gate{mayStart: func() error { return may }}
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: g.attach})
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return g, err
}

// A connection without the check carries no request. If a transport wraps connections in a way that
// this package does not know, it fails and sends nothing unchecked.
func TestO7NoRequestWithoutTheCheck(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var got atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		transport, err := gatedTransport(
			&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
			&dialguard.Guard{AllowPrivate: true, ConnectTimeout: time.Minute},
		) //nolint:gosec // this test's server
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(transport.CloseIdleConnections)
		transport.DialContext = (&net.Dialer{}).DialContext
		if g, err := through(t, transport, server.URL, nil); err == nil || !errors.Is(g.refusal(), errUngated) || got.Load() != 0 {
			t.Errorf("tls %v: %v, refused with %v, %d requests", secure, err, g.refusal(), got.Load())
		}
	}
}
