package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// sender sends one sink's calls, from the lanes that it holds. Its goroutine renews leases, takes
// and gives back lanes, and looks for work. Each lane has a goroutine of its own (laneOwner), and
// so has each call or each batch of calls.
type sender struct {
	*relaySink
	wake  chan struct{}
	hints laneHints
	link  ready.Link // to the database
}

func newSender(pool *primary.Pool, cfg RelayConfig, s Sink) *sender {
	return &sender{relaySink: newRelaySink(pool, cfg, s), wake: make(chan struct{}, 1)}
}

// run returns nil after ctx has ended and every lane is given back: their leases are renewed until
// their calls are settled. It returns an error for a fault that waiting does not heal.
func (s *sender) run(ctx context.Context) (fault error) {
	defer process.Shared[hintedLanes](ctx).add(s.name, &s.hints)()
	held := &heldLanes{
		relaySink: s.relaySink,
		ctx:       ctx,
		owners:    map[int16]*laneOwner{},
		ended:     make(chan *laneOwner, lanes),
	}
	poll := newPoll(held)
	leases := pace.Clock{Due: func(time.Time) time.Time { return held.renewAt }, Run: held.renew}
	rates := pace.Clock{Due: s.gate.Due, Run: func() error { return s.serveRates(ctx, held) }}
	work := clocks{waits: primary.Backoff(s.cfg.LeaseTTL), all: append(pace.Clocks{
		leases,
		{Due: poll.due, Run: poll.look},
		rates,
	}, s.upkeep(ctx, held)...)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopped := ctx.Done()
	stopping := false
	for !stopping || len(held.owners) > 0 {
		// leases last until their lanes are drained, and shares until calls have returned
		if !stopping && (ctx.Err() != nil || fault != nil) {
			stopping = true
			stopped = nil
			work.all = pace.Clocks{leases, rates}
			for _, o := range held.owners {
				o.lane.requestRelease()
			}
			continue
		}
		if now := time.Now(); !now.Before(work.retryAt) {
			err := work.run(now)
			if !stopping && needsOperator(err) && ctx.Err() == nil {
				fault = err
				continue
			}
			if !stopping {
				s.link.Set(err)
			}
			if err != nil {
				work.postpone(s.emit, err)
			}
		}
		timer.Reset(time.Until(work.next(time.Now())))
		select {
		case <-timer.C:
		case <-s.wake:
			poll.hinted(s.hints.bits.Swap(0))
		case <-s.gate.Needed():
		case o := <-held.ended:
			delete(held.owners, o.lane.number)
			fault = errors.Join(fault, o.err)
		case <-stopped:
		}
	}
	held.leave()
	return errors.Join(fault, s.stuck.err(s.name), s.gateFault())
}

// serveRates writes what remotes have asked for, takes the permits that are wanted, and wakes the
// lanes if more calls may be started.
func (s *sender) serveRates(ctx context.Context, held *heldLanes) error {
	if err := s.writeHolds(ctx); err != nil {
		return err
	}
	if q := s.gate.Ask(time.Now()); len(q.Parts) > 0 {
		if err := s.ask(ctx, q); err != nil {
			return err
		}
	}
	if s.gate.Regained() {
		for lane, o := range held.owners { // in random order
			o.wake(wakeup{Lane: lane})
		}
	}
	return nil
}

// gateFault reports slots that were lost or given back twice, after every lane has ended: a fault
// of the relay, whose calls under way would grow fewer, or more than RelayConfig.Concurrency.
func (s *sender) gateFault() error {
	if err := s.gate.Close(); err != nil {
		return fmt.Errorf("sink %s: %w", s.name, err)
	}
	return nil
}

// clocks are the clocks of one loop, in the order in which they run. After a database error none of
// them runs before retryAt.
type clocks struct {
	all     pace.Clocks
	retryAt time.Time
	waits   backoff.BackOff
}

// never is when a clock is due that has nothing to do.
var never = pace.Never

// run runs each clock that is due, once, up to the first error.
func (c *clocks) run(now time.Time) error {
	if err := c.all.Run(now); err != nil {
		return err
	}
	c.waits.Reset()
	return nil
}

// next returns when the first clock is due.
func (c *clocks) next(now time.Time) time.Time {
	next := c.all.Next(now)
	if next.Before(c.retryAt) {
		return c.retryAt
	}
	return next
}

// postpone emits a database error and puts the next try off.
func (c *clocks) postpone(emit emitter, err error) {
	d := c.waits.NextBackOff()
	emit.failed(err, d)
	c.retryAt = time.Now().Add(d)
}
