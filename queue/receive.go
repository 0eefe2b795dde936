package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/pace"
)

const (
	leastWait, mostWait = 50 * time.Millisecond, 30 * time.Second
	storeTimeout        = 30 * time.Second // of one transaction
	commitTimeout       = 15 * time.Second
	ackTimeout          = 10 * time.Second

	// copiesWait bounds the wait after a batch that the broker had delivered before and that was
	// stored already: a broker that takes no acknowledgement delivers it for ever.
	copiesWait = 250 * time.Millisecond
)

var (
	errReplaced = errors.New("another process receives from the queue now")
	errIdentify = errors.New("Config.Identify does not return")
	errRefused  = errors.New("the database refuses to store or park a message: the broker keeps it")
)

// receiver is one run of Receive.
type receiver struct {
	*Queue
	lease   *lease.Lease // of the place, with Config.Ordered
	renewed time.Time
	logged  pace.Seldom
}

// run holds one session with the broker after another.
func (r *receiver) run(ctx context.Context) error {
	defer r.release(ctx)
	wait := pace.Backoff(leastWait, mostWait)
	for ctx.Err() == nil {
		err := r.session(ctx, wait.Reset)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrConfig):
			r.state.Set(err)
			return err
		case err != nil:
			r.fails(err)
		}
		pace.Sleep(ctx, wait.NextBackOff())
	}
	return nil
}

// fails notes why nothing is received, and logs it once in a while.
func (r *receiver) fails(err error) {
	r.state.Set(err)
	if held, yes := r.logged.Let("", time.Now(), pace.Refusals); yes {
		r.cfg.Logger.Warn("onlyonce: receiving from a queue failed; it is tried again", "queue", r.cfg.Name, "error", err, "not_logged", held)
	}
}

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
	if v, ok := r.broker.(interface{ End() }); ok {
		defer v.End()
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if k, ok := r.broker.(interface{ Retention() time.Duration }); ok && k.Retention() > r.cfg.CopiesWithin {
		return fmt.Errorf("%w: Config.CopiesWithin: is %v: the broker keeps messages for %v, and may deliver one again for as long", ErrConfig, r.cfg.CopiesWithin, k.Retention())
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
			return err
		}
		done, some, err := r.store(ctx, all)
		if some != nil {
			refused = some
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
		if len(all) > 0 && done.Fresh+done.Parked == 0 && !slices.ContainsFunc(all, func(d *Delivery) bool { return !d.Redelivered }) {
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

// store stores deliveries, for as long as that takes and the place is held, and then acknowledges
// them (Q1, Q3). refused says why some of them stay at the broker; with Ordered all later ones do.
func (r *receiver) store(ctx context.Context, all []*Delivery) (done Stored, refused, err error) {
	wait := pace.Backoff(leastWait, mostWait)
	in := r.identify(all)
	for part := range parts(in) {
		for {
			stored, kept, err := r.storePart(ctx, part)
			if err == nil {
				r.acknowledged(&done, stored)
				some, err := r.acknowledge(ctx, part, kept)
				refused = errors.Join(refused, some)
				if err != nil || refused != nil && r.cfg.Ordered {
					return done, refused, err
				}
				break
			}
			if guard.SQLState(err) == "OO001" {
				r.lease = nil
				return done, refused, errReplaced
			}
			r.fails(err)
			// A broker with one active consumer delivers nothing to the next owner of the place
			// while this session lasts, so it ends once the place may be another's (Q5).
			if r.cfg.Ordered && time.Since(r.renewed) > r.cfg.LeaseTTL {
				if _, lost := r.hold(ctx); lost != nil {
					return done, refused, errors.Join(err, lost)
				}
			}
			if !pace.Sleep(ctx, wait.NextBackOff()) {
				return done, refused, ctx.Err()
			}
		}
	}
	return done, refused, nil
}

func (r *receiver) acknowledged(done *Stored, part Stored) {
	done.Fresh, done.Copies, done.Parked = done.Fresh+part.Fresh, done.Copies+part.Copies, done.Parked+part.Parked
	if r.cfg.Stored != nil {
		r.cfg.Stored(part)
	}
	if part.Fresh > 0 {
		r.Wake()
	}
}

// acknowledge acknowledges what is stored, even if ctx has ended: all but what is kept for the
// reasons that refused joins.
func (r *receiver) acknowledge(ctx context.Context, part []*incoming, kept map[*incoming]error) (refused, err error) {
	var all []*Delivery
	var faults []error
	for _, in := range part {
		fault, is := kept[in]
		switch {
		case !is:
			all = append(all, in.delivery)
		case fault != nil:
			faults = append(faults, errRefused, fault)
		}
	}
	if len(all) > 0 {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
		defer cancel()
		err = r.broker.Ack(bounded, all)
	}
	return errors.Join(faults...), err
}

// hold takes or renews the receiver's place, if there is only one (Q5).
func (r *receiver) hold(ctx context.Context) (mine bool, err error) {
	if !r.cfg.Ordered {
		return true, nil
	}
	if r.lease == nil {
		if r.lease, err = lease.Acquire(ctx, r.pool, names.Receiver(r.cfg.Name), r.cfg.LeaseTTL); r.lease == nil || err != nil {
			return false, err
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
		return false, err
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
