package wire

import (
	"encoding/binary"
	"net"
	"strings"
	"time"
)

// readServer passes the server's bytes on to the client until the server's end is closed.
func (c *conn) readServer() {
	var partial []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := c.Conn.Read(buf)
		if n > 0 {
			got := buf[:n]
			c.mu.Lock()
			for c.encryptionReplies > 0 && len(got) > 0 {
				c.encryptionReplies--
				if got[0] == 'S' || got[0] == 'G' {
					c.toClient.fail(errEncrypted)
					_ = c.Conn.Close()
				}
				c.toClient.append(got[:1])
				got = got[1:]
			}
			c.mu.Unlock()
			partial = c.observeAll(append(partial, got...))
			c.toClient.append(got)
			c.breakIfAnswered()
		}
		if err != nil {
			_ = c.Conn.Close()
			c.mu.Lock()
			c.serverClosed = true
			detached := c.detached
			c.progress.Broadcast()
			c.mu.Unlock()
			if !detached { // a client that was cut off does not learn of it
				c.toClient.fail(err)
			}
			return
		}
	}
}

// breakIfAnswered breaks the connection of an Unheard message once its round trip is over.
func (c *conn) breakIfAnswered() {
	c.mu.Lock()
	done := c.breaking && c.breakAt > 0 && c.answered >= c.breakAt
	c.mu.Unlock()
	if done {
		c.cut()
	}
}

// observeAll reads the server's complete messages and returns the rest.
func (c *conn) observeAll(data []byte) []byte {
	for len(data) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(data[1:]))
		if n > len(data) {
			break
		}
		c.observe(data[0], data[5:n])
		data = data[n:]
	}
	return append([]byte(nil), data...)
}

func (c *conn) observe(typ byte, body []byte) {
	switch typ {
	case 'K': // BackendKeyData
		c.mu.Lock()
		c.pid = binary.BigEndian.Uint32(body)
		c.mu.Unlock()
	case 'C': // CommandComplete
		c.emitAnswer(strings.TrimRight(string(body), "\x00"))
	case 'E': // ErrorResponse
		fields := map[byte]string{}
		for _, f := range strings.Split(string(body), "\x00") {
			if f != "" {
				fields[f[0]] = f[1:]
			}
		}
		c.emitAnswer("ERROR " + fields['C'] + " " + fields['M'])
	case 'Z': // ReadyForQuery
		c.mu.Lock()
		c.answered++
		c.progress.Broadcast()
		c.mu.Unlock()
	}
}

func (c *conn) emitAnswer(text string) {
	if c.wire.Answered != nil {
		c.wire.Answered(Answer{Conn: c.number, Text: text})
	}
}

func (c *conn) Read(b []byte) (int, error) { return c.toClient.read(b) }

// Close closes the client's end, and the server's unless the client was cut off from it.
func (c *conn) Close() error {
	c.toClient.fail(net.ErrClosed)
	c.mu.Lock()
	c.clientClosed = true
	detached := c.detached
	c.progress.Broadcast()
	c.mu.Unlock()
	if detached {
		return nil
	}
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error {
	c.toClient.setDeadline(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.toClient.setDeadline(t)
	return nil
}
