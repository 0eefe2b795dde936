package wire

import (
	"bytes"
	"encoding/binary"
)

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

// Answer is a message of the server that reports how a statement ended.
type Answer struct {
	Conn int
	// Text is the command's tag, for example COMMIT, or "ERROR" with the SQLSTATE and the message.
	Text string
}

// Codes in the place of a start-up message's protocol version (PostgreSQL, Message Formats).
const (
	protocol3     = 3
	cancelRequest = 1234<<16 | 5678
	sslRequest    = 1234<<16 | 5679
	gssRequest    = 1234<<16 | 5680
)

// parseMessage parses one message of the client.
func (c *conn) parseMessage(b []byte) Message {
	m := Message{Conn: c.number}
	if !c.started.Load() {
		m.Kind = Other
		switch code := binary.BigEndian.Uint32(b[4:]); {
		case code == cancelRequest:
			m.Kind = Cancel
		case code == sslRequest, code == gssRequest:
			c.mu.Lock()
			c.encryptionReplies++
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
		c.statements[name] = m.SQL
		c.lastSQL = m.SQL
	case Bind: // portal, name
		_, rest := text(body)
		name, _ := text(rest)
		m.SQL = c.statements[name]
		c.lastSQL = m.SQL
	case Query:
		m.SQL, _ = text(body)
		c.lastSQL = m.SQL
	case Sync:
		m.SQL = c.lastSQL
	}
	return m
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

// messageLength returns the length of the first message in b, or 0 if b does not hold all of it.
func (c *conn) messageLength(b []byte) int {
	head := 1 // its type
	if !c.started.Load() {
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
