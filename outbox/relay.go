package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// Relay sends the calls of the outbox. Any number of relays may run, in any number of processes.
// Those that list a sink share its 16 lanes evenly, and each sends the calls of its own lanes. If
// one stops, the others take its lanes over at once. If one dies, they do so when its leases have
// run out.
type Relay struct {
	cfg     RelayConfig
	pool    *primary.Pool
	senders []*sender
	rotator *ring.Rotator
	running atomic.Bool
	begun   ready.Run
}

// NewRelay checks the configuration and returns every fault of it at once. It does not connect.
//
// A relay shares the pool's connections among the lanes of all sinks, for short transactions. It
// holds no connection while it sends calls; four are enough. With Listen it holds one more. If
// other code can exhaust the pool, give the relay a pool of its own, because without a connection
// it loses its lanes.
func NewRelay(pool *pgxpool.Pool, cfg RelayConfig) (*Relay, error) {
	cfg.Logger = process.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	r := &Relay{cfg: cfg, pool: primary.Of(pool, cfg.Logger).Pinned()}
	if r.rotator, err = ring.New(pool, ring.Outbox(), ring.Config{
		Retention: cfg.Retention, MaxAge: cfg.Retention / 4, MaxBytes: cfg.SegmentBytes, LeaseTTL: cfg.LeaseTTL,
		Interval: time.Second, Timeout: max(cfg.LeaseTTL/3, time.Second),
		Hooks: ring.Hooks{
			Stepped: r.reportSegment,
			Failed:  func(err error) { cfg.Logger.Warn("onlyonce: rotating segments failed", "error", err) },
		},
	}); err != nil {
		return nil, err
	}
	captures := newCaptures(&cfg)
	for _, s := range cfg.Sinks {
		one := newSender(r.pool, cfg, s)
		one.captures = captures
		r.senders = append(r.senders, one)
	}
	process.Made(pool, process.Part{Relay: true})
	return r, nil
}

// Wake makes the relay look for due rows now. Call it after a transaction with calls has committed,
// in the same process. Without it the next poll finds them. It never blocks.
func (r *Relay) Wake() {
	for _, s := range r.senders {
		pace.Signal(s.wake)
	}
}

// askRemotes logs the warnings of the sinks' remotes that calls may be lost.
func (r *Relay) askRemotes(ctx context.Context) {
	for _, sink := range r.cfg.Sinks {
		p, is := sink.(Preflighter)
		if !is {
			continue
		}
		for _, w := range p.Preflight(ctx) {
			r.cfg.Logger.Warn("onlyonce: sink " + sink.Name() + ": " + w)
		}
	}
}

// Run sends until ctx ends, and then returns nil. It picks no more rows, gives calls under way
// RelayConfig.DrainTimeout to end, settles them and releases its leases.
//
// It returns an error at once if the schema does not fit or the database cannot be reached when it
// starts. Later it returns one only for lasting faults, for example missing rights or tables. After
// ctx has ended it also returns one if a Send has not returned after its own context had ended: its
// goroutine is abandoned, and its row is sent again under the same key. If the database becomes
// unreachable, Run waits for it.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: this relay is running already")
	}
	defer r.running.Store(false)
	asking, asked := process.AtStart(ctx)
	defer asked()
	roles := []preflight.Role{preflight.Relay}
	if len(r.cfg.WaitFor) > 0 {
		roles = append(roles, preflight.Standbys)
	}
	warnings, err := preflight.Check(asking, r.pool.Raw(), roles...)
	for _, w := range warnings {
		r.cfg.Logger.Warn("onlyonce: " + w)
	}
	if err == nil {
		err = checkStandbys(asking, r.pool, &r.cfg)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	defer r.begun.Begin(run)()
	completing := make(chan struct{}, max(r.pool.MaxConns()/2, 1))
	for _, s := range r.senders {
		s.completing = completing
	}
	errs := make([]error, len(r.senders))
	var wg sync.WaitGroup
	for i, s := range r.senders {
		wg.Go(func() {
			if errs[i] = s.run(run); errs[i] != nil {
				errs[i] = fmt.Errorf("outbox: sink %s: %w", s.name, errs[i])
				stop() // the other sinks stop in order, so that the fault is seen
			}
		})
	}
	var side sync.WaitGroup
	defer side.Wait()
	side.Go(func() { r.askRemotes(run) })
	side.Go(func() { r.rotateSegments(run) })
	side.Go(func() { r.reporter().Run(run) })
	side.Go(func() { inbox.Rotate(run, r.pool.Raw(), r.cfg.Logger) })
	var began time.Time
	side.Go(func() {
		<-run.Done()
		began = time.Now()
		r.cfg.Logger.Info("onlyonce: relay drains: calls under way may still end", "drain_timeout", r.cfg.DrainTimeout)
	})
	wg.Wait()
	stop()
	side.Wait()
	r.cfg.Logger.Info("onlyonce: relay stopped", "after", time.Since(began).Round(time.Millisecond))
	return errors.Join(errs...)
}

// Ready is for a readiness probe. It returns nil while Run works: it has checked the database, and
// takes part in each sink, with or without lanes. Before that, while the database fails, and once
// Run's context has ended, it returns an error.
func (r *Relay) Ready() error {
	err := r.begun.Err()
	for _, s := range r.senders {
		if down := s.link.Err(); err == nil && down != nil {
			err = fmt.Errorf("sink %s: %w", s.name, down)
		}
	}
	if err != nil {
		return fmt.Errorf("outbox: not ready: %w", err)
	}
	return nil
}

// Healthy returns an error that names each sink whose transactions have failed for longer than a
// third of LeaseTTL, for example because the server does not answer, that has a halted lane
// ([ErrRebase]), whose calls wait because nearly all are refused ([Brake]), whose remote has given
// no final answer for a minute although calls were tried, or whose calls have not returned although
// their contexts have ended. Use it for alerts and status pages, and not as a liveness probe: a
// restart does not repair that. Calls that wait for an operator are in `onlyonce status`.
func (r *Relay) Healthy() error {
	var faults []error
	for _, s := range r.senders {
		if err := s.link.Failing(s.dbTimeout); err != nil {
			faults = append(faults, fmt.Errorf("outbox: sink %s: %w", s.name, err))
		}
		if since, err := s.halts.first(); err != nil {
			faults = append(faults, fmt.Errorf("outbox: halted since %s: %w", since.UTC().Format(time.RFC3339), err))
		}
		if since, err := s.refusals.waiting(); err != nil {
			faults = append(
				faults,
				fmt.Errorf("outbox: sink %s: since %s %w", s.name, since.UTC().Format(time.RFC3339), err),
			)
		}
		if since, err := s.remote.down(); err != nil && time.Since(since) > remoteDownFor {
			faults = append(
				faults,
				fmt.Errorf("outbox: sink %s: no call was delivered since %s: %w",
					s.name, since.UTC().Format(time.RFC3339), err),
			)
		}
		if err := s.stuck.err(s.name); err != nil {
			faults = append(faults, fmt.Errorf("outbox: %w", err))
		}
	}
	return errors.Join(faults...)
}

// rotateSegments drops segments whose retention has passed, until ctx ends. If it fails, the relay
// sends all the same.
func (r *Relay) rotateSegments(ctx context.Context) {
	if err := r.rotator.Run(ctx); errors.Is(err, ring.ErrRights) {
		ring.LogNotRotating(ctx, r.cfg.Logger)
	} else if err != nil && ctx.Err() == nil {
		r.cfg.Logger.Warn("onlyonce: this relay does not drop old segments of the log; another one must", "error", err)
	}
}

// reportSegment reports what became of a segment.
func (r *Relay) reportSegment(o ring.StepResult) {
	switch o.Action {
	case ring.Truncated:
		r.cfg.Logger.Info("onlyonce: a segment whose retention has passed was emptied", "slot", o.Slot)
	case ring.Needed, ring.Full:
		r.cfg.Logger.Warn("onlyonce: the log grows, because its oldest segment cannot be emptied",
			"slot", o.Slot, "why", o.Why)
	}
}
