// Package origin says which inbound message a handler's transaction is about, so that what it sends
// out takes its identity from that message, on every run.
package origin

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// Position is where a message lies: one record of one topic of one cluster.
type Position struct {
	ClusterID string
	TopicID   [16]byte // zero where the broker has none; the topic's name then stands for it
	Topic     string
	Partition int32
	Offset    int64
}

// String is topic/partition/offset, for people.
func (p Position) String() string {
	return fmt.Sprintf("%s/%d/%d", p.Topic, p.Partition, p.Offset)
}

// Origin is the inbound message that a handler's transaction is about. Whatever the handler sends
// out takes its identity from it, so that it is the same on every replay.
type Origin struct {
	Tenant string
	Scope  string
	// ID is the message's id where the consumer dedupes by key, otherwise empty: then the Position
	// identifies it.
	ID string
	// Topic is set where the ID counts within that topic only, and then is part of the identity.
	Topic    string
	Position Position
	// Replay is the number of a replay that asks for calls to be sent again, under keys of their
	// own; 0 for none.
	Replay int32

	// Time is when the message was appended to its log, by the producer's clock unless the topic
	// says otherwise. Zero: not known. It is no part of the identity.
	Time time.Time
	// Redo says that the message may have been handled before, so that calls under its keys may
	// have been made: in a replay that keeps their keys, or in a history that the database has
	// lost.
	Redo bool
	// Trace is the W3C trace context that came with the message: traceparent, and tracestate in a
	// second line. It is no part of the identity.
	Trace string
	// TraceOf is a user's function that returns the trace context of a context, in the form of
	// Trace; nil if there is none.
	TraceOf func(context.Context) string
	// Calls notes the calls that are written, for a record that must outlive them; nil if there is
	// none. It is filled right before the transaction is sealed.
	Calls *Calls
}

// Calls are the calls that a transaction has written to the outbox.
type Calls struct {
	Keys []uuid.UUID
	// Sinks and Lanes have one length: the lanes that the calls were written to, each once.
	Sinks []string
	Lanes []int16
}

// Note notes a call. The list of lanes is short: a transaction writes to one, or to one for each
// ordering key.
func (c *Calls) Note(key uuid.UUID, sink string, lane int16) {
	c.Keys = append(c.Keys, key)
	for i := range c.Sinks {
		if c.Sinks[i] == sink && c.Lanes[i] == lane {
			return
		}
	}
	c.Sinks = append(c.Sinks, sink)
	c.Lanes = append(c.Lanes, lane)
}

// TraceIn returns the trace context for what is sent out in ctx: that of ctx, or else the
// message's. If TraceOf panics or returns no trace context, the message's is used, because no trace
// is worth a message.
func (o Origin) TraceIn(ctx context.Context) (trace string) {
	if o.TraceOf == nil {
		return o.Trace
	}
	defer func() {
		if recover() != nil || trace == "" || !codec.IsTrace(trace) {
			trace = o.Trace
		}
	}()
	return o.TraceOf(ctx)
}

// Fields are the fields of the Origin that go into a derived identity, most general first. A topic
// id stands for the topic's name where there is one, because a topic that was deleted and created
// again starts over at offset 0 under its old name.
func (o Origin) Fields() []string {
	fields := o.fields()
	if o.Replay != 0 {
		fields = append(fields, "replay", strconv.Itoa(int(o.Replay)))
	}
	return fields
}

func (o Origin) fields() []string {
	switch {
	case o.ID != "" && o.Topic != "":
		return []string{o.Tenant, o.Scope, "topic", o.Topic, o.ID}
	case o.ID != "":
		return []string{o.Tenant, o.Scope, "id", o.ID}
	}
	topic := o.Position.Topic
	if o.Position.TopicID != [16]byte{} {
		topic = uuid.UUID(o.Position.TopicID).String()
	}
	return []string{
		o.Tenant, o.Scope, "position", o.Position.ClusterID, topic,
		strconv.Itoa(int(o.Position.Partition)), strconv.FormatInt(o.Position.Offset, 10),
	}
}
