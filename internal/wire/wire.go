package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
)

// Action is what happens at a message; see the package's documentation.
type Action int

// Actions.
const (
	Pass Action = iota
	Unsent
	Unheard
	Held
	Dropped
	Stalled
	Mute
	Silent
	Late
)

var actionNames = [...]string{"pass", "unsent", "unheard", "held", "dropped", "stalled", "mute", "silent", "late"}

func (a Action) String() string { return actionNames[a] }

// Kind is what kind of message a client sends.
type Kind string

// Kinds. Every message that is none of the others is Other: Describe, Execute, Close, Flush,
// passwords, COPY data.
const (
	Startup   Kind = "startup"
	Cancel    Kind = "cancel"
	Parse     Kind = "parse"
	Bind      Kind = "bind"
	Query     Kind = "query"
	Sync      Kind = "sync"
	Terminate Kind = "terminate"
	Other     Kind = "other"
)

// Message is one message that a client sends.
type Message struct {
	Conn int // number of its connection, from 1 on, in the order of dialling
	Kind Kind
	// SQL is the statement that is prepared (Parse) or run (Bind, Query). Of a Sync it is the last
	// one of the round trip that the Sync ends. Empty otherwise.
	SQL string
}

// Answer is one message of the server's that says how a statement ended.
type Answer struct {
	Conn int
	// Text is the command's tag, for example COMMIT, or "ERROR" with the SQLSTATE and the message.
	Text string
}

// ErrCut is what a client gets from a connection that was cut.
var ErrCut = errors.New("connection cut by the test")

var errEncrypted = errors.New("wire: the server encrypts this connection, so nothing of it can be read: use sslmode=disable")

// Wire is the hand on all connections that are dialled through it. The zero value lets everything
// pass. Its fields are set before the first connection is dialled; its methods may be called at any
// time from any goroutine.
type Wire struct {
	// At says what happens at a message, before the server gets it. Calls come one at a time.
	At func(Message) Action
	// Answered is called with each answer, whether the client hears it or not. Calls come one at a
	// time for each connection.
	Answered func(Answer)

	at sync.Mutex // one call of At at a time

	mu    sync.Mutex
	conns []*conn
	// Since the first message that was kept back: requests to cancel do not get through.
	away      bool
	delivered chan struct{}
	pumps     sync.WaitGroup
}

// DialFunc is pgconn's.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dial returns a dial function whose connections go through the wire. Nil: dial as net.Dialer does.
func (w *Wire) Dial(dial DialFunc) DialFunc {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		server, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return w.wrap(server), nil
	}
}

func (w *Wire) wrap(server net.Conn) *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &conn{Conn: server, w: w, nr: len(w.conns) + 1, statements: map[string]string{}}
	c.in.changed = sync.NewCond(&c.in.mu)
	c.progress = sync.NewCond(&c.mu)
	w.conns = append(w.conns, c)
	w.pumps.Go(c.pump)
	return c
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

// gate is closed when what is kept back may go on.
func (w *Wire) gate() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.delivered == nil {
		w.delivered = make(chan struct{})
	}
	return w.delivered
}

// released says whether what is kept back goes at once.
func (w *Wire) released() bool {
	select {
	case <-w.gate():
		return true
	default:
		return false
	}
}

// Release lets go what was kept back, and what is kept back from now on goes at once. It does not
// wait.
func (w *Wire) Release() {
	gate := w.gate()
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
	for _, c := range w.conns {
		c.deliver()
	}
}

// Deliver releases what was kept back, and returns when the server has answered all of it or has
// ended the sessions. alive is how many sessions were still there to take the bytes: a server ends
// one that has been idle in its transaction for too long.
func (w *Wire) Deliver(ctx context.Context) (alive int, err error) {
	w.Release()
	for _, c := range w.all() {
		took, err := c.answers(ctx)
		if err != nil {
			return alive, err
		}
		if took {
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
		if c.apart && !c.ended {
			pids = append(pids, c.pid)
		}
		c.mu.Unlock()
	}
	return pids
}

// Close ends all connections, on both sides, and returns when nothing of them is left.
func (w *Wire) Close() {
	w.Release()
	for _, c := range w.all() {
		c.cut()
	}
	w.pumps.Wait()
}

func (w *Wire) all() []*conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*conn(nil), w.conns...)
}

// Codes that stand where a start-up message has its protocol (PostgreSQL, Message Formats).
const (
	protocol3     = 3
	cancelRequest = 1234<<16 | 5678
	sslRequest    = 1234<<16 | 5679
	gssRequest    = 1234<<16 | 5680
)

// conn is the client's end.
type conn struct {
	net.Conn // to the server
	w        *Wire
	nr       int
	in       inbox // what the client has to read

	// Used by Write alone.
	statements map[string]string // by the name of the prepared statement
	last       string            // statement that was sent last
	rest       []byte            // of a message whose end has not been written yet

	started atomic.Bool // the start-up message, which has no type, is through

	mu       sync.Mutex
	progress *sync.Cond
	asked    int    // answers that the server owes for what it got
	answered int    // ReadyForQuery
	bare     int    // answers of one byte that are still to come: to requests for encryption
	pid      uint32 // of the server's process
	// The client hears nothing, and the connection breaks when the round trip is over.
	deaf    bool
	breakAt int  // 0: not known yet
	apart   bool // the client is cut off, and the session lives on
	keeps   bool // what the client sends is kept back
	drops   bool // ... for good
	leaves  bool // the session ends when what was kept back is released
	kept    []byte
	took    bool // what was kept back was taken by a session that was there
	closed  bool // the client has closed its end
	ended   bool // the server's end
}

// Write passes messages on, up to the one that something happens at.
func (c *conn) Write(b []byte) (int, error) {
	data := append(c.rest, b...)
	c.rest = nil
	for at := 0; ; {
		n := c.length(data[at:])
		if n == 0 {
			c.rest = append([]byte(nil), data[at:]...)
			return len(b), c.pass(data[:at])
		}
		m := c.read(data[at : at+n])
		switch what := c.decide(m); what {
		case Pass:
			c.ask(m)
			at += n
			continue
		case Unheard:
			c.mu.Lock()
			c.deaf = true
			c.mu.Unlock()
			c.in.mute(true)
			c.ask(m)
			at += n
			continue
		case Mute:
			c.mu.Lock()
			c.apart = true
			c.mu.Unlock()
			c.in.mute(true)
			if err := c.pass(data); err != nil {
				return 0, err
			}
			c.askAll(m, data[at+n:])
			c.mu.Lock()
			c.keeps, c.drops = true, true
			c.mu.Unlock()
			return len(b), nil
		case Stalled:
			if err := c.pass(data[:at]); err != nil {
				return 0, err
			}
			<-c.w.gate()
			c.ask(m)
			data, at = data[at:], n
			continue
		case Unsent:
			_ = c.pass(data[:at])
			c.cut()
			return 0, ErrCut
		default: // Held, Dropped, Silent, Late
			if err := c.pass(data[:at]); err != nil {
				return 0, err
			}
			// What the client sees comes first: from the moment that the connection keeps
			// something, a Release may deliver it.
			c.in.mute(true)
			breaks := what == Held || what == Dropped
			if breaks {
				c.in.end(ErrCut)
			}
			c.mu.Lock()
			c.apart, c.keeps, c.drops, c.leaves = true, true, what == Dropped || what == Silent, what == Dropped
			c.kept = append([]byte(nil), data[at:]...)
			c.mu.Unlock()
			c.w.mu.Lock()
			c.w.away = true
			c.w.mu.Unlock()
			if what == Silent {
				_ = c.Conn.Close() // as if its host had lost power
			}
			if c.w.released() {
				c.deliver() // Release has been here already, and does not come back
			}
			if breaks {
				return 0, ErrCut
			}
			return len(b), nil
		}
	}
}

// decide asks what happens at a message.
func (c *conn) decide(m Message) Action {
	c.mu.Lock()
	keeps, deaf := c.keeps, c.deaf
	c.mu.Unlock()
	if keeps || deaf {
		return Pass // one thing happens to a connection
	}
	c.w.mu.Lock()
	away := c.w.away
	c.w.mu.Unlock()
	if m.Kind == Cancel && away {
		return Unsent // it would race with what is kept back
	}
	if c.w.At == nil {
		return Pass
	}
	c.w.at.Lock()
	defer c.w.at.Unlock()
	return c.w.At(m)
}

// pass gives bytes to the server, or keeps them.
func (c *conn) pass(b []byte) error {
	c.mu.Lock()
	if c.keeps {
		if !c.drops {
			c.kept = append(c.kept, b...)
		}
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	if len(b) == 0 {
		return nil
	}
	_, err := c.Conn.Write(b)
	return err
}

// ask counts the answers that the server owes, unless the message is kept back: then it is counted
// when it is delivered.
func (c *conn) ask(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.keeps {
		c.owe(m.Kind)
	}
}

func (c *conn) owe(k Kind) {
	switch k {
	case Startup, Query, Sync:
		c.asked++
		if c.deaf && c.breakAt == 0 {
			c.breakAt = c.asked
		}
	}
}

// askAll counts for a message, and for those behind it.
func (c *conn) askAll(m Message, behind []byte) {
	c.ask(m)
	for {
		n := c.length(behind)
		if n == 0 {
			c.rest = append([]byte(nil), behind...)
			return
		}
		c.ask(c.read(behind[:n]))
		behind = behind[n:]
	}
}

// deliver sends what was kept back.
func (c *conn) deliver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.keeps {
		return
	}
	if c.leaves {
		_ = c.Conn.Close()
	}
	if c.drops {
		return
	}
	c.keeps = false
	kept := c.kept
	c.kept = nil
	if c.ended {
		return
	}
	for rest := kept; ; {
		n := length(c.started.Load(), rest)
		if n == 0 {
			break
		}
		if c.started.Load() {
			c.owe(kindOf(rest[0]))
		} else {
			c.owe(Startup)
		}
		rest = rest[n:]
	}
	if _, err := c.Conn.Write(kept); err == nil {
		c.took = true
	}
	c.in.mute(false)
}

// answers waits until the server has answered everything, and then closes its end if the client has
// closed the other one. It reports whether something that was kept back was taken.
func (c *conn) answers(ctx context.Context) (bool, error) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.progress.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.apart || c.drops {
		return false, nil
	}
	for c.answered < c.asked && !c.ended && ctx.Err() == nil {
		c.progress.Wait()
	}
	if c.closed {
		_ = c.Conn.Close()
		for !c.ended && ctx.Err() == nil {
			c.progress.Wait()
		}
	}
	return c.took, ctx.Err()
}

// length is how many bytes the first message has, 0 if not all of it is there.
func (c *conn) length(b []byte) int { return length(c.started.Load(), b) }

func length(started bool, b []byte) int {
	head := 1 // its type
	if !started {
		head = 0
	}
	if len(b) < head+4 {
		return 0
	}
	if n := head + int(binary.BigEndian.Uint32(b[head:])); n <= len(b) {
		return n
	}
	return 0
}

func kindOf(typ byte) Kind {
	switch typ {
	case 'P':
		return Parse
	case 'B':
		return Bind
	case 'Q':
		return Query
	case 'S':
		return Sync
	case 'X':
		return Terminate
	}
	return Other
}

// read looks at one message of the client's.
func (c *conn) read(b []byte) Message {
	m := Message{Conn: c.nr}
	if !c.started.Load() {
		m.Kind = Other
		switch code := binary.BigEndian.Uint32(b[4:]); {
		case code == cancelRequest:
			m.Kind = Cancel
		case code == sslRequest, code == gssRequest:
			c.mu.Lock()
			c.bare++
			c.mu.Unlock()
		case code>>16 == protocol3:
			m.Kind = Startup
			c.started.Store(true)
		}
		return m
	}
	text := func(b []byte) (string, []byte) {
		s, rest, _ := bytes.Cut(b, []byte{0})
		return string(s), rest
	}
	m.Kind = kindOf(b[0])
	switch body := b[5:]; m.Kind {
	case Parse: // name, statement
		name, rest := text(body)
		m.SQL, _ = text(rest)
		c.statements[name], c.last = m.SQL, m.SQL
	case Bind: // portal, name
		_, rest := text(body)
		name, _ := text(rest)
		m.SQL = c.statements[name]
		c.last = m.SQL
	case Query:
		m.SQL, _ = text(body)
		c.last = m.SQL
	case Sync:
		m.SQL = c.last
	}
	return m
}

// cut ends both sides.
func (c *conn) cut() {
	c.in.end(ErrCut)
	_ = c.Conn.Close()
}
