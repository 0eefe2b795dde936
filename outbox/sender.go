package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/watch"
)

// sender sends one sink's calls, from the lanes that it holds. Its goroutine renews leases, takes
// and gives back lanes, and looks for work. Each lane has a goroutine of its own (laneOwner), and
// so has each call or each batch of calls.
type sender struct {
	*relaySink
	wake  chan struct{}
	hints laneHints
	link  ready.Link // to the database

	held       map[int16]*laneOwner
	ended      chan *laneOwner
	membership *lease.Lease // shows other relays that this one lists the sink

	pollLanesAt time.Time
	renewAt     time.Time
	pollWorkAt  time.Time
	purgeAt     time.Time
	watched     *watch.Clock // of purge
	retry       dbRetry

	waits      map[callsOf]bool // whose calls wait for a rate, as far as waitingSQL has come
	waitsAfter waitingCalls     // where it goes on
}

func newSender(pool *primary.Pool, cfg RelayConfig, s Sink) *sender {
	return &sender{relaySink: newRelaySink(pool, cfg, s), wake: make(chan struct{}, 1), watched: watch.New(pool, watch.Often), waits: map[callsOf]bool{}, waitsAfter: noWaiting}
}

// run returns nil after ctx has ended and every lane is given back. It returns an error for a fault
// that waiting does not heal.
func (s *sender) run(ctx context.Context) error {
	hintedSenders.add(s)
	defer hintedSenders.remove(s)
	s.held, s.ended = map[int16]*laneOwner{}, make(chan *laneOwner, lanes)
	s.retry = dbRetry{waits: s.newBackoff()}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var fault error
	timer := time.NewTimer(0)
	defer timer.Stop()
	for stop.Err() == nil {
		if err := s.runDue(stop); err != nil && stop.Err() == nil {
			if needsOperator(err) {
				fault = err
				break
			}
			s.link.Set(err)
			s.retry.postpone(s.emit, err)
		}
		timer.Reset(time.Until(s.nextDue()))
		select {
		case <-timer.C:
		case <-s.wake:
			s.handleWake()
		case <-s.rates.needed:
		case o := <-s.ended:
			if err := s.removeLane(o); err != nil && fault == nil {
				fault = err
				cancel()
			}
		case <-stop.Done():
		}
	}
	cancel()
	return errors.Join(fault, s.releaseLanes(ctx))
}

// releaseLanes gives every lane back, once its calls are settled, and renews their leases until
// then.
func (s *sender) releaseLanes(ctx context.Context) (fault error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ratesAt := time.Now() // not before
	for len(s.held) > 0 {
		for _, o := range s.held {
			o.lane.requestRelease()
		}
		due := s.renewAt
		if at := s.rates.next(time.Now()); !at.IsZero() && at.Before(due) {
			due = at
		}
		if due.Before(ratesAt) {
			due = ratesAt
		}
		timer.Reset(time.Until(due))
		select {
		case <-s.rates.needed:
		case o := <-s.ended:
			if err := s.removeLane(o); err != nil {
				fault = errors.Join(fault, err)
			}
		case <-timer.C: // leases last until their lanes are drained, and shares until calls have returned
			if !time.Now().Before(s.renewAt) {
				if err := s.renew(context.WithoutCancel(ctx)); err != nil {
					s.emit.failed(err, 0)
					s.renewAt = time.Now().Add(s.cfg.LeaseTTL / 30)
				}
			}
			if err := s.serveRates(context.WithoutCancel(ctx)); err != nil {
				s.emit.failed(err, 0)
				ratesAt = time.Now().Add(s.cfg.LeaseTTL / 30)
			}
		}
	}
	if s.membership != nil {
		bounded, cancel := s.detached(ctx)
		defer cancel()
		s.leaveShares(bounded)
		_ = s.membership.Release(bounded, s.pool) // if that fails it ends by itself
		s.membership = nil
	}
	return fault
}

// removeLane removes a lane whose owner has ended.
func (s *sender) removeLane(o *laneOwner) error {
	delete(s.held, o.lane.number)
	return o.err
}

// nextDue returns when runDue has something to do if nothing else happens.
func (s *sender) nextDue() time.Time {
	next := s.renewAt
	for _, at := range []time.Time{s.pollLanesAt, s.pollWorkAt} {
		if at.Before(next) {
			next = at
		}
	}
	if at := s.rates.next(time.Now()); !at.IsZero() && at.Before(next) {
		next = at
	}
	if next.Before(s.retry.at) {
		return s.retry.at
	}
	return next
}

// runDue does what is due.
func (s *sender) runDue(ctx context.Context) error {
	if time.Now().Before(s.retry.at) {
		return nil
	}
	if !time.Now().Before(s.renewAt) {
		if err := s.renew(ctx); err != nil {
			return err
		}
	}
	if !time.Now().Before(s.pollLanesAt) {
		if err := s.pollLanes(ctx); err != nil {
			return err
		}
	}
	if !time.Now().Before(s.pollWorkAt) {
		if err := s.pollWork(ctx); err != nil {
			return err
		}
	}
	if err := s.serveRates(ctx); err != nil {
		return err
	}
	// Only the relay that holds the first lane.
	if !time.Now().Before(s.purgeAt) && s.held[0] != nil {
		if err := s.purge(ctx); err != nil {
			return err
		}
	}
	s.retry.waits.Reset()
	s.link.Set(nil)
	return nil
}

// renew extends all leases that this relay holds, in one statement. A lane that it has lost ends.
func (s *sender) renew(ctx context.Context) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if s.membership == nil {
		if _, err := s.pool.Exec(bounded, makeLanesSQL, s.name, windowBound(s.limits.startWindow())); err != nil {
			return fmt.Errorf("creating the lanes of sink %s: %w", s.name, err)
		}
		if err := s.configureRates(bounded); err != nil {
			return err
		}
		var err error
		if s.membership, err = lease.Join(bounded, s.pool, memberLeasePrefix(s.name), s.cfg.LeaseTTL); err != nil {
			return err
		}
	}
	held := []*lease.Lease{s.membership}
	for _, o := range s.held {
		held = append(held, o.lane.lease)
	}
	sent := time.Now()
	lost, err := lease.RenewAll(bounded, s.pool, held, s.cfg.LeaseTTL)
	if err != nil {
		s.renewAt = time.Now().Add(s.cfg.LeaseTTL / 30)
		return fmt.Errorf("renewing the leases of sink %s: %w", s.name, err)
	}
	s.renewAt = sent.Add(s.cfg.LeaseTTL / 3)
	for _, o := range s.held {
		if slices.Contains(lost, o.lane.lease) {
			o.lane.end(errReplaced)
		} else {
			o.lane.extend(sent)
		}
	}
	if slices.Contains(lost, s.membership) { // this process was stopped for long
		s.membership, s.renewAt = nil, time.Time{}
	}
	return nil
}
