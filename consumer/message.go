package consumer

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// orderHash is the stored form of an ordering key; not valid: the message has none.
type orderHash = pgtype.UUID

// Message is one record of the log. Each run of a handler gets its own copy of the struct, so it
// may assign fields. A handler must not keep the message after it returns.
//
// The byte slices belong to the log. If a function of the program changes them in place, the
// consumer hands out copies from then on, which costs memory (D6).
type Message struct {
	Topic     string
	Partition int32
	Offset    int64
	// Key is the record key. It names an entity and orders its messages, for example a customer's
	// number. It is not the message's id.
	Key     []byte
	Value   []byte
	Headers []Header

	// Time is the record's timestamp, by the clock of the producer, or of the broker if the topic
	// is configured for that.
	Time time.Time

	// LogAppendTime is true if Time is by the broker's clock.
	LogAppendTime bool

	// LeaderEpoch is the leader epoch of the record's batch, -1 if the source has none.
	LeaderEpoch int32

	// Attempt counts the runs of the handler with this message alone in its transaction: 0 in a
	// batch, 1 in the first run alone.
	Attempt int

	// The tenant and id under which an event was appended; empty unless the source is a
	// claimed.Source.
	eventTenant, eventID string

	identified bool  // the fields below are set
	idErr      error // why the message has no id
	scope      string
	idInTopic  bool   // the id counts within the topic
	id         string // message id, if the consumer dedupes by key
	tenant     string
	timed      bool        // the id has a time (TimedKey)
	madeAt     time.Time   // that time
	orderKey   pgtype.UUID // stored form of its ordering key, under ParkOrderingKey
	inOrder    orderHash   // stored form of its ordering key, under any policy
	replay     int32       // number of the replay that it belongs to, 0 if none
	resend     bool        // the replay's calls get keys of their own
	clusterID  string      // the record's cluster; for a parked one, at the time of parking
	topicID    [16]byte
	mayRepeat  bool // it may have been handled before: see ownership.redoUntil
	alone      bool // it is handled alone, because a process may have died of it (F9)
	notACopy   bool // by an operator: it is not a copy of the first message with its id

	fingerprint dedupe.Fingerprint // of Config.Fingerprint; not set: that of the value
	contents    uint64             // a hash of the bytes as they were read (D6)

	traceOf func(context.Context) string // Config.Trace
}

func init() {
	claimed.Set = func(message any, tenant, id string) {
		m := message.(*Message)
		m.eventTenant = tenant
		m.eventID = id
	}
}

// Header is one record header. A record may have several with the same name.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the first header with the name. ok is false if there is none.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value, true
		}
	}
	return nil, false
}

// structSizes are the sizes of a Message and of a Header, without the bytes that they refer to.
var structSizes = struct{ message, header int }{
	int(reflect.TypeFor[*Message]().Size() + reflect.TypeFor[Message]().Size()),
	int(reflect.TypeFor[Header]().Size()),
}

// Size is the memory that the message takes, in bytes: key, value and headers, plus about 400. It
// counts against [Config.PrefetchBytes].
func (m *Message) Size() int {
	n := structSizes.message + len(m.Key) + len(m.Value) + len(m.Headers)*structSizes.header
	for _, h := range m.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// ownBytes makes all bytes of the message its own, for a function of the program that may change
// them (D6).
func (m *Message) ownBytes() {
	m.Key = bytes.Clone(m.Key)
	m.Value = bytes.Clone(m.Value)
	m.Headers = slices.Clone(m.Headers)
	for i := range m.Headers {
		m.Headers[i].Value = bytes.Clone(m.Headers[i].Value)
	}
}

// hashContents returns a hash of everything in the message.
func (m *Message) hashContents() (sum uint64) {
	add := func(part uint64) { sum = (sum ^ part) * 0x9E3779B97F4A7C15 }
	add(maphash.Bytes(contentsSeed, m.Key))
	add(maphash.Bytes(contentsSeed, m.Value))
	for _, h := range m.Headers {
		add(maphash.String(contentsSeed, h.Name))
		add(maphash.Bytes(contentsSeed, h.Value))
	}
	return sum
}

var contentsSeed = maphash.MakeSeed()

// ID returns the message's id for deduplication. It is empty if the consumer runs on positions
// only.
func (m *Message) ID() string { return cmp.Or(m.id, m.eventID) }

// Tenant returns the message's tenant, from Config.Tenant or from the append of the event.
func (m *Message) Tenant() string { return cmp.Or(m.tenant, m.eventTenant) }

// restore sets the record's fields to what they were before a function of the program that finds an
// id or an ordering key. The record is hashed, parked and handled as it was read (D6).
func (m *Message) restore(was *Message) {
	m.Topic = was.Topic
	m.Partition = was.Partition
	m.Offset = was.Offset
	m.Key = was.Key
	m.Value = was.Value
	m.Headers = was.Headers
	m.Time = was.Time
	m.LogAppendTime = was.LogAppendTime
	m.LeaderEpoch = was.LeaderEpoch
	m.Attempt = was.Attempt
}

// hash returns the stored forms of the message's key and of its payload's fingerprint. In a replay
// the key is that of the replay.
func (m *Message) hash() ([16]byte, int64) { return m.hashIn(m.replay) }

// hashOutsideReplay returns the stored form of the key that a copy outside of replays has. The
// message's parked row has it in any case.
func (m *Message) hashOutsideReplay() [16]byte {
	hash, _ := m.hashIn(0)
	return hash
}

func (m *Message) hashIn(replay int32) ([16]byte, int64) {
	k := dedupe.Key{
		Tenant:      m.tenant,
		Scope:       m.scope,
		Topic:       m.keyTopic(),
		ID:          m.id,
		Replay:      replay,
		Fingerprint: m.fingerprint,
	}
	if k.Fingerprint == (dedupe.Fingerprint{}) {
		k.Fingerprint = dedupe.FingerprintOf(m.Value)
	}
	return k.Hash(), k.Fingerprint.Int64()
}

// keyTopic returns the topic in which the message's id counts, or "" if it counts in the whole
// scope (K8).
func (m *Message) keyTopic() string {
	if m.idInTopic {
		return m.Topic
	}
	return ""
}

// origin returns what the calls that the handler enqueues derive their keys from.
func (m *Message) origin() origin.Origin {
	o := origin.Origin{Tenant: m.tenant, Scope: m.scope, Topic: m.keyTopic(), ID: m.id, Position: origin.Position{
		ClusterID: m.clusterID, TopicID: m.topicID, Topic: m.Topic, Partition: m.Partition, Offset: m.Offset},
		Time: m.Time, Redo: !m.resend && (m.mayRepeat || m.replay > 0), Trace: m.trace(), TraceOf: m.traceOf}
	if m.resend {
		o.Replay = m.replay
	}
	if m.notACopy {
		o.ID = "" // its calls have the keys that derive from the id
	}
	return o
}

// trace returns the message's W3C trace context.
func (m *Message) trace() string {
	parent, _ := m.Header("traceparent")
	state, _ := m.Header("tracestate")
	return codec.JoinTrace(string(parent), string(state))
}
