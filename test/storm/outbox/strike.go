package main

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// shares are how many of a hundred blows are of a kind; the others are kills.
var shares = fleet.Shares{{rig.KindChange, 12}, {rig.KindFreeze, 14}, {rig.KindPostgres, 6}, {rig.KindSwitchover, 4}, {rig.KindClock, 3}}

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
	more := func() { s.producer.let(s.producer.gate.Load() + s.ahead()) }
	return s.StrikeUsual(ctx, b, rig.Usual{Database: &s.Database, Lease: leaseTTL, More: more, Own: rig.NoBlow})
}
