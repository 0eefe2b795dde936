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

// silentFor is how long a broker that did not answer is avoided: longer than the waits between
// attempts to join.
const silentFor = 10 * time.Second

// errClosed is the error of a dial after Run has returned.
var errClosed = fmt.Errorf("kafkasource: %w", kafkalog.ErrClosed)

// connections knows which connections kafka-go holds open. kafka-go closes a connection only when
// the request on it has ended, and some never (for example after a failed TLS handshake of its
// Dialer). It also offers no way to interrupt a JoinGroup, which may block for as long as other
// members take to let their partitions go. The owner of the sockets can do both.
//
// It also keeps kafka-go from a broker that accepts connections and answers nothing, for example
// because its host is frozen. kafka-go's ConsumerGroup asks the first broker of its list that
// accepts a connection for the coordinator, again and again, and would never try the second. So a
// broker that closed without an answer is not dialed for silentFor, if others are left.
type connections struct {
	dialer net.Dialer
	// The addresses that kafka-go may choose among; none if it moves on to others by itself.
	brokers []string

	mu   sync.Mutex
	open map[*trackedConn]struct{}
	// Broker address -> when it last closed a connection without an answer.
	silentSince map[string]time.Time
	closed      bool
	empty       chan struct{} // closed once closed is set and open is empty
}

// trackedConn reports when kafka-go has closed it.
type trackedConn struct {
	net.Conn
	connections *connections
	address     string
	answered    atomic.Bool
	once        sync.Once
}

func newConnections(timeout time.Duration, brokers ...string) *connections {
	return &connections{
		dialer: net.Dialer{Timeout: timeout}, brokers: brokers,
		open: make(map[*trackedConn]struct{}), silentSince: make(map[string]time.Time), empty: make(chan struct{}),
	}
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.isAvoided(address) {
		return nil, fmt.Errorf("kafkasource: broker %s accepted a connection and did not answer: another one is asked",
			address)
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
	conn := &trackedConn{Conn: nc, connections: c, address: address}
	c.open[conn] = struct{}{}
	return conn, nil
}

// isAvoided reports whether the broker was silent lately while another one of the list was not.
func (c *connections) isAvoided(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	quiet := func(a string) bool { at, ok := c.silentSince[a]; return ok && time.Since(at) < silentFor }
	return quiet(address) && slices.ContainsFunc(c.brokers, func(b string) bool { return !quiet(b) })
}

// Read records that the broker answers.
func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.answered.Store(true)
	}
	return n, err
}

// Close is called by kafka-go.
func (c *trackedConn) Close() error {
	c.once.Do(func() {
		c.connections.mu.Lock()
		defer c.connections.mu.Unlock()
		delete(c.connections.open, c)
		if c.answered.Load() {
			delete(c.connections.silentSince, c.address)
		} else {
			c.connections.silentSince[c.address] = time.Now()
		}
		c.connections.signalEmpty()
	})
	return c.Conn.Close()
}

// signalEmpty must be called with the lock held.
func (c *connections) signalEmpty() {
	if c.closed && len(c.open) == 0 {
		select {
		case <-c.empty:
		default:
			close(c.empty)
		}
	}
}

// closeAll breaks all open connections. A read that waits for an answer gets an error.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close()
	}
}

// close breaks all connections, refuses new ones, and waits until kafka-go has noticed, but at most
// for patience: connections that kafka-go has forgotten without closing them never report.
func (c *connections) close(patience time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.signalEmpty()
	c.mu.Unlock()
	c.closeAll()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-c.empty:
	case <-t.C:
	}
}
