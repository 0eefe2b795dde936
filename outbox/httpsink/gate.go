package httpsink

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// errResend is the write error that a transport gets when it tries to send a request a second
	// time.
	errResend = errors.New("the connection broke off, and the transport tried to send again by itself")
	// errUngated: see attach.
	errUngated = errors.New("no call was made: the transport's connection has no check in it")
)

// gate lets one request out, once, and only while the call may still start. It is called in the
// connection's Write, after everything that takes time: waiting for a connection, connecting, the
// TLS handshake.
//
// It prevents two interleavings:
//
//   - The relay asks whether the call may start. The process is then stopped for hours (SIGSTOP, a
//     debugger), continues, and writes a request whose key the remote has forgotten by now.
//   - A request goes out on a kept connection. The remote applies it and dies before it answers.
//     The transport takes a keyed POST for idempotent and sends it again on another connection: two
//     requests for one attempt (Go issue 19943).
type gate struct {
	mayStart func() error

	mu       sync.Mutex
	admitted *gatedConn // the connection that has written
	err      error
}

// attach is the transport's hook for "this connection will carry the request"; nothing has been
// written yet. The check is below every layer of TLS: there are two layers if both the remote and a
// proxy are reached over TLS. A connection without the check is closed, so that the request cannot
// be written.
func (g *gate) attach(info httptrace.GotConnInfo) {
	for conn := info.Conn; ; {
		if c, ok := conn.(*gatedConn); ok {
			c.gate.Store(g)
			return
		}
		c, ok := conn.(interface{ NetConn() net.Conn }) // *tls.Conn
		if !ok {
			break
		}
		conn = c.NetConn()
	}
	g.mu.Lock()
	g.err = errUngated
	g.mu.Unlock()
	_ = info.Conn.Close()
}

func (g *gate) admit(c *gatedConn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.err != nil:
	case g.admitted == c:
		return nil
	case g.admitted != nil:
		g.err = errResend
	default:
		if g.err = g.mayStart(); g.err == nil {
			g.admitted = c
		}
	}
	return g.err
}

// refusal returns why the request was not let out, or was not let out a second time. It returns nil
// if the request was not refused.
func (g *gate) refusal() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// gatedConn asks the gate of the request that it carries before each write. Before the first
// request (a TLS handshake, a proxy's CONNECT) it has no gate.
type gatedConn struct {
	net.Conn
	gate atomic.Pointer[gate]
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if g := c.gate.Load(); g != nil {
		if err := g.admit(c); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// gatedTransport clones a transport and puts guard and gate into its connections. It uses HTTP/1.1
// only: a connection then carries one request at a time, so that each write belongs to one request.
// HTTP/2 also has its own rules for sending a request again.
func gatedTransport(t *http.Transport, g *addressGuard) (*http.Transport, error) {
	if t == nil {
		t = &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: 90 * time.Second}
	}
	if t.Dial != nil || t.DialTLS != nil { //nolint:staticcheck // refused because it is deprecated
		return nil, errors.New("Dial and DialTLS are not supported: use DialContext and DialTLSContext")
	}
	if isProxyFromEnvironment(t.Proxy) {
		return nil, errors.New("Proxy must not be http.ProxyFromEnvironment, which decides from outside where calls go: name the proxy, with http.ProxyURL, or set nil")
	}
	t = t.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.ForceAttemptHTTP2, t.TLSNextProto = false, nil
	if t.TLSClientConfig != nil {
		// A transport that has been used offers h2 in its configuration, and a server would accept
		// the offer.
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	t.DisableCompression = true // the answer must not grow
	if t.MaxResponseHeaderBytes == 0 {
		t.MaxResponseHeaderBytes = maxAnswer
	}
	t.DialContext = gateConns(g.guardDial(t.DialContext))
	if t.DialTLSContext != nil {
		t.DialTLSContext = gateConns(g.guardDial(t.DialTLSContext))
	}
	return t, nil
}

// isProxyFromEnvironment reports whether the proxy function is http.ProxyFromEnvironment. Functions
// cannot be compared, but the addresses of their code can.
func isProxyFromEnvironment(proxy func(*http.Request) (*url.URL, error)) bool {
	return proxy != nil && reflect.ValueOf(proxy).Pointer() == reflect.ValueOf(http.ProxyFromEnvironment).Pointer()
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

func gateConns(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &gatedConn{Conn: c}, nil
	}
}
