package consumer

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	brakes "github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/seal"
)

// Config configures a Consumer. The zero value of a field is the default that its comment names.
// New refuses values out of range and lists every one. Durations are at least 1 ms. Three choices
// change the guarantee and have no default: Scope; Key or PositionsOnly; and Copies, if the
// consumer reads several topics.
type Config struct {
	// Scope names this consumer. Its keys and positions are kept under the name. Two deployments
	// with the same scope are one consumer; a new scope starts over with every message. For example
	// "stock". At most 200 bytes. It must not begin with "webhook/" or "queue/", unless the source
	// reads stored events. Required.
	Scope string

	// Key finds the id of a message, which its producer chose and which is the same on each of its
	// copies. See [HeaderKey], [CloudEventKey] and [JSONKey]. If it fails for a message or returns
	// "", the message is parked with reason no-key. Required, unless PositionsOnly is set or the
	// source is one of stored events, for example webhook.Source. With such a source, Key,
	// PositionsOnly and Tenant must not be set.
	Key KeyFunc

	// Fingerprint returns the part of a message that all its copies have in common. A message that
	// has the id of an earlier one and another such part is no copy, and is parked as conflict. Set
	// it if a producer renders a message anew when it sends it again, for example with another time
	// of sending. The price: a message that differs from the first of its id elsewhere only is
	// skipped as a copy. [IDAlone] compares nothing, so the id decides alone: if a producer gives
	// two messages one id by mistake, the second is lost without a report.
	//
	// It must return the same for each copy, and be kept: copies of messages that were claimed
	// under another function are conflicts, unless one of the two is IDAlone. It runs after Key,
	// and if it panics the message is parked as no-key. Only with Key. Defaults to the message's
	// value.
	Fingerprint func(*Message) []byte

	// PositionsOnly runs the consumer without ids. Redeliveries of a record have no effect, but a
	// copy that a producer wrote to another offset is handled as another message. Set exactly one
	// of Key and PositionsOnly. Defaults to false.
	PositionsOnly bool

	// Copies is the meaning of an id if the consumer reads several topics: [WithinTopic] or
	// [AcrossTopics]. It must not be set with PositionsOnly or a source of stored events, whose ids
	// count within their topic. The database keeps the choice for good; a consumer of the scope
	// with another choice halts.
	//
	// Required for several topics with Key, and to add a topic to a scope. With one topic both mean
	// the same, and it may be left out: whatever you choose when you add the second topic, no id of
	// the first one is forgotten.
	Copies Copies

	// CopiesWithin declares for how long after its first copy a message may be written again: by a
	// retrying producer, a mirror or a relay. If the inbox remembers keys for less time, Run
	// refuses to start; see `onlyonce inbox horizon`. If the horizon is shortened while the
	// consumer runs, it logs an error. At least a second, and only with Key. Defaults to 0: not
	// declared and not checked.
	CopiesWithin time.Duration

	// Horizon decides how long the scope's keys are remembered, by the class of their ring:
	// [HorizonShort], [HorizonStandard] or [HorizonLong]. It must not be set with PositionsOnly or
	// a source of stored events. The database keeps the class, and a consumer of the scope with
	// another one halts; see `onlyonce inbox class`. Defaults to HorizonStandard.
	Horizon Horizon

	// TooOld decides about messages so old, by the time of their id, that their key may be
	// forgotten: [ParkTooOld] or [ApplyTooOld]. Required if Key is one of [TimedKey]; must not be
	// set otherwise.
	TooOld TooOld

	// Tenant returns a message's customer. Set it if customers choose ids themselves: the same id
	// from two customers is then two messages. Defaults to one tenant.
	Tenant func(*Message) string

	// Start is where a partition starts: [Latest] or [At] a time, so that earlier messages are not
	// handled. It applies if the partition has no cursor and the group has committed no offset. If
	// a topic gets a new partition later, the consumer still reads that from its start, because its
	// messages came after the decision. Defaults to the start of the log.
	Start Start

	// OnFailure decides about messages that cannot be applied. Defaults to [ParkMessage].
	OnFailure FailurePolicy

	// Sealer encrypts the values of messages that are parked. Keys and headers are stored as they
	// are: Kafka's record key, the id and the ordering key find copies. To rotate the encryption
	// key, see package seal. A parked message that does not open waits for an operator, who
	// redrives it once the Sealer has its key again. Defaults to none: values are stored as they
	// are (D9).
	Sealer *seal.Sealer

	// Brake halts a partition if nearly all of its messages fail, instead of parking them. See
	// [Brake] for its fields. Defaults to on.
	Brake Brake

	// OrderingKey returns the key by which messages are ordered under [ParkOrderingKey], and under
	// any policy if Concurrency is above 1, for example an account's number. If it returns an empty
	// key, the message waits for no other, and no other waits for it. If a deployment changes
	// OrderingKey, messages under way may be handled in another order, still once each. It may be
	// called for a message before earlier ones are handled. Defaults to the record key.
	OrderingKey func(*Message) []byte

	// Concurrency is how many transactions of one partition may run at once, at most 256. Messages
	// with the same OrderingKey are still handled in their order, one transaction after another;
	// others may overtake each other. Handlers, Middleware and Hooks are then called from several
	// goroutines for one partition. More than 1 pays if handlers wait, for example for each of
	// their statements: see docs/performance.md. Defaults to 1.
	//
	// Each transaction takes a connection of the pool, and the engine needs one or two for itself:
	// for one partition pool_max_conns must be above Concurrency, or the consumer logs a warning.
	Concurrency int

	// Window is how many messages above the position a partition reads ahead if Concurrency is
	// above 1. A slow or retried message holds up the position; when the window is full, the
	// partition waits for that message. One fetch may exceed the window, and unhandled messages
	// count against PrefetchBytes. At least Concurrency. Defaults to 10 times BatchSize times
	// Concurrency.
	Window int

	// Prepare is called before each transaction, for example for a slow look-up at a service, which
	// must not hold a transaction open. msgs are copies of the transaction's messages: what Prepare
	// changes in them the handler does not see. The handler's context has the values of the context
	// that Prepare returns:
	//
	//	return context.WithValue(ctx, prices{}, found), nil
	//
	// Its errors count as the handler's: a batch is divided until the failing message is alone,
	// [FailMessage] names it at once, [Permanent] parks it, and [Unavailable] counts against none.
	// It runs again with each further attempt, for the messages of that one, and not if the
	// transaction runs again at once after a serialization failure. It may be called for copies,
	// whose handler does not run. It has BatchTimeout by itself, and HangTimeout after that; a
	// handler's timeouts begin later. Defaults to none.
	Prepare func(ctx context.Context, msgs []*Message) (context.Context, error)

	// OnBegin is called at the start of each transaction. The timeouts below are set by then, and
	// no other statement has run. Use it to set the isolation level (set transaction isolation
	// level serializable) or variables for row security (set local). Use tx.Queue, which costs no
	// round trip.
	//
	// If it returns an error, the transaction is tried again, and the failure counts against no
	// message, as with [Unavailable]. Its context ends after Timeouts.Lock plus Timeouts.Statement.
	// The consumer cannot interrupt it, so OnBegin must watch its context or return by itself.
	// Defaults to none.
	OnBegin func(ctx context.Context, tx Tx) error

	// OnParked is called for each message that is left to an operator, in the transaction that
	// parks it: its writes through tx commit with the parking or not at all. Use it, for example,
	// to enqueue the message for a dead-letter topic. e has Reason and Err. A message that an
	// operator redrives, and that is then left to an operator again, is another call. A
	// sealed message that does not open has no value.
	//
	// If it returns an error or one of its writes fails, the message is not parked, and is tried
	// again with the waits of Backoff, handler included. The failure counts against no message, as
	// with [Unavailable]. Its context ends like that of OnBegin.
	//
	// Calls that it enqueues need a Scope and an ID of their own, as in a transaction of yours,
	// because keys that derive from the message are its handler's: do not use [For]. The ID is
	// e.ID, with a suffix of yours if there are several.
	//
	// It is not called for messages that the consumer itself tries again, see [ParkOrderingKey],
	// nor if another consumer of the scope without OnParked parks them, nor for a message of reason
	// crashed if it may have ended the process itself. Defaults to none.
	OnParked func(ctx context.Context, tx Tx, m *Message, e ParkedEvent) error

	// Middleware is called around each call of the handler; the first one is outermost. Defaults to
	// none.
	Middleware []Middleware

	// BatchSize is the most messages in one transaction. More than the default gains little, and a
	// failure repeats more. With 1, each message costs a round trip and a flush to disk. Defaults
	// to 100.
	BatchSize int

	// BatchBytes is the most bytes of values in a batch. A larger message gets a batch of its own.
	// Defaults to 1 MiB.
	BatchBytes int

	// Linger is how long a batch that is not full waits for more messages. Defaults to 5 ms.
	Linger time.Duration

	// ClaimFirst claims the messages' keys before the handler runs, so that it sees new messages
	// only. It costs a round trip for each batch. Without it, the handler may run for a duplicate
	// and is then rolled back. That is harmless for writes in the transaction, but not for effects
	// outside it, for example an e-mail. Messages that are alone in their transaction and those of
	// a [BatchHandler] are always claimed first. Defaults to false.
	ClaimFirst bool

	// PrefetchBytes is the most memory, in bytes, for unpacked messages that wait to be handled, in
	// all partitions of this process together. Messages count by [Message.Size]. Each partition may
	// exceed it by one message, so that a message larger than the bound still gets through. Half of
	// it is divided evenly between the partitions; the other half is lent to partitions that have
	// more to read. If there is no room, fetched batches stay compressed. See
	// docs/operations/deploy.md, "Memory", for how large a container has to be. Defaults to 10 MiB.
	PrefetchBytes int

	// MaxAttempts is how often a message that is alone in its transaction is tried before it is
	// parked for an operator. Under [BlockPartition] only attempts that ended the process count.
	// Defaults to 5.
	MaxAttempts int

	// Backoff bounds the wait between attempts. Min defaults to 100 ms, Max to 10 s.
	Backoff dedupe.Backoff

	// HandlerTimeout bounds one call of a handler of one message. BatchTimeout bounds all handlers
	// of one transaction together, or one call of a batch handler; it must not be below
	// HandlerTimeout. When the time is up, the handler's context ends, which counts as its failure.
	// Default to 30 s (BatchTimeout if that is shorter) and to 60 s (HandlerTimeout if that is
	// longer).
	HandlerTimeout, BatchTimeout time.Duration

	// HangTimeout is how long a handler may run after its context has ended. Then the consumer cuts
	// its connection and continues without it: see [ErrHandlerHung]. Defaults to 5 s.
	HangTimeout time.Duration

	// Timeouts bound each transaction. Lock: for example the wait for a copy of the message in an
	// uncommitted transaction. Idle: if a process is suspended in the middle of a batch, its
	// successor waits no longer than this. Commit: COMMIT carries the statements that handlers have
	// queued, and waits for a synchronous standby; when the time is up, the consumer runs the batch
	// again on another connection, and finds out there whether the first one committed. Default to
	// 5 s (Lock), 30 s (Statement), 60 s or BatchTimeout if that is longer (Idle), and 15 s
	// (Commit).
	Timeouts dedupe.Timeouts

	// BlockedAfter is how long a message that is alone may fail for reasons of the server, not of
	// the message: no room (SQLSTATE class 53), serialization failures, deadlocks, lock timeouts,
	// or sessions that an administrator ends. Then the partition halts as "blocked", so that an
	// operator notices. The consumer retries the message every few seconds, and the partition
	// continues by itself when that succeeds. While an operator's command or a take-over waits for
	// other transactions of the partition, it does not halt before the longest of those must have
	// ended (T14). Defaults to 1 minute.
	BlockedAfter time.Duration

	// DrainTimeout is how long the current batch may still take when the partition is given up or
	// Run's context ends. After that the batch's context ends and it rolls back. If its COMMIT was
	// already sent, the consumer waits for the answer, and the commit counts. DrainTimeout also
	// bounds each commit of an offset to Kafka. A whole stop takes longer: see
	// docs/operations/deploy.md, "How long a stop takes", for the sum, and for the least rebalance
	// timeout of the group. Defaults to 10 s.
	DrainTimeout time.Duration

	// Hooks are called at events; see [Hooks]. Defaults to none.
	Hooks Hooks

	// Trace returns the W3C trace context of a context: a traceparent, and a tracestate in a second
	// line if there is one. It is called with the context of outbox.Enqueue, and the call carries
	// the result, so that the remote's trace continues the handler's. Package telemetry sets it. It
	// must be safe for concurrent use. If it panics, or returns "" or anything but a trace context,
	// the call carries the message's. Defaults to the message's for all calls.
	Trace func(ctx context.Context) string

	// Logger receives events that cannot be returned as an error: for example retries, halts and
	// parked messages. Payloads and keys are never logged. Defaults to slog.Default(), at WARN and
	// above.
	Logger *slog.Logger
}

// longest is how long a transaction of the engine may last, from its fence to the end of its
// COMMIT. The server ends that of a process which is suspended or gone after Timeouts.Idle. The
// owner declares it in its cursor, for all who have to wait for its transactions (T14).
func (c *Config) longest() time.Duration {
	t := &c.Timeouts
	return t.Lock + t.Statement + c.BatchTimeout + max(c.HangTimeout+t.Commit, t.Idle)
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		*d = cmp.Or(*d, v)
	}
	num := func(n *int, v int) {
		*n = cmp.Or(*n, v)
	}
	num(&c.BatchSize, 100)
	num(&c.BatchBytes, 1<<20)
	num(&c.MaxAttempts, 5)
	num(&c.PrefetchBytes, 10<<20)
	num(&c.Concurrency, 1)
	num(&c.Window, 10*c.BatchSize*c.Concurrency)
	def(&c.Linger, 5*time.Millisecond)
	def(&c.Backoff.Min, 100*time.Millisecond)
	def(&c.Backoff.Max, 10*time.Second)
	if c.HandlerTimeout == 0 && c.BatchTimeout > 0 {
		c.HandlerTimeout = min(30*time.Second, c.BatchTimeout)
	}
	def(&c.HandlerTimeout, 30*time.Second)
	def(&c.BatchTimeout, max(60*time.Second, c.HandlerTimeout))
	def(&c.HangTimeout, 5*time.Second)
	def(&c.Timeouts.Lock, 5*time.Second)
	def(&c.Timeouts.Statement, 30*time.Second)
	def(&c.Timeouts.Idle, max(60*time.Second, c.BatchTimeout))
	c.Brake = Brake(brakes.Settings(c.Brake).WithDefaults())
	def(&c.BlockedAfter, time.Minute)
	def(&c.Timeouts.Commit, 15*time.Second)
	def(&c.DrainTimeout, 10*time.Second)
	c.Logger = fields.Logger(c.Logger)
	return c
}
