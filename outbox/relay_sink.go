package outbox

import (
	"context"
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
