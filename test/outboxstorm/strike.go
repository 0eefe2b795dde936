package main

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/test/fleet"
)

// Kinds of blows.
const (
	// SIGKILL to a relay, in mid-call if possible; another takes its place.
	blowKill = fleet.Kill
	// SIGSTOP to a relay for longer than its leases, then SIGCONT: a zombie.
	blowFreeze   = "freeze"
	blowChange   = "change"   // a relay joins, or leaves in order
	blowPostgres = "postgres" // SIGKILL to all of Postgres, then a restart
)

// shares are how many of a hundred blows are of a kind; the others are kills.
var shares = fleet.Shares{{blowChange, 12}, {blowFreeze, 14}, {blowPostgres, 6}}

// blindAfter is how long a kill looks for a call to hit: with relays and Postgres down there may be
// none.
const blindAfter = 4 * time.Second

// strikeAll plays the plan: each blow when its part of the stream was accepted.
func (s *storm) strikeAll(ctx context.Context) error {
	for i, b := range s.plan {
		at := int64(b.At * float64(s.opts.calls))
		s.producer.let(at + s.ahead())
		// Not all are accepted, and some wait long for others.
		err := s.until(ctx, fmt.Sprintf("%d calls to be accepted, for event %d", at, i+1), func(context.Context) (bool, error) {
			accepted, _ := s.remote.Progress()
			return accepted >= at-s.ahead()/2, nil
		})
		if err != nil {
			return err
		}
		if err := s.strike(ctx, b); err != nil {
			return fmt.Errorf("event %d (%s): %w", i+1, b.Kind, err)
		}
		s.struck[b.Kind]++
	}
	s.producer.let(int64(s.opts.calls))
	return nil
}

// ahead is how many calls may be committed beyond what the next event waits for.
func (s *storm) ahead() int64 { return int64(max(s.opts.calls/(s.opts.kills+1), 200)) }

func (s *storm) strike(ctx context.Context, b fleet.Blow) error {
	s.screen.Verbose("%s", b.Kind)
	switch b.Kind {
	case blowKill:
		return s.kill(ctx)
	case blowFreeze:
		return s.freeze(ctx, b.Wait)
	case blowChange:
		return s.fleet.Change(s.random, s.opts.relays)
	case blowPostgres:
		if err := s.postgres.Kill(ctx); err != nil {
			return err
		}
		fleet.Pause(ctx, b.Wait)
		return s.postgres.Restart(ctx)
	}
	panic("a blow of no kind: " + b.Kind)
}

// kill kills a relay, and starts another in its place.
func (s *storm) kill(ctx context.Context) error {
	shot := s.fleet.Shoot(s.random, false)
	begun := time.Now()
	err := s.until(ctx, "a relay to kill", func(context.Context) (bool, error) {
		select {
		case down := <-shot.Hit:
			if down.InBatch {
				s.inCall++
			}
			return true, nil
		default:
			if time.Since(begun) > blindAfter {
				s.fleet.Blindly(shot, s.random)
			}
			return false, nil
		}
	})
	if err != nil {
		return err
	}
	_, err = s.fleet.Start()
	return err
}

// freeze suspends a relay until others have its lanes, and then lets it go on as a zombie. The next
// events come meanwhile.
func (s *storm) freeze(ctx context.Context, beyond time.Duration) error {
	p := s.fleet.Any(s.random)
	if p == nil {
		return nil // all are suspended, or are being replaced
	}
	if err := s.fleet.Freeze(p); err != nil {
		return err
	}
	s.zombies.Go(func() {
		fleet.Pause(ctx, leaseTTL+leaseTTL/4+beyond)
		if err := s.fleet.Thaw(p); err != nil {
			s.screen.Say("relay %d cannot be continued: %v", p.Number, err)
		}
	})
	return nil
}
