package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/preflight"
)

// Relay sends what is in the outbox. Any number of relays may run, in any number of processes: for each sink one of
// them sends, and another takes over when it stops or dies.
type Relay struct {
	cfg     RelayConfig
	pool    *pgxpool.Pool
	senders []*sender
	running atomic.Bool
}

// ErrRunning is returned by Run of a relay that is running.
var ErrRunning = errors.New("outbox: this relay is running already")

// ErrStuck is wrapped by the error of a Run that had to give up a sink whose Send did not return after its context had
// ended. Its goroutine is left behind; its row is sent again, under the same key.
var ErrStuck = errors.New("outbox: a sink does not return")

// ErrRebase is wrapped by the error of a Run that found a lane's cursor to be of another database cluster: after a restore from a dump, or a move, transaction
// ids mean nothing. Nothing is sent from there. SQLSTATE OO007.
var ErrRebase = errors.New("outbox: the log is of another database cluster: run `onlyonce outbox rebase`")

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
		r.senders = append(r.senders, newSender(pool, cfg, s))
	}
	return r, nil
}

// Wake makes the relay look for due rows now. Call it after a transaction with calls has committed, in the
// same process; without it they are found at the next poll. It never blocks.
func (r *Relay) Wake() {
	for _, w := range r.senders {
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
	errs := make([]error, len(r.senders))
	var wg sync.WaitGroup
	for i, w := range r.senders {
		wg.Go(func() {
			if errs[i] = w.run(run); errs[i] != nil {
				errs[i] = fmt.Errorf("outbox: sink %s: %w", w.name, errs[i])
				stop() // the other sinks stop in order, so that the fault is seen
			}
		})
	}
	if r.cfg.Listen {
		var side sync.WaitGroup
		side.Go(func() { r.listen(run) })
		defer side.Wait()
	}
	wg.Wait()
	stop()
	return errors.Join(errs...)
}

// joinGrace is how long a sink may take to return after its context has ended, once the relay is to stop.
const joinGrace = 5 * time.Second

// incurable reports whether err says that our statements do not fit the schema or our rights (SQLSTATE class 42, and 3F for
// a missing schema). All else may pass: the server restarts, fails over, is out of memory, or cannot be reached.
func incurable(err error) bool {
	code := sqlState(err)
	return strings.HasPrefix(code, "42") || strings.HasPrefix(code, "3F")
}
