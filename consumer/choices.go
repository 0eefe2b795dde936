package consumer

import (
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// FailurePolicy decides about messages that cannot be applied: the handler returns [Permanent] or
// fails at each of MaxAttempts attempts, the attempts end without an answer, or the message has no
// id or an id that was used for another payload.
type FailurePolicy int

const (
	// ParkMessage sets the message aside for an operator, and continues with the next one. Until
	// the message's attempts are used up, the partition waits.
	ParkMessage FailurePolicy = iota

	// ParkOrderingKey sets the message aside at its first failure alone in a transaction, and then
	// every later message with the same ordering key, in order. The consumer tries them again from
	// the database while the partition continues. When a message's attempts are used up, or its
	// handler returns [Permanent], it waits for an operator, and the later ones of its key wait for
	// it.
	ParkOrderingKey

	// BlockPartition never passes over a message. The consumer tries it again until it succeeds. If
	// another attempt cannot help, the partition halts.
	BlockPartition
)

// Copies is the meaning of an id in a consumer of several topics.
type Copies int

const (
	copiesUnset Copies = iota

	// WithinTopic means that an id counts within its topic. The same id in another topic is another
	// message. For example, the id is an order's, and the topics are `created` and `paid`.
	WithinTopic

	// AcrossTopics means that an id counts across the topics of the scope. The same id in another
	// topic is a copy. For example, a tool moves messages from one topic to another.
	AcrossTopics
)

// databaseWord returns the choice's word in the database.
func (c Copies) databaseWord() *string {
	word := ""
	switch c {
	case WithinTopic:
		word = "within"
	case AcrossTopics:
		word = "across"
	default:
		return nil
	}
	return &word
}

// copiesName returns the choice's name in a program.
func copiesName(noted *string) string {
	switch {
	case noted == nil:
		return "not set"
	case *noted == "within":
		return "WithinTopic"
	}
	return "AcrossTopics"
}

// Start is where a partition starts that has no position yet; see Config.Start. The zero value is
// the start of its log.
type Start struct {
	policy string // in the database; empty: earliest
	at     time.Time
}

// Latest starts at the end of the log.
func Latest() Start { return Start{policy: "latest"} }

// At starts at the first message whose timestamp, to the millisecond, is t or later. If there is
// none yet, it starts at the end of the log. With producers' timestamps, which need not rise,
// messages after that one may be older than t, and messages before it are not handled. The time
// must be after 1970.
func At(t time.Time) Start { return Start{policy: "time", at: t} }

// TooOld decides about messages so old, by the time of their id, that their key may be forgotten.
// Such a message is either a copy of an applied one or was never applied, and the database cannot
// distinguish the two.
//
// The consumer compares the id's time with the keys that its database has forgotten, not with the
// clock. So a message that waited in the log while the consumer was down is not too old, because
// keys are kept for it (K6).
type TooOld int

const (
	tooOldUnset TooOld = iota

	// ParkTooOld parks the message for an operator, with reason too-old. `onlyonce parked redrive`
	// applies it, and does not check its age again.
	ParkTooOld

	// ApplyTooOld applies the message. If it is a copy, it takes effect twice.
	ApplyTooOld
)

// Horizon is a class of horizon: how long the keys of a scope are remembered at least. Each class
// has a ring of its own, whose horizon is a number in the database (`onlyonce inbox horizon`). A
// longer class takes space for each key for longer.
type Horizon int

const (
	// HorizonStandard is the default. Its ring is consumer_keys, with 7 days in a new database.
	HorizonStandard Horizon = iota

	// HorizonShort is for topics of many messages whose copies come soon or never. Its ring is
	// consumer_short_keys, with 1 day in a new database.
	HorizonShort

	// HorizonLong is for topics whose copies may come late, for example from a mirror that was
	// stopped. Its ring is consumer_long_keys, with 30 days in a new database.
	HorizonLong
)

// class returns the class's word in the database.
func (h Horizon) class() string {
	switch h {
	case HorizonShort:
		return ring.Short
	case HorizonLong:
		return ring.Long
	}
	return ring.Standard
}

func (h Horizon) String() string {
	if h < HorizonStandard || h > HorizonLong {
		return fmt.Sprintf("Horizon(%d)", int(h))
	}
	return h.class()
}

// Brake halts a partition if nearly all of its messages fail, for example because Config.Key is
// wrong, a table is missing, or a remote refuses every call. Without the brake, all these messages
// would be parked as fast as they fail.
//
// The brake considers the last Window messages that were applied or given up (as no-key, too-old,
// permanent or exhausted). If Percent of them, and at least Least messages, were given up, the
// partition halts with [HaltEverythingFails]. The triggering message is not parked. The consumer
// then tries one message each Every. When one is applied, the partition continues by itself, with
// an empty window. The window is empty, too, after another process has taken the partition over.
//
// Copies do not count. Under [ParkOrderingKey] a message counts when its attempts are used up. The
// brake is off under [BlockPartition].
type Brake struct {
	// Off switches the brake off: each message that fails is parked. Defaults to false.
	Off bool

	// Window is the number of latest messages that the brake considers. Defaults to 50.
	Window int

	// Percent is the share of them that must have been given up, from 1 to 100. Defaults to 90.
	Percent int

	// MinSamples is how many messages the brake needs to decide; it must not be above Window.
	// Defaults to 20, or to Window if that is less.
	MinSamples int

	// ProbeInterval is how often the consumer tries a message while the partition is halted, at
	// least 1 ms. Defaults to 30 s.
	ProbeInterval time.Duration
}
