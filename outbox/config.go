package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// RelayConfig configures a [Relay]. The zero value of a field is the default that its comment
// names. A value out of range is an error of [NewRelay] and never adjusted.
type RelayConfig struct {
	// Sinks send the calls; each Call.Sink is the name of one. Relays that list a sink of one name
	// must send to the same remote: they share the sink's 16 lanes, and the relay that holds a
	// call's lane sends it. Required; names must be unique.
	Sinks []Sink

	// Concurrency is the number of calls under way at once, for each sink, in this relay: 1 to
	// 1,000. Each holds one row in memory, including its body. If it is too low, a slow remote
	// becomes the bottleneck. If it is too high, the remote may answer 429, and more calls are sent
	// twice (under the same keys) when a relay dies.
	//
	// A call of a tenant starts only if the tenant has fewer calls under way than slots are free.
	// So a tenant whose remote hangs leaves half of them to the others. InFlight of a [Rate] for
	// the tenant, or for each, replaces that. Defaults to 8.
	Concurrency int

	// PollInterval is how often an idle relay looks for due calls in its lanes, and how often each
	// looks for free lanes of its sinks: 10 ms to 1 minute. A call that another process commits, or
	// that is committed without a [Relay.Wake], waits for a fiftieth of the time since the call
	// before it, at least a twentieth of PollInterval and at most all of it. Each poll is one short
	// transaction. Defaults to 500 ms.
	PollInterval time.Duration

	// LeaseTTL is how long the lanes of a dead relay wait until another relay takes them over and
	// sends their rows again: 1 s to 10 minutes. The relay renews its leases after a third of it,
	// and stops sending nine tenths of it after it sent the last renewal. If it is short, a slow
	// database costs leases, and calls that were under way are sent again. Statements of the relay
	// may take a third of it. Defaults to 30 s.
	LeaseTTL time.Duration

	// Backoff bounds the wait between two attempts at a call: 1 ms to 24 hours. If the remote's
	// Retry-After is longer, the relay waits for that, up to an hour. Defaults to 1 s and 10
	// minutes.
	Backoff dedupe.Backoff

	// Retention is how long calls are kept in the log after they were written, and settled calls in
	// onlyonce.parked: at least 1 minute. Operators look at them. If a message is handled again,
	// for example in a replay or after a failover, its call's bytes are compared with those written
	// first.
	//
	// The log is dropped by segments, so the oldest calls are kept for up to half as long again. A
	// segment with unsent calls is kept. All relays of a database should set the same value.
	// Defaults to 7 days.
	Retention time.Duration

	// SegmentBytes is the size at which the log continues in another segment, in bytes: at least 1
	// MiB. There are six segments. If four full ones are younger than Retention, the current one
	// grows. Defaults to 256 MiB.
	SegmentBytes int64

	// DrainTimeout is how long calls under way may continue after Run's context has ended: 1 ms to
	// 10 minutes. A call that is cut off then is sent again later, under the same key. Defaults to
	// 10 s.
	DrainTimeout time.Duration

	// Rates limit how many calls all relays together start a second, and have under way at once, to
	// a sink, for one of its tenants, or for ordering keys with a prefix. The relay that is started
	// last sets those of its sinks. Defaults to none.
	Rates []Rate

	// Brake holds the calls of a sink, or of a tenant, if nearly all of the last ones were refused
	// alike. See [Brake] for its fields and their defaults.
	Brake Brake

	// PassOn lets the later calls of an ordering key continue if one is given up: rejected by the
	// remote, or of unknown outcome. Defaults to false: they wait until an operator has resolved
	// it.
	PassOn bool

	// Reconcile decides about a call whose outcome is unknown because the remote may have forgotten
	// its key. It asks the remote by the remote's own means, for example for a charge with the
	// call's reference. If applied is true, the call is settled. If it is false, the relay sends
	// the call again under the same key: return that only if no call is under way that the remote
	// could still apply. If that is not known yet, return an error, and the relay asks again later.
	//
	// A call with Call.Capture that was applied is settled without Complete, because its answer is
	// lost. Reconcile must be safe for concurrent use. Its context ends after the sink's timeout.
	// Defaults to nil: an operator decides.
	Reconcile func(ctx context.Context, a *Attempt) (applied bool, err error)

	// Complete receives the answer to each call with Call.Capture, in a transaction that settles
	// the call. Its writes commit once for each call. If it returns an error, its writes are
	// undone, and it is called again later without another call to the remote. [Permanent] leaves
	// the call to an operator.
	//
	// It may take a third of LeaseTTL. Later calls of the same ordering key wait for it. Required
	// if calls capture. If it is set and the first call that is delivered does not capture, that is
	// logged.
	Complete func(ctx context.Context, tx dedupe.GuardedTx, a *Attempt, answer *Response) error

	// WaitFor names standbys, by their application_name. A call goes out only after they have
	// flushed the commit of its work, so a failover to one of them does not undo that work. While
	// one of them is away, no calls are sent. Each name must belong to one standby: if two have it,
	// the relay waits for either. It needs the rights of pg_monitor. Defaults to none: a failover
	// may undo work whose calls went out.
	WaitFor []string

	// Sealer opens the bodies of calls that were sealed. Required if calls are sealed.
	Sealer Sealer

	// Hooks are called at events. See [Hooks]. Defaults to none.
	Hooks Hooks

	// Trace returns the W3C trace context of a context: a traceparent, and a tracestate in a second
	// line if there is one. It is called with the context of an Enqueue in Complete, and the new
	// call carries the result. Package telemetry sets it. It must be safe for concurrent use. If it
	// panics, or returns "" or anything but a trace context, the new call carries that of the
	// completed call. Defaults to the completed call's for all of them.
	Trace func(ctx context.Context) string

	// Logger receives events that cannot be returned as an error: parked calls, lost leases, failed
	// transactions. Payloads are never logged. Defaults to slog.Default(), at WARN and above.
	Logger *slog.Logger
}

// ErrConfig is wrapped by every error about a configuration.
var ErrConfig = errors.New("outbox: invalid configuration")

// withDefaults fills in the zero values and returns every fault at once.
func (c RelayConfig) withDefaults(pool *pgxpool.Pool) (RelayConfig, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "RelayConfig"}
	if pool == nil { // the simple protocol is good enough: no handler's SQL runs here
		l.Join(fmt.Errorf("%w: pool: must not be nil", ErrConfig))
	}
	l.Number("Concurrency", &c.Concurrency, 8, 1, 1000)
	l.Span("PollInterval", &c.PollInterval, 500*time.Millisecond, 10*time.Millisecond, time.Minute)
	l.Span("LeaseTTL", &c.LeaseTTL, 30*time.Second, time.Second, 10*time.Minute)
	l.Backoff(&c.Backoff.Min, &c.Backoff.Max, time.Second, 10*time.Minute, 24*time.Hour)
	l.Span("Retention", &c.Retention, 7*24*time.Hour, time.Minute, 100*365*24*time.Hour)
	c.SegmentBytes = cmp.Or(c.SegmentBytes, 256<<20)
	if c.SegmentBytes < 1<<20 {
		l.Add("SegmentBytes", "is %d: must be at least 1 MiB", c.SegmentBytes)
	}
	l.Span("DrainTimeout", &c.DrainTimeout, 10*time.Second, time.Millisecond, 10*time.Minute)
	l.Span("Brake.ProbeInterval", &c.Brake.ProbeInterval, 30*time.Second, time.Millisecond, time.Hour)
	c.Logger = fields.Logger(c.Logger)

	for i, name := range c.WaitFor {
		if name == "" || slices.Contains(c.WaitFor[:i], name) {
			l.Add("WaitFor", "%q is empty or there twice", name)
		}
	}
	checkSinks(&l, c.Sinks)
	checkRates(&l, c.Rates, c.Sinks)
	return c, l.Err()
}

// checkSinks notes what is wrong with the sinks.
func checkSinks(l *fields.List, sinks []Sink) {
	if len(sinks) == 0 {
		l.Add("Sinks", "must not be empty: a relay without a sink sends nothing")
	}
	seen := map[string]bool{}
	for i, s := range sinks {
		field := fmt.Sprintf("Sinks[%d]", i)
		if s == nil {
			l.Add(field, "must not be nil")
			continue
		}
		name := s.Name()
		if name == "" || len(name) > maxName || !isPrintable(name) {
			l.Add(field, "its name must be 1 to %d bytes of UTF-8 without control characters", maxName)
		}
		if seen[name] {
			l.Add(field, "a second sink named %q", name)
		}
		seen[name] = true
		limits := s.Limits()
		switch {
		case limits.Timeout <= 0:
			l.Add(field, "%s: Limits.Timeout must be positive", name)
		case limits.KeyWindow <= 0:
			l.Add(field, "%s: Limits.KeyWindow must be set: how long the remote remembers a key, or outbox.Forever",
				name)
		case limits.startWindow() <= 0:
			l.Add(field, "%s: Limits.KeyWindow, %v, leaves no time for an attempt of up to %v",
				name, limits.KeyWindow, limits.Timeout)
		}
	}
}
