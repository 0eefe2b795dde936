package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/primary"
)

// relaySink is what the sender of a sink shares with the sink's lanes. It does not change while the
// relay runs, but for what is in slots and rates.
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
	slots       *callSlots
	rates       *relayRates
	completing  chan struct{} // completions under way, of all sinks
	halts       halts
}

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

// sinkReturnGrace is how long a sink may take to return after its context has ended, if the relay
// is to stop.
const sinkReturnGrace = 5 * time.Second

func newRelaySink(pool *primary.Pool, cfg RelayConfig, s Sink) *relaySink {
	b, _ := s.(Batcher)
	rates := newRelayRates(cfg.Concurrency, cfg.PollInterval)
	return &relaySink{
		cfg: cfg, pool: pool, sink: s, batcher: b, name: s.Name(), limits: s.Limits(),
		dbTimeout:   cfg.LeaseTTL / 3,
		returnGrace: sinkReturnGrace,
		emit:        emitter{hooks: cfg.Hooks, log: cfg.Logger, sink: s.Name()},
		slots:       newCallSlots(cfg.Concurrency, rates),
		rates:       rates,
	}
}

// detached returns a context for work that must not be cut off when ctx ends, bounded by the
// statement timeout.
func (s *relaySink) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.dbTimeout)
}

// newBackoff returns the waits between tries at a database that fails.
func (s *relaySink) newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(s.cfg.LeaseTTL/100),
		backoff.WithMaxInterval(s.cfg.LeaseTTL/10),
		backoff.WithMaxElapsedTime(0))
}
