package pgtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Wire stands between a pool and its server. It reads the messages that the client sends, and does what a test asks for at the message
// that runs a statement: however statements are sent (prepared, unnamed or simple), and whatever travels with them.
type Wire struct {
	// Statement is the one that it waits for.
	Statement string
	// At says what happens at the n-th time, counted over all connections from 1 on.
	At func(n int32) Cut

	// Seen counts the times that the statement was sent, and Cuts those at which something happened.
	Seen, Cuts atomic.Int32
	open       sync.WaitGroup // connections that are held
	away       atomic.Bool    // since the first Held or Dropped: requests to cancel do not get through any more
}

// Cut is what happens at a message.
type Cut int

// Cuts.
const (
	Pass    Cut = iota
	Unsent      // what came before reaches the server, the statement does not, and the connection breaks
	Unheard     // the server carries the statement out, and the connection breaks before the client hears of it
	// The client sees the connection break; the server gets the statement when the channel of hold is closed. The request to cancel that pgx
	// sends then is lost: it would race with what came before the statement, and end the transaction.
	Held
	Dropped // like Held, but it never gets it
	Stalled // the statement reaches the server when the channel of hold is closed; nothing breaks
	Silent  // neither the statement nor anything behind it reaches the server, and nothing breaks: as if its host had lost power
)

// cancelRequest stands where a start-up message has its protocol (PostgreSQL, Message Formats, CancelRequest).
const cancelRequest = 1234<<16 | 5678

var errCut = errors.New("connection cut by the test")

// Wired is a pool whose connections go through a wire. hold is for Held, Dropped and Stalled.
func Wired(t testing.TB, base *pgxpool.Pool, mode pgx.QueryExecMode, w *Wire, hold <-chan struct{}) *pgxpool.Pool {
	t.Helper()
	cfg := base.Config().Copy()
	cfg.ConnConfig.DefaultQueryExecMode = mode
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wireConn{Conn: conn, w: w, hold: hold, statements: map[string]string{}}, nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		w.open.Wait()
	})
	return pool
}

type wireConn struct {
	net.Conn
	w    *Wire
	hold <-chan struct{}

	started    bool              // the start-up message, which has no type, is through
	statements map[string]string // by the name of the prepared statement
	rest       []byte            // of a message whose end has not been written yet
	deaf       bool              // answers are for nobody
	mute       bool              // nothing gets through any more
	gone       bool              // the socket belongs to whoever holds it
}

// Write passes whole messages on, up to the one that something happens at.
func (c *wireConn) Write(b []byte) (int, error) {
	if c.gone {
		return 0, errCut
	}
	if c.mute {
		if bytes.HasPrefix(b, []byte{'X', 0, 0, 0, 4}) { // Terminate: pgx has given it up, and would wait for an end that nobody tells
			_ = c.Conn.Close()
		}
		return len(b), nil
	}
	data := append(c.rest, b...)
	if !c.started && c.w.away.Load() && len(data) >= 8 && binary.BigEndian.Uint32(data[4:]) == cancelRequest {
		return 0, errCut
	}
	at := 0
	for at < len(data) {
		n := c.length(data[at:])
		if n == 0 {
			break
		}
		sql, runs := c.read(data[at : at+n])
		what := Pass
		if runs && strings.EqualFold(sql, c.w.Statement) {
			what = c.w.At(c.w.Seen.Add(1))
		}
		if what != Pass {
			c.w.Cuts.Add(1)
			if done, err := c.cut(what, data[:at], data[at:]); done {
				if err == nil {
					return len(b), nil
				}
				return 0, err
			}
		}
		at += n
	}
	c.rest = append([]byte(nil), data[at:]...)
	if _, err := c.Conn.Write(data[:at]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// cut does what it says, and reports whether the write ends here.
func (c *wireConn) cut(what Cut, before, from []byte) (bool, error) {
	switch what {
	case Unheard:
		c.deaf = true
		return false, nil
	case Stalled:
		<-c.hold
		return false, nil
	case Silent:
		c.mute = true
		c.w.away.Store(true)
		_, err := c.Conn.Write(before)
		return true, err
	}
	if _, err := c.Conn.Write(before); err != nil {
		return true, err
	}
	if what == Unsent {
		_ = c.Conn.Close()
		return true, errCut
	}
	c.gone = true
	c.w.away.Store(true)
	rest := append([]byte(nil), from...)
	c.w.open.Go(func() {
		<-c.hold
		if what == Held {
			_, _ = c.Conn.Write(rest)
			_ = c.answered()
		}
		_ = c.Conn.Close()
	})
	return true, errCut
}

// length is how many bytes the first message has, 0 if not all of it is there.
func (c *wireConn) length(b []byte) int {
	head := 1 // its type
	if !c.started {
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

// read looks at one message, and returns the statement that it makes the server run, if it does.
func (c *wireConn) read(m []byte) (sql string, runs bool) {
	if !c.started {
		c.started = binary.BigEndian.Uint32(m[4:]) == 3<<16 // not a request for TLS
		return "", false
	}
	text := func(b []byte) (string, []byte) {
		s, rest, _ := bytes.Cut(b, []byte{0})
		return string(s), rest
	}
	switch body := m[5:]; m[0] {
	case 'P': // Parse: name, statement
		name, rest := text(body)
		c.statements[name], _ = text(rest)
	case 'B': // Bind: portal, name
		_, rest := text(body)
		name, _ := text(rest)
		return c.statements[name], true
	case 'Q':
		sql, _ = text(body)
		return sql, true
	}
	return "", false
}

func (c *wireConn) Read(b []byte) (int, error) {
	if c.gone {
		return 0, errCut
	}
	if !c.deaf {
		return c.Conn.Read(b)
	}
	err := c.answered()
	_ = c.Conn.Close()
	return 0, errors.Join(errCut, err)
}

// answered reads until the server has said that the statement is done, and waits outside of a transaction.
func (c *wireConn) answered() error {
	var all []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(all, []byte{'Z', 0, 0, 0, 5, 'I'}) {
		n, err := c.Conn.Read(buf)
		if err != nil {
			return err
		}
		all = append(all, buf[:n]...)
	}
	return nil
}

func (c *wireConn) Close() error {
	if c.gone {
		return nil
	}
	return c.Conn.Close()
}
