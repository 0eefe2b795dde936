package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Config says how a Consumer works. The zero value of a field means its documented default; New refuses
// values that make no sense and lists every one. Two choices change the guarantee and have no default: Scope, and
// one of Key and PositionsOnly.
type Config struct {
	// Scope names this consumer: its keys and positions are its own. Two deployments with one scope are one
	// consumer; a new scope starts over with every message. Required, at most 200 bytes.
	Scope string

	// Key finds the id of a message, chosen by its producer and the same on each of its copies; see [HeaderKey],
	// [CloudEventKey] and [JSONKey]. A message for which it fails or returns "" is parked with reason no-key.
	Key KeyFunc
	// PositionsOnly runs without ids: redeliveries of a record do nothing, and a copy that a producer wrote to
	// another offset is another message. Set exactly one of Key and PositionsOnly.
	PositionsOnly bool
	// Tenant names the customer that a message belongs to, where customers choose ids themselves. Nil: one tenant.
	Tenant func(*Message) string

	// BatchSize is how many messages share a transaction at most. Default 100: more gains little and
	// lengthens what a failure repeats; 1 costs a round trip and a flush to disk for each message.
	BatchSize int
	// BatchBytes bounds the values in a batch. Default 1 MiB. A larger message is a batch of its own.
	BatchBytes int
	// Linger is how long a batch that is not full waits for more. Default 5 ms.
	Linger time.Duration
	// ClaimFirst asks which messages are new before the handler sees any. Without it the handler may see a
	// duplicate whose effects are then rolled back: harmless for its writes in the transaction, not for whatever it does
	// outside. It costs a round trip a batch. Messages that stand alone are always claimed first.
	ClaimFirst bool

	// MaxAttempts is how often a message that stands alone is tried before it is parked. Default 5.
	MaxAttempts int
	// RetryMin and RetryMax bound the wait between attempts, which grows exponentially with jitter. Defaults 100 ms and 10 s.
	RetryMin, RetryMax time.Duration

	// LockTimeout bounds each wait for a lock in the transaction, such as for an uncommitted copy of a message.
	// Default 5 s.
	LockTimeout time.Duration
	// StatementTimeout bounds each statement. Default 30 s.
	StatementTimeout time.Duration
	// IdleTimeout ends a transaction whose handler sends nothing for so long. Default 60 s. It also bounds how long a process that
	// was stopped in mid-batch keeps its successor waiting.
	IdleTimeout time.Duration
	// DrainTimeout is how long the batch in hand may still take when the partition is given up or Run is
	// cancelled; then its context ends and it rolls back. Default 10 s. Keep it below the group's rebalance timeout.
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
	def(&c.Linger, 5*time.Millisecond)
	def(&c.RetryMin, 100*time.Millisecond)
	def(&c.RetryMax, 10*time.Second)
	def(&c.LockTimeout, 5*time.Second)
	def(&c.StatementTimeout, 30*time.Second)
	def(&c.IdleTimeout, 60*time.Second)
	def(&c.DrainTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// ErrConfig is wrapped by every fault that New finds.
var ErrConfig = errors.New("consumer")

// maxScope keeps the scope inside the names and metadata that carry it.
const maxScope = 200

func (c Config) faults() error {
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
	case c.Key == nil && !c.PositionsOnly:
		fault("Key", "is not set: choose where a message's id is (HeaderKey, CloudEventKey, JSONKey or a function of yours), or set PositionsOnly to run without ids")
	case c.Key != nil && c.PositionsOnly:
		fault("PositionsOnly", "is set, and Key is too: choose one")
	case c.Key != nil:
		faults = append(faults, misbuilt(c.Key))
	}
	for _, n := range []struct {
		field string
		value int
	}{{"BatchSize", c.BatchSize}, {"BatchBytes", c.BatchBytes}, {"MaxAttempts", c.MaxAttempts}} {
		if n.value < 0 {
			fault(n.field, "is %d: must be positive, or 0 for the default", n.value)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"Linger", c.Linger}, {"RetryMin", c.RetryMin}, {"RetryMax", c.RetryMax},
		{"LockTimeout", c.LockTimeout}, {"StatementTimeout", c.StatementTimeout},
		{"IdleTimeout", c.IdleTimeout}, {"DrainTimeout", c.DrainTimeout},
	} {
		switch {
		case d.value < 0:
			fault(d.field, "is %v: must be positive, or 0 for the default", d.value)
		case d.value > 0 && d.value < time.Millisecond:
			fault(d.field, "is %v: the unit is a millisecond", d.value)
		}
	}
	if w := c.withDefaults(); w.RetryMin > w.RetryMax {
		fault("RetryMax", "is %v: must not be below RetryMin, %v", w.RetryMax, w.RetryMin)
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
