package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
)

// ErrCut is what a client gets from a connection that was cut.
var ErrCut = errors.New("connection cut by the test")

var errEncrypted = errors.New("wire: the server encrypts this connection, so nothing of it can be read: use sslmode=disable")

// Wire controls all connections that are dialled through it. The zero value lets everything
// pass. Its fields are set before the first connection is dialled; its methods may be called at any
// time from any goroutine.
type Wire struct {
	// At returns the action for a message before the server gets it. Calls come one at a time.
	At func(Message) Action
	// Answered is called with each answer, whether the client hears it or not. Calls come one at a
	// time for each connection.
	Answered func(Answer)

	choosing sync.Mutex // one call of At at a time

	mu       sync.Mutex
	conns    []*conn
	holding  bool // a connection holds something: requests to cancel are not sent
	released chan struct{}
	readers  sync.WaitGroup
	closed   bool
}

// DialFunc is the type of pgconn.Config.DialFunc.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dial returns a dial function whose connections go through the wire. If dial is nil, a
// net.Dialer dials.
func (w *Wire) Dial(dial DialFunc) DialFunc {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		server, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c, ok := w.wrap(server)
		if !ok {
			_ = server.Close()
			return nil, fmt.Errorf("wire: %w", net.ErrClosed)
		}
		return c, nil
	}
}

// wrap returns the client's end, or false if the wire is closed: nothing would end it.
func (w *Wire) wrap(server net.Conn) (*conn, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, false
	}
	c := &conn{Conn: server, wire: w, number: len(w.conns) + 1, statements: map[string]string{}}
	c.toClient.changed = sync.NewCond(&c.toClient.mu)
	c.progress = sync.NewCond(&c.mu)
	w.conns = append(w.conns, c)
	w.readers.Go(c.readServer)
	return c, true
}

// Statement returns an At that counts how often a statement is run, from 1 on over all connections,
// and lets everything else pass.
func Statement(sql string, at func(n int) Action) func(Message) Action {
	n := 0
	return func(m Message) Action {
		if m.Kind != Bind && m.Kind != Query || !strings.EqualFold(m.SQL, sql) {
			return Pass
		}
		n++
		return at(n)
	}
}

// releaseGate returns the channel that Release closes.
func (w *Wire) releaseGate() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released == nil {
		w.released = make(chan struct{})
	}
	return w.released
}

// isReleased reports whether Release was called: then nothing is held any longer.
func (w *Wire) isReleased() bool {
	select {
	case <-w.releaseGate():
		return true
	default:
		return false
	}
}

// Release sends what was held, and from then on sends at once what would be held. It does not wait.
func (w *Wire) Release() {
	gate := w.releaseGate()
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
	for _, c := range w.conns {
		c.sendHeld()
	}
}

// Deliver is Release, and then waits until the server has answered everything or has ended the
// sessions. alive is how many sessions could still take the bytes: a server ends one that has been
// idle in its transaction for too long.
func (w *Wire) Deliver(ctx context.Context) (alive int, err error) {
	w.Release()
	for _, c := range w.all() {
		delivered, err := c.waitAnswered(ctx)
		if err != nil {
			return alive, err
		}
		if delivered {
			alive++
		}
	}
	return alive, nil
}

// Pending returns the process ids of the server's sessions whose client has been cut off from them
// while they live on.
func (w *Wire) Pending() (pids []uint32) {
	for _, c := range w.all() {
		c.mu.Lock()
		if c.detached && !c.serverClosed {
			pids = append(pids, c.pid)
		}
		c.mu.Unlock()
	}
	return pids
}

// Close ends all connections, on both sides, and returns when all their goroutines have ended. From
// then on nothing can be dialled: for example pgx asks for a cancel in a goroutine of its own.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.Release()
	for _, c := range w.all() {
		c.cut()
	}
	w.readers.Wait()
}

func (w *Wire) all() []*conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*conn(nil), w.conns...)
}
