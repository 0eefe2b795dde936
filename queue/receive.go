package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
)

const (
	leastWait, mostWait = 50 * time.Millisecond, 30 * time.Second
	storeTimeout        = 30 * time.Second // of one transaction
	commitTimeout       = 15 * time.Second
	ackTimeout          = 10 * time.Second
	copyWait            = 250 * time.Millisecond // of one message for an uncommitted copy of it

	// copiesWait bounds the wait after a batch that the broker had delivered before and that was
	// stored already: a broker that takes no acknowledgement delivers it for ever.
	copiesWait = 250 * time.Millisecond
)

var (
	errReplaced = errors.New("another process receives from the queue now")
	errIdentify = errors.New("Config.Identify does not return")
	errDatabase = errors.New("the database does not answer")
	errRefused  = errors.New("message can be neither stored nor parked; leaving it with the broker")
)

// receiver is one run of Receive. It is the queue's way in.
type receiver struct {
	*Queue
	storing *intake.Store[*incoming]
	brake   *brake.Window
	lease   *lease.Lease // of the place, with Config.Ordered
	renewed time.Time
	tooOld  *time.Time // what was too old when the session began; nil: nothing was
	logged  pace.Seldom
}

func newReceiver(q *Queue) *receiver {
	r := &receiver{Queue: q, brake: brake.Settings(q.cfg.Brake).New()}
	r.storing = &intake.Store[*incoming]{
		Intake: intake.New(intake.Intake{
			Pool:          q.pool,
			Topic:         Topic(q.cfg.Name),
			Scope:         Scope(q.cfg.Name),
			Partitions:    q.cfg.Partitions,
			Sealer:        q.cfg.Sealer,
			Logger:        q.cfg.Logger,
			CommitTimeout: commitTimeout,
		}),
		Way:     r,
		Append:  true,
		Ordered: q.cfg.Ordered,
		Timeout: storeTimeout,
		Wait:    copyWait,
	}
	return r
}

// run holds one session with the broker after another. For the database it waits at most a second
// (T12).
func (r *receiver) run(ctx context.Context) error {
	defer r.release(ctx)
	waits := pace.Backoff(leastWait, mostWait)
	primaryWaits := primary.Backoff(r.cfg.LeaseTTL)
	for ctx.Err() == nil {
		wait := waits
		err := r.session(ctx, func() { waits.Reset(); primaryWaits.Reset() })
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrConfig):
			r.state.Set(err)
			return err
		case errors.Is(err, errDatabase):
			wait = primaryWaits
		}
		if err != nil {
			r.fails(err)
		}
		pace.Sleep(ctx, wait.NextBackOff())
	}
	return nil
}

// fails notes why nothing is received. It logs that once in a while for each step, so that no step
// hides what fails in another one.
func (r *receiver) fails(err error) {
	r.state.Set(err)
	step := "session"
	if at, is := errors.AsType[*stepError](err); is {
		step = at.step
	}
	if held, yes := r.logged.Let(step, time.Now(), pace.Refusals); yes {
		r.cfg.Logger.Warn("onlyonce: receiving from a queue failed; it is tried again",
			"queue", r.cfg.Name, "step", step, "error", err, "not_logged", held)
	}
}

// stepError is what failed in one step of a session.
type stepError struct {
	step string
	error
}

func (e *stepError) Unwrap() error { return e.error }

// session receives until something fails. It returns nil if another process has the place.
func (r *receiver) session(ctx context.Context, works func()) error {
	if mine, err := r.hold(ctx); !mine || err != nil {
		if err == nil {
			r.state.Set(nil)
			works()
			pace.Sleep(ctx, r.cfg.LeaseTTL/3)
		}
		return err
	}
	if v, ok := r.broker.(BrokerEnd); ok {
		defer v.End()
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if k, ok := r.broker.(BrokerRetention); ok && k.Retention() > r.cfg.CopiesWithin {
		return fmt.Errorf("%w: Config.CopiesWithin: is %v: the broker keeps messages for %v, and may "+
			"deliver one again for as long", ErrConfig, r.cfg.CopiesWithin, k.Retention())
	}
	if err := r.beginAge(ctx); err != nil {
		return err
	}
	copies := pace.Backoff(time.Millisecond, copiesWait)
	var refused error // why messages of this session stay at the broker; it delivers them to the next one
	for ctx.Err() == nil {
		if mine, err := r.hold(ctx); !mine || err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, r.cfg.LeaseTTL/3)
		all, err := r.broker.Receive(bounded, r.cfg.Batch)
		cancel()
		if err != nil {
			return &stepError{"receive", err}
		}
		done, some, err := r.store(ctx, all)
		if some != nil {
			refused = &stepError{"refused", some}
		}
		if err == nil && refused == nil || done.Fresh > 0 {
			works()
		}
		switch {
		case err != nil:
			return err
		case refused == nil:
			r.state.Set(nil)
		case r.cfg.Ordered || len(all) == 0: // else later messages would wait for those of the next session (Q4)
			return refused
		default:
			r.fails(refused)
		}
		if len(all) > 0 &&
			done.Fresh+done.Parked == 0 &&
			!slices.ContainsFunc(all, func(d *Delivery) bool { return !d.Redelivered }) {
			pace.Sleep(ctx, copies.NextBackOff())
		} else {
			copies.Reset()
		}
	}
	return nil
}

// begin calls Broker.Begin, which may take long, and keeps the place meanwhile.
func (r *receiver) begin(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- r.broker.Begin(ctx, r.cfg.Ordered) }()
	tick := time.NewTicker(r.cfg.LeaseTTL / 3)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
			if mine, err := r.hold(ctx); !mine || err != nil {
				cancel(errors.Join(err, errReplaced))
			}
		}
	}
}

// store stores deliveries, for as long as that takes and the place is held, and acknowledges those
// that are stored (Q1, Q3). refused says why some of them stay at the broker; with Ordered all
// later ones do.
func (r *receiver) store(ctx context.Context, all []*Delivery) (done StoredEvent, refused, err error) {
	wait := primary.Backoff(r.cfg.LeaseTTL)
	left := r.identify(all)
	next := len(left) // so many are stored next
	for {
		o, err := r.storeOnce(ctx, left[:next])
		left = append(o.left, left[next:]...)
		done = done.plus(o.counts)
		refused = errors.Join(refused, o.refused)
		switch {
		case err != nil:
			return done, refused, err
		case errors.Is(o.failed, errReplaced):
			return done, refused, o.failed
		case len(left) == 0, refused != nil && r.cfg.Ordered:
			return done, refused, nil
		}
		next = len(left)
		stop, braked := errors.AsType[*brakeError](o.failed)
		switch {
		case braked && left[0] != stop.at:
			next = slices.Index(left, stop.at)
		case braked && o.counts.Fresh > 0: // they count now, and may have released the brake
		case braked:
			if left, err = r.standStill(ctx, stop, left); err != nil {
				return done, refused, err
			}
		case o.failed != nil:
			failed := &stepError{"store", o.failed}
			r.fails(failed)
			if lost := r.keep(ctx); lost != nil {
				return done, refused, errors.Join(failed, lost)
			}
			if !pace.Sleep(ctx, wait.NextBackOff()) {
				return done, refused, ctx.Err()
			}
		}
	}
}

// keep keeps the place while nothing is received. A broker with one active consumer delivers
// nothing to the next owner of the place while this session lasts, so keep returns an error, which
// ends the session, once the place may be another's (Q5).
func (r *receiver) keep(ctx context.Context) error {
	mine, err := r.hold(ctx)
	switch {
	case err == nil && !mine:
		return errReplaced
	case errors.Is(err, errReplaced), err != nil && time.Since(r.renewed) > r.cfg.LeaseTTL:
		return err
	}
	return nil
}

// stored is what became of deliveries.
type stored struct {
	counts  StoredEvent
	left    []*incoming // to be tried again
	refused error       // why the database does not take some of them, which stay at the broker
	failed  error       // why those of left are not stored
}

// storeOnce tries to store deliveries, and acknowledges those of each transaction once it is
// committed. A stop does not cut it short. err is the broker's.
func (r *receiver) storeOnce(ctx context.Context, all []*incoming) (o stored, err error) {
	ctx = context.WithoutCancel(ctx)
	for part := range r.storing.Each(ctx, all) {
		var counts StoredEvent
		var kept []*Delivery
		for _, in := range part {
			r.brake.Ended(in)
			if r.judge(&o, in) {
				kept = append(kept, in.delivery)
				counts.count(in.item.Outcome)
				r.record(in)
			}
		}
		o.counts = o.counts.plus(counts)
		if len(kept) == 0 {
			continue
		}
		if r.cfg.OnStored != nil {
			r.cfg.OnStored(counts)
		}
		bounded, cancel := context.WithTimeout(ctx, ackTimeout)
		err := r.broker.Ack(bounded, kept)
		cancel()
		if err != nil {
			return o, &stepError{"acknowledge", err}
		}
	}
	return o, nil
}

// judge reports whether a delivery is stored, and otherwise records why not. Those behind a
// delivery that is tried again are tried again with it.
func (r *receiver) judge(o *stored, in *incoming) bool {
	err := in.item.Err
	switch {
	case err == nil:
		return true
	case guard.SQLState(err) == "OO001":
		r.lease = nil
		o.failed = errReplaced
		o.left = append(o.left, in)
	case intake.Unstorable(err):
		o.refused = errors.Join(o.refused, errRefused, err)
	default:
		o.failed = cmp.Or(o.failed, err)
		o.left = append(o.left, in)
	}
	return false
}

func (s StoredEvent) plus(o StoredEvent) StoredEvent {
	return StoredEvent{
		Fresh:  s.Fresh + o.Fresh,
		Copies: s.Copies + o.Copies,
		Parked: s.Parked + o.Parked,
	}
}

// count counts a message.
func (s *StoredEvent) count(o intake.Outcome) {
	switch o {
	case intake.Taken:
		s.Fresh++
	case intake.Copied:
		s.Copies++
	case intake.Parked:
		s.Parked++
	}
}

// hold takes or renews the receiver's place, if there is only one (Q5).
func (r *receiver) hold(ctx context.Context) (mine bool, err error) {
	if !r.cfg.Ordered {
		return true, nil
	}
	if r.lease == nil {
		r.lease, err = lease.Acquire(ctx, r.pool, names.Receiver(r.cfg.Name), r.cfg.LeaseTTL)
		if err != nil {
			return false, fmt.Errorf("%w: %w", errDatabase, err)
		}
		if r.lease == nil {
			return false, nil
		}
		r.renewed = r.lease.Sent
	}
	if time.Since(r.renewed) < r.cfg.LeaseTTL/3 {
		return true, nil
	}
	bounded, cancel := context.WithTimeout(ctx, r.cfg.LeaseTTL/3)
	defer cancel()
	mine, err = r.lease.Renew(bounded, r.pool, r.cfg.LeaseTTL)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errDatabase, err)
	}
	if !mine {
		r.lease = nil
		return false, errReplaced
	}
	r.renewed = r.lease.Sent
	return true, nil
}

// release gives the place back, so that another process need not wait for its end.
func (r *receiver) release(ctx context.Context) {
	if r.lease == nil {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.LeaseTTL/3)
	defer cancel()
	_ = r.lease.Release(bounded, r.pool) // otherwise it ends by itself
}
