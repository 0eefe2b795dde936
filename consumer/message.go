package consumer

import (
	"cmp"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// Message is one record as the source handed it over. Handlers must not keep it after they return. Each run of a handler
// has its own copy of the struct, so it may assign fields. Bytes belong to the log: a handler that changes them in place gets copies of all of them
// from then on, which costs memory (D6).
type Message struct {
	Topic     string
	Partition int32
	Offset    int64
	// Key is the record key: it names an entity and orders its messages. It is not the message's id.
	Key     []byte
	Value   []byte
	Headers []Header
	// Time is the record's timestamp: by the producer's clock, or the broker's where the topic says so.
	Time time.Time
	// LogAppendTime is true where Time is the broker's clock.
	LogAppendTime bool
	// LeaderEpoch is the leader epoch of the record's batch, -1 where the source has none.
	LeaderEpoch int32
	// EventTenant and EventID are what the event was appended under, where the source is an [EventSource]. Empty elsewhere.
	EventTenant, EventID string
	// Attempt counts the runs of the handler with this message standing alone: 0 in a batch, 1 in the first run alone.
	Attempt int

	identified bool  // the fields below are filled in
	noKey      error // why it has no id
	scope      string
	inTopic    bool   // the id counts within the topic
	id         string // message id, where the consumer dedupes by key
	tenant     string
	order      pgtype.UUID // stored form of its ordering key, where those are parked
	replay     int32       // number of the replay that it is part of, 0 for none
	resend     bool        // whether that replay asks for calls under keys of their own
	cluster    string      // where the record lies; of a parked one, where it lay when it was parked
	topicID    [16]byte
	redo       bool // it may have been handled before: see engine.redoUntil
	another    bool // an operator says that it is another message than the first of its id
}

// Header is one record header. A record may hold several of one name.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the first header of that name; ok is false where there is none.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value, true
		}
	}
	return nil, false
}

// structs are the sizes of a Message and of a Header without the bytes that they refer to.
var structs = struct{ message, header int }{int(reflect.TypeFor[*Message]().Size() + reflect.TypeFor[Message]().Size()), int(reflect.TypeFor[Header]().Size())}

// Size is how many bytes of memory the message takes, and what it counts against [Config.PrefetchBytes]: key, value and headers, and about
// 400 bytes beside them.
func (m *Message) Size() int {
	n := structs.message + len(m.Key) + len(m.Value) + len(m.Headers)*structs.header
	for _, h := range m.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// ID is the message's dedupe id, empty where the consumer runs on positions only.
func (m *Message) ID() string { return cmp.Or(m.id, m.EventID) }

// Tenant is the tenant that Config.Tenant named for the message, or that an event was appended under.
func (m *Message) Tenant() string { return cmp.Or(m.tenant, m.EventTenant) }

// hash is the stored form of the message's key, in a replay of its key there, and of its payload's fingerprint.
func (m *Message) hash() ([16]byte, int64) { return m.hashIn(m.replay) }

// ordinary is the stored form of the key that a copy outside of replays has, and that the message's parked row has in any case.
func (m *Message) ordinary() [16]byte {
	hash, _ := m.hashIn(0)
	return hash
}

func (m *Message) hashIn(replay int32) ([16]byte, int64) {
	k := dedupe.Key{Tenant: m.tenant, Scope: m.scope, Topic: m.keyTopic(), ID: m.id, Replay: replay, Fingerprint: dedupe.FingerprintOf(m.Value)}
	return k.Hash(), k.Fingerprint.Int64()
}

// keyTopic is the topic in which the message's id counts, "" for all of its scope.
func (m *Message) keyTopic() string {
	if m.inTopic {
		return m.Topic
	}
	return ""
}

// origin is what calls that the handler enqueues derive their keys from.
func (m *Message) origin() origin.Origin {
	o := origin.Origin{Tenant: m.tenant, Scope: m.scope, Topic: m.keyTopic(), ID: m.id, Position: origin.Position{
		ClusterID: m.cluster, TopicID: m.topicID, Topic: m.Topic, Partition: m.Partition, Offset: m.Offset},
		Time: m.Time, Redo: !m.resend && (m.redo || m.replay > 0), Trace: m.trace()}
	if m.resend {
		o.Replay = m.replay
	}
	if m.another {
		o.ID = "" // the first one's calls have the keys that derive from the id
	}
	return o
}

// trace is the message's W3C trace context.
func (m *Message) trace() string {
	parent, _ := m.Header("traceparent")
	state, _ := m.Header("tracestate")
	return codec.JoinTrace(string(parent), string(state))
}
