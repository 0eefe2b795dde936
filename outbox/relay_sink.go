package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// maxRetryAfter bounds how long a remote may make a call wait.
const maxRetryAfter = gate.MaxHold

// relaySink is what the sender of a sink shares with the sink's lanes. It does not change while the
// relay runs, except its gate and its halts.
type relaySink struct {
	cfg         RelayConfig
	pool        *primary.Pool
	sink        Sink
	batcher     Batcher // the sink, if it is one; nil otherwise
	name        string
	limits      Limits
	dbTimeout   time.Duration // bounds each statement and each COMMIT
	returnGrace time.Duration
	emit        emitter
	gate        *gate.Gate
	relay       uuid.UUID     // names this relay among those that share what may be under way
	completing  chan struct{} // completions under way, of all sinks
	halts       halts
	refusals    *refusals
	remote      *remoteHealth
	captures    *captures // of the relay; nil: there is nothing to notice
	stuck       stuckCalls
}

// ErrRebase is wrapped by the error of [Relay.Healthy] while a lane has halted because its cursor,
// or rows of its log, are of another database cluster. After a restore from a dump, or a move,
// transaction ids have no meaning, so the lane sends no calls until `onlyonce outbox rebase`. Then
// it continues. Other lanes and sinks are not affected. SQLSTATE OO007.
var ErrRebase = errors.New("outbox: the log is of another database cluster: run `onlyonce outbox rebase`")

// halts holds why lanes that this relay holds stand still until an operator has decided.
type halts struct {
	mu    sync.Mutex
	lanes map[int16]halt
}

type halt struct {
	since time.Time
	err   error
}

// set notes that a lane stands still, or with nil that it does not. It reports whether that is new.
func (h *halts) set(lane int16, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, was := h.lanes[lane]
	switch {
	case err == nil:
		delete(h.lanes, lane)
	case h.lanes == nil:
		h.lanes = map[int16]halt{lane: {time.Now(), err}}
	case !was:
		h.lanes[lane] = halt{time.Now(), err}
	}
	return was != (err != nil)
}

// first returns the lane with the lowest number that stands still: why, and since when.
func (h *halts) first() (since time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lanes) == 0 {
		return time.Time{}, nil
	}
	first := h.lanes[slices.Min(slices.Collect(maps.Keys(h.lanes)))]
	if n := len(h.lanes) - 1; n > 0 {
		return first.since, fmt.Errorf("%w (and %d more lanes)", first.err, n)
	}
	return first.since, first.err
}

// sinkReturnGrace is how long a sink may take to return after the context of a call has ended
// (O18).
const sinkReturnGrace = 5 * time.Second

func newRelaySink(pool *primary.Pool, cfg RelayConfig, s Sink) *relaySink {
	b, _ := s.(Batcher)
	return &relaySink{
		cfg: cfg, pool: pool, sink: s, batcher: b, name: s.Name(), limits: s.Limits(),
		dbTimeout:   cfg.LeaseTTL / 3,
		returnGrace: sinkReturnGrace,
		emit:        emitter{hooks: cfg.Hooks, log: cfg.Logger, sink: s.Name()},
		gate:        gate.New(cfg.Concurrency, cfg.PollInterval),
		relay:       uuid.New(),
		refusals:    newRefusals(cfg.Brake, s.Name(), cfg.Logger),
		remote:      newRemoteHealth(s.Name(), cfg.Logger, cfg.Backoff.Max),
	}
}

// detached returns a context for work that must not be cut off when ctx ends, bounded by the
// statement timeout (T5).
func (s *relaySink) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.dbTimeout)
}

// whenOpen returns when work that is due at a time may begin: not before the next poll if it is due
// and the sink takes no calls. If an operator resumes it before, or a rate allows more calls, the
// sender wakes the lanes.
func (s *relaySink) whenOpen(now, at time.Time) time.Time {
	if now.Before(at) || s.gate.TakesCalls() {
		return at
	}
	return now.Add(s.cfg.PollInterval)
}

// holdCalls holds the calls that a result selects, see [RetryAuto], and logs the first time that it
// is so.
func (s *relaySink) holdCalls(tenant string, r Result) {
	d := cmp.Or(r.RetryAfter, r.HoldFor)
	why := storedText(r.HoldReason)
	k := gate.Key{Tenant: tenant}
	if r.RetryScope == RetrySink {
		k = gate.All
	}
	if !s.gate.Hold(k, d, r.RetryScope != RetryTenant, why) {
		return
	}
	s.cfg.Logger.Warn("onlyonce: calls of a sink are held for a time; then one is tried",
		"sink", s.name, "tenant", tenant, "for", min(d, maxRetryAfter),
		"why", cmp.Or(why, "the remote asks for it (Retry-After)"))
}

// needsOperator reports whether err means that our statements do not fit the schema or our rights
// (SQLSTATE class 42, and 3F for a missing schema). All other errors may pass, for example if the
// server restarts, fails over, is out of memory or cannot be reached.
func needsOperator(err error) bool {
	code := guard.SQLState(err)
	return strings.HasPrefix(code, "42") || strings.HasPrefix(code, "3F")
}
