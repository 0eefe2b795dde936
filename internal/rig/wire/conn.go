package wire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// conn is one connection: the client reads and writes it, and the wire passes on what it allows.
type conn struct {
	net.Conn // to the server
	wire     *Wire
	number   int
	toClient clientBuffer

	// Used by Write alone.
	statements map[string]string // SQL by the name of the prepared statement
	lastSQL    string            // the statement that was sent last
	partial    []byte            // a message whose end has not been written yet

	started atomic.Bool // the start-up message, which has no type, was sent

	mu                sync.Mutex
	progress          *sync.Cond
	expected          int    // how many times the server must still report ReadyForQuery, from the start
	answered          int    // how many times it did
	encryptionReplies int    // requests for encryption whose answer, one byte, has not come
	pid               uint32 // of the server's process
	breaking          bool   // Unheard: the connection breaks when the round trip is over
	breakAt           int    // the value of answered at which it breaks; 0: not known yet
	detached          bool   // the client is cut off, and the session lives on
	holding           bool   // what the client sends is not passed on
	discarding        bool   // and never will be
	closeOnRelease    bool   // Dropped: the session ends at Release
	held              []byte // what Release sends
	delivered         bool   // held was written to a session that was alive
	clientClosed      bool
	serverClosed      bool
}

// Write passes messages on, and applies the action of each.
func (c *conn) Write(b []byte) (int, error) {
	data := append(c.partial, b...)
	c.partial = nil
	for at := 0; ; {
		n := c.messageLength(data[at:])
		if n == 0 {
			c.partial = append([]byte(nil), data[at:]...)
			return len(b), c.forward(data[:at])
		}
		m := c.parseMessage(data[at : at+n])
		switch action := c.choose(m); action {
		case Pass:
			c.expectAnswer(m)
			at += n
			continue
		case Unheard:
			c.mu.Lock()
			c.breaking = true
			c.mu.Unlock()
			c.toClient.withhold(true)
			c.expectAnswer(m)
			at += n
			continue
		case Mute:
			c.mu.Lock()
			c.detached = true
			c.mu.Unlock()
			c.toClient.withhold(true)
			if err := c.forward(data); err != nil {
				return 0, err
			}
			c.expectAnswers(m, data[at+n:])
			c.mu.Lock()
			c.holding = true
			c.discarding = true
			c.mu.Unlock()
			return len(b), nil
		case Stalled:
			if err := c.forward(data[:at]); err != nil {
				return 0, err
			}
			<-c.wire.releaseGate()
			c.expectAnswer(m)
			data = data[at:]
			at = n
			continue
		case Unsent:
			_ = c.forward(data[:at])
			c.cut()
			return 0, ErrCut
		default: // Held, Dropped, Silent, Late
			if err := c.forward(data[:at]); err != nil {
				return 0, err
			}
			if c.hold(action, data[at:]); action == Held || action == Dropped {
				return 0, ErrCut
			}
			return len(b), nil
		}
	}
}

// hold cuts the client off from its session, and keeps what it has sent back.
func (c *conn) hold(action Action, data []byte) {
	// The client's side comes first: once the connection holds something, a Release may deliver it.
	c.toClient.withhold(true)
	if action == Held || action == Dropped {
		c.toClient.fail(ErrCut)
	}
	c.mu.Lock()
	c.detached = true
	c.holding = true
	c.discarding = action == Dropped || action == Silent
	c.closeOnRelease = action == Dropped
	c.held = append([]byte(nil), data...)
	c.mu.Unlock()
	c.wire.mu.Lock()
	c.wire.holding = true
	c.wire.mu.Unlock()
	if action == Silent {
		_ = c.Conn.Close() // as if its host had lost power
	}
	if c.wire.isReleased() {
		c.sendHeld() // Release has run already and does not run again
	}
}

// choose returns the action for a message.
func (c *conn) choose(m Message) Action {
	c.mu.Lock()
	holding := c.holding
	breaking := c.breaking
	c.mu.Unlock()
	if holding || breaking {
		return Pass // a connection gets one fault
	}
	c.wire.mu.Lock()
	held := c.wire.holding
	c.wire.mu.Unlock()
	if m.Kind == Cancel && held {
		return Unsent // it would race with what is kept back
	}
	if c.wire.At == nil {
		return Pass
	}
	c.wire.choosing.Lock()
	defer c.wire.choosing.Unlock()
	return c.wire.At(m)
}

// forward sends bytes to the server, or holds them.
func (c *conn) forward(b []byte) error {
	c.mu.Lock()
	if c.holding {
		if !c.discarding {
			c.held = append(c.held, b...)
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

// expectAnswer counts the answers that the server must send. A message that is held is counted when
// it is sent.
func (c *conn) expectAnswer(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holding {
		c.countExpected(m.Kind)
	}
}

func (c *conn) countExpected(k Kind) {
	switch k {
	case Startup, Query, Sync:
		c.expected++
		if c.breaking && c.breakAt == 0 {
			c.breakAt = c.expected
		}
	}
}

// expectAnswers counts for a message and for those that follow it.
func (c *conn) expectAnswers(m Message, following []byte) {
	c.expectAnswer(m)
	for {
		n := c.messageLength(following)
		if n == 0 {
			c.partial = append([]byte(nil), following...)
			return
		}
		c.expectAnswer(c.parseMessage(following[:n]))
		following = following[n:]
	}
}

// sendHeld sends what was held, unless it is to be discarded.
func (c *conn) sendHeld() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holding {
		return
	}
	if c.closeOnRelease {
		_ = c.Conn.Close()
	}
	if c.discarding {
		return
	}
	c.holding = false
	held := c.held
	c.held = nil
	if c.serverClosed {
		return
	}
	for rest := held; ; {
		n := c.messageLength(rest)
		if n == 0 {
			break
		}
		if c.started.Load() {
			c.countExpected(kindOf(rest[0]))
		} else {
			c.countExpected(Startup)
		}
		rest = rest[n:]
	}
	if _, err := c.Conn.Write(held); err == nil {
		c.delivered = true
	}
	c.toClient.withhold(false)
}

// waitAnswered waits until the server has answered everything. If the client has closed its end, it
// then closes the server's. It reports whether held bytes were written to a live session.
func (c *conn) waitAnswered(ctx context.Context) (bool, error) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.progress.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.detached || c.discarding {
		return false, nil
	}
	for c.answered < c.expected && !c.serverClosed && ctx.Err() == nil {
		c.progress.Wait()
	}
	if c.clientClosed {
		_ = c.Conn.Close()
		for !c.serverClosed && ctx.Err() == nil {
			c.progress.Wait()
		}
	}
	return c.delivered, ctx.Err()
}

// cut ends both sides.
func (c *conn) cut() {
	c.toClient.fail(ErrCut)
	_ = c.Conn.Close()
}
