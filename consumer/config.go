package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Config says how a Consumer works. The zero value of a field means its documented default; New refuses
// values that make no sense and lists every one. Three choices change the guarantee and have no default: Scope,
// one of Key and PositionsOnly, and Copies where several topics are read.
type Config struct {
	// Scope names this consumer: its keys and positions are its own. Two deployments with one scope are one
	// consumer; a new scope starts over with every message. Required, at most 200 bytes.
	Scope string

	// Key finds the id of a message, chosen by its producer and the same on each of its copies; see [HeaderKey],
	// [CloudEventKey] and [JSONKey]. Neither it nor PositionsOnly nor Tenant is set where the source is an [EventSource]. A message for which it fails or returns "" is parked with reason no-key.
	Key KeyFunc
	// PositionsOnly runs without ids: redeliveries of a record do nothing, and a copy that a producer wrote to
	// another offset is another message. Set exactly one of Key and PositionsOnly.
	PositionsOnly bool
	// Copies says what an id means where several topics are read: [WithinTopic] or [AcrossTopics]. Required for several topics with Key, and to add a
	// topic to a scope. With one topic there is no difference, and it may be left out: whatever is chosen when a second topic is added, no
	// id of the first one is forgotten. The choice is noted in the database and stays; a consumer of the scope that differs halts. Not with
	// PositionsOnly, nor where the source is an [EventSource], whose ids count within their topic.
	Copies Copies
	// CopiesWithin declares for how long after its first copy a message may still be written again, by a producer that goes on trying, a mirror or
	// a relay. Run refuses to work where keys are not remembered for that long (onlyonce inbox horizon), and logs an error when that is changed while it
	// works. 0: not declared, and not checked; at least a second otherwise. Only with Key.
	CopiesWithin time.Duration
	// Tenant names the customer that a message belongs to, where customers choose ids themselves. Nil: one tenant.
	Tenant func(*Message) string

	// Start is where a partition starts that has no cursor, and whose group has committed no offset. Default [StartEarliest].
	Start Start

	// OnFailure is what becomes of a message that cannot be applied. Default [ParkMessage].
	OnFailure FailurePolicy
	// Brake stops a partition nearly all of whose messages fail, instead of parking them. Default on; see [Brake].
	Brake Brake
	// OrderingKey finds what orders messages under [ParkOrderingKey]. Nil: the record key. A message for which it
	// returns nothing waits for no other, and none for it.
	OrderingKey func(*Message) []byte

	// OnBegin is called at the start of each transaction, when the timeouts below hold and before anything else in it: to set the isolation level (set transaction
	// isolation level serializable) or variables that row security looks at (set local). Use tx.Queue, which costs no round
	// trip. An error of it is nobody's fault: the transaction is tried again. Its context ends after LockTimeout and
	// StatementTimeout together; an OnBegin that does not look at it has to return by itself.
	OnBegin func(ctx context.Context, tx Tx) error
	// Middleware is called around each call of the handler, the first one outermost.
	Middleware []Middleware

	// BatchSize is how many messages share a transaction at most. Default 100: more gains little and
	// lengthens what a failure repeats; 1 costs a round trip and a flush to disk for each message.
	BatchSize int
	// BatchBytes bounds the values in a batch. Default 1 MiB. A larger message is a batch of its own.
	BatchBytes int
	// Linger is how long a batch that is not full waits for more. Default 5 ms.
	Linger time.Duration
	// ClaimFirst asks which messages are new before the handler sees any. Without it the handler may see a
	// duplicate whose effects are then rolled back: harmless for its writes in the transaction, not for whatever it does
	// outside. It costs a round trip a batch. Messages that stand alone, and those of a [BatchHandler], are always claimed first.
	ClaimFirst bool

	// PrefetchBytes bounds the messages that all partitions of this process together hold unpacked and not handled, counted by
	// [Message.Size]. It may be exceeded by one message of each partition, so that one larger than the bound still gets through. Half of it is
	// divided evenly between the partitions, half is lent to those that have more to read. What brokers sent and there is no room for
	// stays compressed. docs/operations.md, "Memory", says how large a container has to be. Default 16 MiB.
	PrefetchBytes int

	// MaxAttempts is how often a message that stands alone is tried before it is parked for an operator. Under [BlockPartition] it
	// counts only attempts that took the process with them. Default 5.
	MaxAttempts int
	// RetryMin and RetryMax bound the wait between attempts, which grows exponentially with jitter. Defaults 100 ms and 10 s.
	RetryMin, RetryMax time.Duration

	// MessageTimeout is how long one call of a message handler may take, and BatchTimeout all handlers of one transaction, or
	// one call of a batch handler. Then the handler's context ends, which counts as a failure of it. Defaults 30 s, or BatchTimeout where that is
	// less, and 60 s, or MessageTimeout where that is more.
	MessageTimeout, BatchTimeout time.Duration
	// HangTimeout is how long a handler may go on after its context has ended. Then its connection is cut and it is left
	// behind: see [ErrHandlerHung]. Default 5 s.
	HangTimeout time.Duration

	// LockTimeout bounds each wait for a lock in the transaction, such as for an uncommitted copy of a message.
	// Default 5 s.
	LockTimeout time.Duration
	// StatementTimeout bounds each statement. Default 30 s.
	StatementTimeout time.Duration
	// IdleTimeout ends a transaction whose handler, or OnBegin, sends nothing for so long. Default 60 s, or BatchTimeout where that is more. It also
	// bounds how long a process that was stopped in mid-batch keeps its successor waiting.
	IdleTimeout time.Duration
	// CommitTimeout bounds COMMIT and ROLLBACK, which a stop does not cut short. Default 15 s. COMMIT carries the statements that handlers have queued,
	// and waits for a synchronous standby. When the bound has passed the batch is done again on another connection, where the first one turns out to
	// have committed or not.
	CommitTimeout time.Duration
	// BlockedAfter is how long a message that stands alone may meet nothing but what the server says against its transaction and against no message: no room (class
	// 53), serialization failures, deadlocks, lock timeouts, sessions that an administrator ends. Then the partition halts as "blocked", so that
	// people learn of it. The message is tried again every few seconds, and the partition goes on by itself when that succeeds. Default 1 minute.
	BlockedAfter time.Duration
	// DrainTimeout is how long the batch in hand may still take when the partition is given up or Run is
	// cancelled. Then its context ends and it rolls back, unless its COMMIT is out already: that is waited for, and counts. DrainTimeout
	// also bounds each commit of an offset to Kafka. Default 10 s. It is one part of how long a stop takes: docs/operations.md, "How long a
	// stop takes", has the sum, and what the group's rebalance timeout must not be below.
	DrainTimeout time.Duration

	// Hooks are called at events; see [Hooks].
	Hooks Hooks
	// Logger receives what no caller is there to be told: retries, halts, parked messages. Nil: nothing is logged.
	// Payloads and keys are never logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	num(&c.BatchSize, 100)
	num(&c.BatchBytes, 1<<20)
	num(&c.MaxAttempts, 5)
	num(&c.PrefetchBytes, 16<<20)
	def(&c.Linger, 5*time.Millisecond)
	def(&c.RetryMin, 100*time.Millisecond)
	def(&c.RetryMax, 10*time.Second)
	if c.MessageTimeout == 0 && c.BatchTimeout > 0 {
		c.MessageTimeout = min(30*time.Second, c.BatchTimeout)
	}
	def(&c.MessageTimeout, 30*time.Second)
	def(&c.BatchTimeout, max(60*time.Second, c.MessageTimeout))
	def(&c.HangTimeout, 5*time.Second)
	def(&c.LockTimeout, 5*time.Second)
	def(&c.StatementTimeout, 30*time.Second)
	def(&c.IdleTimeout, max(60*time.Second, c.BatchTimeout))
	c.Brake = c.Brake.withDefaults()
	def(&c.BlockedAfter, time.Minute)
	def(&c.CommitTimeout, 15*time.Second)
	def(&c.DrainTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Start is where a partition begins for which nobody has said anything.
type Start int

// Starts. A partition that a topic gets later starts at its log's start under either: what is in it came after the decision.
const (
	StartEarliest Start = iota // at the log's start
	StartLatest                // at the log's end: what is there already is not handled
)

// FailurePolicy is what becomes of a message that cannot be applied: its handler says [Permanent], or fails at each of
// MaxAttempts attempts, or its attempts end without an answer, or it has no id, or another payload under an id that was used.
type FailurePolicy int

const (
	// ParkMessage sets the message aside for an operator, and goes on with those behind it. Until its attempts are used up the
	// partition waits.
	ParkMessage FailurePolicy = iota
	// ParkOrderingKey sets the message aside at its first failure as one that stands alone, and every later message of its
	// ordering key behind it, in order. They are tried again from the database while the partition goes on. When its
	// attempts are used up, or it is [Permanent], it waits for an operator, and those behind it wait for it.
	ParkOrderingKey
	// BlockPartition passes nothing over: the message is tried again until it goes through, and where another attempt cannot
	// help the partition halts.
	BlockPartition
)

// ErrConfig is wrapped by every fault that New finds.
var ErrConfig = errors.New("consumer")

// maxScope keeps the scope inside the names and metadata that carry it.
const maxScope = 200

func (c Config) faults(events bool) error {
	var faults []error
	fault := func(field, rule string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: Config.%s: %s", ErrConfig, field, fmt.Sprintf(rule, args...)))
	}
	if c.Scope == "" {
		fault("Scope", "must not be empty: it names this consumer, and keys and positions are kept under it")
	}
	if len(c.Scope) > maxScope {
		fault("Scope", "is %d bytes long: at most %d", len(c.Scope), maxScope)
	}
	switch {
	case events && (c.Key != nil || c.PositionsOnly || c.Tenant != nil):
		fault("Key", "must not be set, nor PositionsOnly and Tenant: the source is one of events, which have their ids and tenants from where they were appended")
	case events:
	case c.Key == nil && !c.PositionsOnly:
		fault("Key", "is not set: choose where a message's id is (HeaderKey, CloudEventKey, JSONKey or a function of yours), or set PositionsOnly to run without ids")
	case c.Key != nil && c.PositionsOnly:
		fault("PositionsOnly", "is set, and Key is too: choose one")
	case c.Key != nil:
		faults = append(faults, misbuilt(c.Key))
	}
	if strings.ContainsRune(c.Scope, 0) {
		fault("Scope", "must not hold a NUL character: PostgreSQL stores none")
	}
	if !slices.Contains([]FailurePolicy{ParkMessage, ParkOrderingKey, BlockPartition}, c.OnFailure) {
		fault("OnFailure", "is %d: must be ParkMessage, ParkOrderingKey or BlockPartition", c.OnFailure)
	}
	if c.CopiesWithin != 0 && (c.CopiesWithin < time.Second || c.Key == nil) {
		fault("CopiesWithin", "is %v: must be at least a second, or 0 for not declared, and needs Key", c.CopiesWithin)
	}
	if c.OrderingKey != nil && c.OnFailure != ParkOrderingKey {
		fault("OrderingKey", "is set, and OnFailure is not ParkOrderingKey: nothing would use it")
	}
	if c.Start != StartEarliest && c.Start != StartLatest {
		fault("Start", "is %d: must be StartEarliest or StartLatest", c.Start)
	}
	for i, m := range c.Middleware {
		if m == nil {
			fault("Middleware", "has nil at index %d", i)
		}
	}
	for _, n := range []struct {
		field string
		value int
	}{{"BatchSize", c.BatchSize}, {"BatchBytes", c.BatchBytes}, {"MaxAttempts", c.MaxAttempts},
		{"PrefetchBytes", c.PrefetchBytes}, {"Brake.Window", c.Brake.Window},
		{"Brake.Percent", c.Brake.Percent}, {"Brake.Least", c.Brake.Least}} {
		if n.value < 0 {
			fault(n.field, "is %d: must be positive, or 0 for the default", n.value)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"Linger", c.Linger}, {"RetryMin", c.RetryMin}, {"RetryMax", c.RetryMax},
		{"MessageTimeout", c.MessageTimeout}, {"BatchTimeout", c.BatchTimeout}, {"HangTimeout", c.HangTimeout},
		{"LockTimeout", c.LockTimeout}, {"StatementTimeout", c.StatementTimeout},
		{"IdleTimeout", c.IdleTimeout}, {"CommitTimeout", c.CommitTimeout}, {"BlockedAfter", c.BlockedAfter}, {"Brake.Every", c.Brake.Every}, {"DrainTimeout", c.DrainTimeout},
	} {
		switch {
		case d.value < 0:
			fault(d.field, "is %v: must be positive, or 0 for the default", d.value)
		case d.value > 0 && d.value < time.Millisecond:
			fault(d.field, "is %v: the unit is a millisecond", d.value)
		}
	}
	w := c.withDefaults()
	if w.Brake.Percent > 100 {
		fault("Brake.Percent", "is %d: must not be above 100; Brake.Off switches the brake off", w.Brake.Percent)
	}
	if w.Brake.Least > w.Brake.Window {
		fault("Brake.Least", "is %d: must not be above Brake.Window, %d", w.Brake.Least, w.Brake.Window)
	}
	if w.RetryMin > w.RetryMax {
		fault("RetryMax", "is %v: must not be below RetryMin, %v", w.RetryMax, w.RetryMin)
	}
	if w.MessageTimeout > w.BatchTimeout {
		fault("BatchTimeout", "is %v: must not be below MessageTimeout, %v, which it would cut short", w.BatchTimeout, w.MessageTimeout)
	}
	return errors.Join(faults...)
}

// misbuilt returns the fault of a KeyFunc of this package that was made with a bad argument; it returns it for every message.
func misbuilt(key KeyFunc) (err error) {
	defer func() {
		if recover() != nil {
			err = nil // a function of the user's that does not expect an empty message
		}
	}()
	if _, err = key(&Message{}); errors.Is(err, ErrConfig) {
		return err
	}
	return nil
}
