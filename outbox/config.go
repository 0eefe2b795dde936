package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// RelayConfig is what a [Relay] needs. The zero value of a field is the default that its comment names; a value out of
// range is an error of [NewRelay] and never adjusted.
type RelayConfig struct {
	// Sinks send the calls; each Call.Sink is the name of one. Required, names unique. Relays that list a sink of one name must mean the same remote: they
	// share the sink's 16 lanes, so a call is sent by whichever of them holds the call's lane.
	Sinks []Sink

	// Concurrency is the number of calls under way at once, for each sink, in this relay. Default 8, at most 1,000. Each holds
	// one row in memory, its body included. Few make a slow remote the bottleneck; many may be what a
	// remote answers with 429, and are what is sent twice (under the same keys) when a relay dies.
	Concurrency int

	// PollInterval is how often a relay looks for due calls in its lanes when nobody calls Wake, and for lanes of its sinks that are free. Default 500 ms, from 10 ms to 1 minute. It is the delay of a call that was
	// committed without a Wake. Each poll is one short transaction.
	PollInterval time.Duration

	// LeaseTTL is how long a dead relay's lease keeps others from taking over, and its rows from being sent again. Default 30 s, from 1 s
	// to 10 minutes. The lease is renewed at a third of it, and the relay stops sending at nine tenths
	// counted from when the last renewal was sent: short values turn a slow database into lost leases, which
	// cost calls that are made again. Statements of the relay may take a third of it.
	LeaseTTL time.Duration

	// RetryMin and RetryMax bound the wait between two attempts at a call, which doubles from one to the other and is
	// spread by half of itself either way. Defaults 1 s and 10 minutes, from 1 ms to 24 hours. A remote's
	// Retry-After is honoured where it is longer, up to an hour.
	RetryMin, RetryMax time.Duration

	// Retention is how long calls are kept after they were written, at least, in the log, and settled ones in onlyonce.parked. Default 7 days,
	// at least 1 minute: for operators, and for calls of messages that are handled again (a replay, a failover), whose bytes are
	// compared with what was written first. The log is dropped by segments, so the oldest is up to half as old again; one that
	// holds calls which are not sent yet is kept. All relays of a database should say the same.
	Retention time.Duration

	// SegmentBytes is the size at which the log goes on in another segment. Default 256 MiB, at least 1 MiB. There are six segments: where
	// four full ones are younger than Retention, the current one grows.
	SegmentBytes int64

	// DrainTimeout is how long calls under way may go on once Run's context has ended. Default 10 s, from 1 ms to 10 minutes.
	// What is cut off then is sent again later, under the same key.
	DrainTimeout time.Duration

	// PassOn lets calls go on that stand behind one of their ordering key that is given up (rejected by the remote, or of unknown outcome). By
	// default they wait until an operator has resolved it.
	PassOn bool

	// Reconcile is asked about a call of which nobody knows whether the remote has applied it, because it may have forgotten the key: with
	// the remote's own means, by the call's contents or reference. [Applied] settles it, [NotApplied] lets it be sent again
	// under the same key; after [Unknown] or an error it is asked again later. A call that asked for the answer, and was applied, is
	// settled without Complete: nobody has the answer. It is called from several goroutines at once, and
	// ctx ends after the sink's timeout. Nil: an operator decides.
	Reconcile func(ctx context.Context, d *Delivery) (Reconciliation, error)

	// Complete gets the answer to each call that asked for it (Call.Capture), in a transaction that settles the call: what it writes
	// commits once for each call. An error undoes it, and it is called again later, without another call to the remote; [Permanent]
	// leaves it to an operator. It has a third of LeaseTTL. Calls of the same ordering key wait for it. Required where calls capture.
	Complete func(ctx context.Context, tx Tx, c *Completed) error

	// WaitFor names standbys (their application_name) that must have flushed what was committed before a call goes out, so that no
	// failover to one of them undoes work whose calls went out. While one of them is away nothing is sent. Needs the rights of
	// pg_monitor. Empty: a failover may leave calls for work that was undone.
	WaitFor []string

	// Listen holds one connection that listens for [Notify], so that calls go out at once that other processes enqueue. Without it they
	// are found at the next poll. It does not work through PgBouncer in transaction mode.
	Listen bool

	// Sealer opens the bodies of calls that were sealed. Required where calls are sealed.
	Sealer Sealer

	// Hooks are called at events; see [Hooks].
	Hooks Hooks
	// Logger receives what no caller is there to be told: parked calls, lost leases, failed transactions. Nil: nothing is
	// logged. Payloads are never logged.
	Logger *slog.Logger
}

// ErrConfig is wrapped by every error about a configuration.
var ErrConfig = errors.New("outbox: bad configuration")

// withDefaults fills in the zero values and returns every fault at once.
func (c RelayConfig) withDefaults(pool *pgxpool.Pool) (RelayConfig, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: RelayConfig.%s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	duration := func(field string, d *time.Duration, def, least, most time.Duration) {
		if *d == 0 {
			*d = def
		}
		if *d < least || *d > most {
			fault(field, "%v is not from %v to %v", *d, least, most)
		}
	}
	if pool == nil {
		faults = append(faults, fmt.Errorf("%w: pool: must not be nil", ErrConfig))
	}
	if c.Concurrency == 0 {
		c.Concurrency = 8
	}
	if c.Concurrency < 1 || c.Concurrency > 1000 {
		fault("Concurrency", "%d is not from 1 to 1000", c.Concurrency)
	}
	duration("PollInterval", &c.PollInterval, 500*time.Millisecond, 10*time.Millisecond, time.Minute)
	duration("LeaseTTL", &c.LeaseTTL, 30*time.Second, time.Second, 10*time.Minute)
	duration("RetryMin", &c.RetryMin, time.Second, time.Millisecond, 24*time.Hour)
	duration("RetryMax", &c.RetryMax, 10*time.Minute, time.Millisecond, 24*time.Hour)
	if c.RetryMax < c.RetryMin {
		fault("RetryMax", "%v is less than RetryMin, %v", c.RetryMax, c.RetryMin)
	}
	duration("Retention", &c.Retention, 7*24*time.Hour, time.Minute, 100*365*24*time.Hour)
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 256 << 20
	}
	if c.SegmentBytes < 1<<20 {
		fault("SegmentBytes", "%d is less than 1 MiB", c.SegmentBytes)
	}
	duration("DrainTimeout", &c.DrainTimeout, 10*time.Second, time.Millisecond, 10*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}

	for i, name := range c.WaitFor {
		if name == "" || slices.Contains(c.WaitFor[:i], name) {
			fault("WaitFor", "%q is empty or there twice", name)
		}
	}
	if len(c.Sinks) == 0 {
		fault("Sinks", "must not be empty: a relay without a sink sends nothing")
	}
	seen := map[string]bool{}
	for i, s := range c.Sinks {
		field := fmt.Sprintf("Sinks[%d]", i)
		if s == nil {
			fault(field, "must not be nil")
			continue
		}
		name := s.Name()
		if name == "" || len(name) > maxName || !printable(name) {
			fault(field, "its name must be 1 to %d bytes of UTF-8 without control characters", maxName)
		}
		if seen[name] {
			fault(field, "a second sink named %q", name)
		}
		seen[name] = true
		l := s.Limits()
		switch {
		case l.Timeout <= 0:
			fault(field, "%s: Limits.Timeout must be positive", name)
		case l.KeyWindow <= 0:
			fault(field, "%s: Limits.KeyWindow must be set: how long the remote remembers a key, or outbox.Forever", name)
		case l.startWindow() <= 0:
			fault(field, "%s: Limits.KeyWindow, %v, leaves no time for an attempt of up to %v", name, l.KeyWindow, l.Timeout)
		}
	}
	return c, errors.Join(faults...)
}
