package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/preflight"
)

// Relay sends what is in the outbox. Any number of relays may run, in any number of processes: for each sink one of
// them sends, and another takes over when it stops or dies.
type Relay struct {
	cfg     RelayConfig
	pool    *pgxpool.Pool
	workers []*worker
	running atomic.Bool
}

// ErrRunning is returned by Run of a relay that is running.
var ErrRunning = errors.New("outbox: this relay is running already")

// ErrStuck is wrapped by the error of a Run that had to give up a sink whose Send did not return after its context had
// ended. Its goroutine is left behind; its row is sent again, under the same key.
var ErrStuck = errors.New("outbox: a sink does not return")

// NewRelay checks the configuration and returns every fault of it at once. It does not connect.
//
// A relay uses at most one of the pool's connections for each sink at a time, and none while it calls. If others can
// exhaust the pool, give the relay one of its own: without a connection it loses its leases.
func NewRelay(pool *pgxpool.Pool, cfg RelayConfig) (*Relay, error) {
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, pool: pool}
	for _, s := range cfg.Sinks {
		r.workers = append(r.workers, &worker{
			cfg: cfg, pool: pool, sink: s, name: s.Name(), limits: s.Limits(),
			dbTimeout: cfg.LeaseTTL / 3,
			tell:      observer{hooks: cfg.Hooks, log: cfg.Logger, sink: s.Name()},
			wake:      make(chan struct{}, 1),
			joinGrace: joinGrace,
		})
	}
	return r, nil
}

// Wake makes the relay look for due rows now. Call it after a transaction with calls has committed, in the
// same process; without it they are found at the next poll. It never blocks.
func (r *Relay) Wake() {
	for _, w := range r.workers {
		select {
		case w.wake <- struct{}{}:
		default: // a wake-up is waiting already
		}
	}
}

// Run sends until ctx ends, and then returns nil: it picks no more rows, gives calls under way RelayConfig.DrainTimeout to
// end, settles them and releases its leases. It returns an error at once if the schema does not
// fit or the database cannot be reached when it starts; later only for faults that waiting does not
// heal (missing rights or tables, a sink that does not return). A database that goes away is waited for.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)
	warnings, err := preflight.Check(ctx, r.pool, preflight.Relay)
	for _, w := range warnings {
		r.cfg.Logger.Warn("onlyonce: " + w)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("outbox: %w", err)
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(r.workers))
	var wg sync.WaitGroup
	for i, w := range r.workers {
		wg.Go(func() {
			if errs[i] = w.run(run); errs[i] != nil {
				errs[i] = fmt.Errorf("outbox: sink %s: %w", w.name, errs[i])
				stop() // the other sinks stop in order, so that the fault is seen
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// joinGrace is how long a sink may take to return after its context has ended, once the relay is to stop.
const joinGrace = 5 * time.Second

// worker competes for one sink's lease and sends its calls while it holds it.
type worker struct {
	cfg       RelayConfig
	pool      *pgxpool.Pool
	sink      Sink
	name      string
	limits    Limits
	dbTimeout time.Duration // bounds each statement and each COMMIT
	wake      chan struct{}
	joinGrace time.Duration
	tell      observer
}

// detached returns a context for work that must not be cut off when ctx ends, bounded by the statement timeout.
func (w *worker) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), w.dbTimeout)
}

// run returns nil once ctx has ended, or a fault that waiting does not heal.
func (w *worker) run(ctx context.Context) error {
	pause := w.pauses()
	for ctx.Err() == nil {
		l, err := w.acquireLease(ctx)
		switch {
		case ctx.Err() != nil && l == nil:
			return nil
		case err != nil && incurable(err):
			return err
		case err != nil:
			d := pause.NextBackOff()
			w.tell.failed(err, d)
			wait(ctx, d)
		case l == nil:
			pause.Reset()
			wait(ctx, w.cfg.PollInterval)
		default:
			pause.Reset()
			w.tell.lease(LeaseChange{Epoch: l.epoch, Held: true})
			if err := newTenure(ctx, w, l).run(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// pauses is the schedule of tries at a database that fails.
func (w *worker) pauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(w.cfg.LeaseTTL/100),
		backoff.WithMaxInterval(w.cfg.LeaseTTL/10),
		backoff.WithMaxElapsedTime(0))
}

// retryDelay is how long a call waits after its attempt number n, before the spread.
func (w *worker) retryDelay(attempt int, after time.Duration) time.Duration {
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(w.cfg.RetryMin),
		backoff.WithMaxInterval(w.cfg.RetryMax),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0))
	d := b.NextBackOff()
	for range min(attempt, 64) - 1 { // 64 doublings pass any maximum
		d = b.NextBackOff()
	}
	return max(d, min(after, maxRetryAfter))
}

// maxRetryAfter bounds what a remote may ask for: a wrong unit in a header must not put a call off for days.
const maxRetryAfter = time.Hour

// incurable reports whether err says that our statements do not fit the schema or our rights (SQLSTATE class 42, and 3F for
// a missing schema). All else may pass: the server restarts, fails over, is out of memory, or cannot be reached.
func incurable(err error) bool {
	code := sqlState(err)
	return strings.HasPrefix(code, "42") || strings.HasPrefix(code, "3F")
}

// wait returns after d or when ctx has ended.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
