package wire

import (
	"encoding/binary"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// pump reads what the server says, until its end is closed.
func (c *conn) pump() {
	var rest []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := c.Conn.Read(buf)
		if n > 0 {
			got := buf[:n]
			c.mu.Lock()
			for c.bare > 0 && len(got) > 0 {
				c.bare--
				if got[0] == 'S' || got[0] == 'G' {
					c.in.end(errEncrypted)
					_ = c.Conn.Close()
				}
				c.in.put(got[:1])
				got = got[1:]
			}
			c.mu.Unlock()
			rest = c.look(append(rest, got...))
			c.in.put(got)
			c.hear()
		}
		if err != nil {
			_ = c.Conn.Close()
			c.mu.Lock()
			c.ended = true
			apart := c.apart
			c.progress.Broadcast()
			c.mu.Unlock()
			if !apart { // the client of a connection that is apart does not learn of it
				c.in.end(err)
			}
			return
		}
	}
}

// hear breaks the connection of a client that is to see it break, when the round trip is over.
func (c *conn) hear() {
	c.mu.Lock()
	over := c.deaf && c.breakAt > 0 && c.answered >= c.breakAt
	c.mu.Unlock()
	if over {
		c.cut()
	}
}

// look goes through whole messages of the server's, and returns what is left.
func (c *conn) look(data []byte) []byte {
	for len(data) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(data[1:]))
		if n > len(data) {
			break
		}
		c.lookAt(data[0], data[5:n])
		data = data[n:]
	}
	return append([]byte(nil), data...)
}

func (c *conn) lookAt(typ byte, body []byte) {
	switch typ {
	case 'K': // BackendKeyData
		c.mu.Lock()
		c.pid = binary.BigEndian.Uint32(body)
		c.mu.Unlock()
	case 'C': // CommandComplete
		c.tell(strings.TrimRight(string(body), "\x00"))
	case 'E': // ErrorResponse
		fields := map[byte]string{}
		for _, f := range strings.Split(string(body), "\x00") {
			if f != "" {
				fields[f[0]] = f[1:]
			}
		}
		c.tell("ERROR " + fields['C'] + " " + fields['M'])
	case 'Z': // ReadyForQuery
		c.mu.Lock()
		c.answered++
		c.progress.Broadcast()
		c.mu.Unlock()
	}
}

func (c *conn) tell(text string) {
	if c.w.Answered != nil {
		c.w.Answered(Answer{Conn: c.nr, Text: text})
	}
}

func (c *conn) Read(b []byte) (int, error) { return c.in.read(b) }

// Close closes the client's end, and the server's, if the network is there to tell it.
func (c *conn) Close() error {
	c.in.end(net.ErrClosed)
	c.mu.Lock()
	c.closed = true
	apart := c.apart
	c.progress.Broadcast()
	c.mu.Unlock()
	if apart {
		return nil
	}
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error {
	c.in.bound(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.bound(t)
	return nil
}

// inbox is what a client has to read, with a deadline as a net.Conn has it.
type inbox struct {
	mu       sync.Mutex
	changed  *sync.Cond
	data     []byte
	err      error // when the data are read
	muted    bool
	deadline time.Time
	timer    *time.Timer
}

func (x *inbox) put(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.data = append(x.data, b...)
	}
	x.changed.Broadcast()
}

// mute makes the client wait, whatever there is.
func (x *inbox) mute(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.muted = on
	x.changed.Broadcast()
}

// end makes the client get an error. The first one counts.
func (x *inbox) end(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.muted {
		x.data, x.muted = nil, false
	}
	if x.err == nil {
		x.err = err
	}
	x.changed.Broadcast()
}

func (x *inbox) bound(t time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.deadline = t
	if d := time.Until(t); !t.IsZero() && d > 0 {
		x.timer = time.AfterFunc(d, func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.changed.Broadcast()
		})
	}
	x.changed.Broadcast()
}

func (x *inbox) read(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		switch {
		case !x.deadline.IsZero() && !time.Now().Before(x.deadline):
			return 0, os.ErrDeadlineExceeded
		case !x.muted && len(x.data) > 0:
			n := copy(b, x.data)
			x.data = x.data[n:]
			return n, nil
		case !x.muted && x.err != nil:
			return 0, x.err
		}
		x.changed.Wait()
	}
}
