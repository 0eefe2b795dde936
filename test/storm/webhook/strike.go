package main

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// Kinds of blows besides those of every storm.
const (
	blowCut      = "cut"      // the connections to Postgres are cut
	blowFailover = "failover" // SIGKILL to Postgres, and its synchronous standby takes over
)

// shares are how many of a hundred blows are of a kind; the others are kills.
var shares = fleet.Shares{
	{rig.KindChange, 8},
	{rig.KindFreeze, 12},
	{rig.KindPostgres, 8},
	{blowCut, 8},
	{rig.KindSwitchover, 4},
	{blowFailover, 6},
}

// strikeAll plays the plan: each blow when its part of the stream was answered.
func (s *storm) strikeAll(ctx context.Context, sent chan error) error {
	for i, b := range s.Plan {
		at := int64(b.At * float64(s.opts.events))
		s.senders.let(at + s.ahead())
		answered := func() bool { return s.senders.answered.Load() >= at-s.ahead()/2 }
		if err := s.Strike(ctx, i, fmt.Sprintf("%d events to be answered", at), answered, s.strike); err != nil {
			return err
		}
		if _, err := ended(sent); err != nil {
			return err
		}
	}
	s.senders.let(int64(s.opts.events))
	return nil
}

// ahead is how many events may be sent beyond what the next blow waits for.
func (s *storm) ahead() int64 { return int64(max(s.opts.events/(s.Kills+1), 4*s.opts.senders)) }

func (s *storm) strike(ctx context.Context, b fleet.Blow) error {
	if b.Kind == rig.KindPostgres {
		return s.killPostgres(ctx, b)
	}
	more := func() { s.senders.let(s.senders.gate.Load() + s.ahead()) }
	return s.StrikeUsual(ctx, b, rig.Usual{
		Database: &s.Database,
		Lease:    leaseTTL,
		More:     more,
		Own: func(ctx context.Context, b fleet.Blow) error {
			switch b.Kind {
			case blowCut:
				s.Forward.Cut(rig.HostPort(s.Primary))
				return nil
			case blowFailover:
				return s.failOver(ctx)
			}
			return rig.NoBlow(ctx, b)
		},
	})
}

// killPostgres kills Postgres, and waits until the standby has what it recovers: a COMMIT that had
// not reached the standby is seen after the restart, although nothing has waited for the standby.
func (s *storm) killPostgres(ctx context.Context, b fleet.Blow) error {
	if err := rig.KillPostgres(ctx, s.Primary, b.Wait); err != nil {
		return err
	}
	if s.Standby == nil {
		return nil
	}
	return s.Primary.CaughtUp(ctx, rig.Twin)
}

// failOver kills the primary, promotes the standby, and gives it a standby of its own. What was
// answered before is on the standby, so nothing of it may be lost.
func (s *storm) failOver(ctx context.Context) error {
	if s.Standby == nil {
		return nil
	}
	old := s.Primary
	if err := rig.FailOver(ctx, s.Forward, old, s.Standby, func() error { return nil }); err != nil {
		return err
	}
	s.Primary = s.Standby
	s.Standby = nil
	if err := old.Stop(); err != nil {
		return err
	}
	// The standby may be a copy of a server whose COMMIT waits for one.
	if err := s.Primary.Synchronous(ctx, ""); err != nil {
		return err
	}
	return s.addStandby(ctx)
}
