package httpsink

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
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
//     requests for one attempt (Go issue 19943, O6, O7).
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

// sent reports whether the request was let out.
func (g *gate) sent() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admitted != nil
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

// maxAnswer is how many bytes of an answer are read. If a shorter answer breaks off, it counts as
// no answer. A longer one is cut off and classified by its status.
const maxAnswer = 64 << 10

// gatedTransport clones a transport and puts guard and gate into its connections. It uses HTTP/1.1
// only: a connection then carries one request at a time, so that each write belongs to one request.
// HTTP/2 also has its own rules for sending a request again.
func gatedTransport(t *http.Transport, g *dialguard.Guard) (*http.Transport, error) {
	if t == nil {
		t = &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: 90 * time.Second}
	}
	t, err := g.Transport(t, maxAnswer)
	if err != nil {
		return nil, err
	}
	t.DialContext = gateConns(t.DialContext)
	if t.DialTLSContext != nil {
		t.DialTLSContext = gateConns(t.DialTLSContext)
	}
	return t, nil
}

func gateConns(dial dialguard.DialFunc) dialguard.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &gatedConn{Conn: c}, nil
	}
}
