package kafkasource

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

// errClosed is what a dial gets after Run has returned.
var errClosed = fmt.Errorf("kafkasource: %w", kafkalog.ErrClosed)

// connections knows which connections kafka-go holds open. kafka-go closes one when the request on it has ended, and some not at all
// (a failed TLS handshake of its Dialer); it offers no way to interrupt a JoinGroup, which may block for as long as others take to
// let their partitions go. Whoever owns the sockets can do both.
type connections struct {
	dialer net.Dialer

	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
	empty  chan struct{} // closed once closed is set and open is empty
}

// connection reports when kafka-go has let go of it.
type connection struct {
	net.Conn
	of   *connections
	once sync.Once
}

func newConnections(timeout time.Duration) *connections {
	return &connections{dialer: net.Dialer{Timeout: timeout}, open: make(map[*connection]struct{}), empty: make(chan struct{})}
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := c.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = nc.Close()
		return nil, errClosed
	}
	conn := &connection{Conn: nc, of: c}
	c.open[conn] = struct{}{}
	return conn, nil
}

// Close is called by kafka-go.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		delete(c.of.open, c)
		c.of.signal()
	})
	return c.Conn.Close()
}

// signal must be called with the lock held.
func (c *connections) signal() {
	if c.closed && len(c.open) == 0 {
		select {
		case <-c.empty:
		default:
			close(c.empty)
		}
	}
}

// sever breaks all connections that are open: whoever waits for an answer on one gets an error.
func (c *connections) sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close()
	}
}

// close breaks all connections, refuses new ones, and waits until kafka-go has noticed, but no longer than patience: connections
// that it has forgotten without closing them never report.
func (c *connections) close(patience time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.signal()
	c.mu.Unlock()
	c.sever()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-c.empty:
	case <-t.C:
	}
}
