package kafkasource

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

// silentFor is how long a broker without an answer is left alone: longer than the waits between attempts to join.
const silentFor = 10 * time.Second

// errClosed is what a dial gets after Run has returned.
var errClosed = fmt.Errorf("kafkasource: %w", kafkalog.ErrClosed)

// connections knows which connections kafka-go holds open. kafka-go closes one when the request on it has ended, and some not at all
// (a failed TLS handshake of its Dialer); it offers no way to interrupt a JoinGroup, which may block for as long as others take to
// let their partitions go. Whoever owns the sockets can do both.
//
// It also keeps kafka-go from a broker that accepts connections and answers nothing, for example because its host is frozen. kafka-go's
// ConsumerGroup asks the first broker of its list that accepts a connection for the coordinator, again and again; it would never
// come to the second. So a broker that closed without an answer is not dialed for silentFor, if others are left.
type connections struct {
	dialer  net.Dialer
	brokers []string // the addresses that kafka-go may choose among; none where it goes on to others by itself

	mu     sync.Mutex
	open   map[*connection]struct{}
	silent map[string]time.Time // broker address -> when a connection to it was given up without an answer
	closed bool
	empty  chan struct{} // closed once closed is set and open is empty
}

// connection reports when kafka-go has let go of it.
type connection struct {
	net.Conn
	of       *connections
	address  string
	answered atomic.Bool
	once     sync.Once
}

func newConnections(timeout time.Duration, brokers ...string) *connections {
	return &connections{
		dialer: net.Dialer{Timeout: timeout}, brokers: brokers,
		open: make(map[*connection]struct{}), silent: make(map[string]time.Time), empty: make(chan struct{}),
	}
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.avoids(address) {
		return nil, fmt.Errorf("kafkasource: broker %s accepted a connection and did not answer: another one is asked", address)
	}
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
	conn := &connection{Conn: nc, of: c, address: address}
	c.open[conn] = struct{}{}
	return conn, nil
}

// avoids says whether a broker was silent a moment ago, while another one of the list was not.
func (c *connections) avoids(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	quiet := func(a string) bool { at, ok := c.silent[a]; return ok && time.Since(at) < silentFor }
	return quiet(address) && slices.ContainsFunc(c.brokers, func(b string) bool { return !quiet(b) })
}

// Read notes that the broker answers.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.answered.Store(true)
	}
	return n, err
}

// Close is called by kafka-go.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		delete(c.of.open, c)
		if c.answered.Load() {
			delete(c.of.silent, c.address)
		} else {
			c.of.silent[c.address] = time.Now()
		}
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
