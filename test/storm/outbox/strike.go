package main

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// blowChange lets a relay join, or leave in order.
const blowChange = "change"

// shares are how many of a hundred blows are of a kind; the others are kills.
var shares = fleet.Shares{{blowChange, 12}, {rig.KindFreeze, 14}, {rig.KindPostgres, 6}, {rig.KindSwitchover, 4}, {rig.KindClock, 3}}

// strikeAll plays the plan: each blow when its part of the stream was accepted. Not all are
// accepted, and some wait long for others.
func (s *storm) strikeAll(ctx context.Context) error {
	for i, b := range s.Plan {
		at := int64(b.At * float64(s.opts.calls))
		s.producer.let(at + s.ahead())
		accepted := func() bool {
			n, _ := s.remote.Progress()
			return n >= at-s.ahead()/2
		}
		if err := s.Strike(ctx, i, fmt.Sprintf("%d calls to be accepted", at), accepted, s.strike); err != nil {
			return err
		}
	}
	s.producer.let(int64(s.opts.calls))
	return nil
}

// ahead is how many calls may be committed beyond what the next event waits for.
func (s *storm) ahead() int64 { return int64(max(s.opts.calls/(s.Kills+1), 200)) }

func (s *storm) strike(ctx context.Context, b fleet.Blow) error {
	switch b.Kind {
	case rig.KindKill:
		down, err := s.Kill(ctx, s.Fleet.Shoot(s.Random, false))
		if err == nil && down.InBatch {
			s.inCall++
		}
		return err
	case rig.KindFreeze:
		// Until others have its lanes.
		return s.Freeze(ctx, leaseTTL+leaseTTL/4+b.Wait)
	case blowChange:
		return s.Fleet.Change(s.Random, s.Workers)
	case rig.KindPostgres:
		return rig.KillPostgres(ctx, s.postgres, b.Wait)
	case rig.KindSwitchover:
		s.producer.let(s.producer.gate.Load() + s.ahead()) // so that there is work when it ends
		return s.SwitchOver(ctx, s.forward, s.postgres, s.standby, b.Wait)
	case rig.KindClock:
		return s.StepClock(ctx, b.Wait)
	}
	panic("a blow of no kind: " + b.Kind)
}
