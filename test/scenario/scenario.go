// Package scenario has the mix of messages into which every fault is injected, the handler for it,
// and the checker. The checker decides from the database whether the invariants I1 to I7 of
// docs/faults.md hold.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// Headers of the mix's messages.
const (
	HeaderID   = "message-id"
	headerDoes = "does" // what the handler makes of it, see Handle
)

// Log is the target of a mix: a memlog.Log, or a topic of a real broker.
type Log interface {
	// AppendMessage writes key, value and headers, and returns the offset.
	AppendMessage(partition int32, m *consumer.Message) int64
	// Skip leaves n offsets or more that hold nothing to handle.
	Skip(partition int32, n int64)
}

// Message is one record that was written. Records with the same value are copies of one message.
type Message struct {
	Partition int32
	Offset    int64
	Key       string // ordering key
	ID        string // empty: it has none
	Value     string
	Calls     bool // its handler enqueues a call
}

// Mix is all that was written, in that order.
type Mix struct {
	Scope, Topic string
	// Ordered: the consumer runs under ParkOrderingKey.
	Ordered bool
	// Unordered: messages that were parked alone are tried again later, so that order is not
	// promised (I6 does not count).
	Unordered bool
	// PositionsOnly: the consumer runs without ids.
	PositionsOnly bool

	log Log
	mu  sync.Mutex
	// what was written, in the order of writing
	messages []Message
}

// New begins a mix. The scope's and the topic's names must be those of the consumer and of the log.
func New(log Log, scope, topic string) *Mix {
	return &Mix{Scope: scope, Topic: topic, log: log}
}

// Add writes one message with its value as its id. The value contains the message's instructions
// for Handle, separated by spaces.
func (x *Mix) Add(partition int32, key, value, does string) Message {
	return x.AddAs(partition, key, value, value, does)
}

// AddAs is Add with an id of its own.
func (x *Mix) AddAs(partition int32, key, id, value, does string) Message {
	m := &consumer.Message{Key: []byte(key), Value: []byte(value), Headers: []consumer.Header{{Name: headerDoes, Value: []byte(does)}}}
	if id != "" {
		m.Headers = append(m.Headers, consumer.Header{Name: HeaderID, Value: []byte(id)})
	}
	x.mu.Lock() // for both: a checker must know of every effect that it may find applied
	defer x.mu.Unlock()
	out := Message{
		Partition: partition,
		Offset:    x.log.AppendMessage(partition, m),
		Key:       key,
		ID:        id,
		Value:     value,
		Calls:     strings.Contains(does, "call"),
	}
	x.messages = append(x.messages, out)
	return out
}

// Skip leaves offsets without a record.
func (x *Mix) Skip(partition int32, n int64) { x.log.Skip(partition, n) }

// Messages are the records that were written, in the order of writing.
func (x *Mix) Messages() []Message {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.messages)
}

// Of returns the first record of a value.
func (x *Mix) Of(value string) Message {
	for _, m := range x.Messages() {
		if m.Value == value {
			return m
		}
	}
	panic("scenario: no message " + value)
}

// End is the position after a partition's last record.
func (x *Mix) End(partition int32) (end int64) {
	for _, m := range x.Messages() {
		if m.Partition == partition {
			end = m.Offset + 1
		}
	}
	return end
}

const (
	keys   = 6
	rounds = 6
)

// Values of messages that do something of their own.
const (
	FailsOnce  = "k1-1" // at its first attempt alone
	FailsTwice = "k3-1"
	Permanent  = "k2-2"
	Drains     = "k5-3" // see Handle
	Plain      = "k0-3" // does nothing of its own: for a test that wants one to misbehave
	Last       = "k5-5"
)

// Fill writes the whole mix over the log's partitions: six ordering keys with six messages each,
// some of which ask for calls. One message fails at its first attempt alone, one fails twice, one
// is Permanent. There are holes in the middle and at the end. With copies, some records are written
// again at other offsets, of messages that are applied and of messages that are parked.
func (x *Mix) Fill(partitions int, copies bool) {
	does := map[string]string{FailsOnce: "fail:1", FailsTwice: "fail:2", Permanent: "permanent", Drains: "drain"}
	for i := range rounds {
		for k := range keys {
			v := fmt.Sprintf("k%d-%d", k, i)
			d := does[v]
			if (i+k)%3 == 0 {
				d += " call"
			}
			x.Add(int32(k%partitions), fmt.Sprintf("k%d", k), v, d)
		}
		if i == 1 || i == rounds-1 {
			for p := range partitions {
				x.Skip(int32(p), 2)
			}
		}
		if copies && i == 3 {
			for _, v := range []string{"k0-0", FailsOnce, Permanent, FailsTwice, "k4-3"} {
				first := x.Of(v)
				x.Add(first.Partition, first.Key, v, does[v])
			}
		}
	}
}

// ErrAsked is what a handler returns for a message that must fail.
var ErrAsked = errors.New("asked to fail")

// EffectsSQL makes the table of effects, without a unique constraint, so that doubles show.
const EffectsSQL = `create table if not exists effects (value text not null, part int, off bigint, n bigint generated always as identity)`

// Elsewhere is the offset of an effect that was not written by a consumer: its place in the order
// is not checked.
const Elsewhere = -1

// EffectSQL writes one effect.
const EffectSQL = `insert into effects (value, part, off) values ($1, $2, $3)`

// Handle is the mix's handler. It writes the effect, and what the message asks for:
//
//	call       enqueues a call
//	fail:N     fails in a batch, and in its first N attempts alone
//	permanent  is Permanent
//	drain      fails in a batch, so that it comes alone; what happens then is a test's
//	queue      does not wait for the answer to its effect
//
// Of the others every other message waits for its answer; the others' effects travel with what
// comes next.
func Handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	args := []any{string(m.Value), m.Partition, m.Offset}
	if m.Offset%2 == 0 && !slices.Contains(Does(m), "queue") {
		if _, err := tx.Exec(ctx, EffectSQL, args...); err != nil {
			return err
		}
	} else {
		tx.Queue(EffectSQL, args...)
	}
	for _, d := range Does(m) {
		name, arg, _ := strings.Cut(d, ":")
		n, _ := strconv.Atoi(arg)
		switch {
		case name == "call":
			if err := outbox.Enqueue(ctx, tx, outbox.Call{
				Sink:   "payments",
				Name:   "charge",
				Target: "/charges",
				Body:   m.Value,
			}); err != nil {
				return err
			}
		case name == "permanent":
			return consumer.Permanent(ErrAsked)
		case name == "fail" && m.Attempt <= n, name == "drain" && m.Attempt == 0:
			return ErrAsked
		}
	}
	return nil
}

// Does returns what a message asks for.
func Does(m *consumer.Message) []string {
	does, _ := m.Header(headerDoes)
	return strings.Fields(string(does))
}
