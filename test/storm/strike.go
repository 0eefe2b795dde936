package main

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// lossPatience is how long a failover waits for as many commits as it is to lose.
const lossPatience = 8 * time.Second

// sampleEvery is the number of events between two checks of the invariants that hold at every
// moment.
const sampleEvery = 5

// strikeAll plays the plan: each blow comes after its part of the stream was handled.
func (s *storm) strikeAll(ctx context.Context) error {
	for i, b := range s.Plan {
		at := int64(b.At * float64(len(s.stream.records)-s.tail()))
		s.producer.let(at + s.ahead())
		handled := func() bool { return s.Fleet.Reached() >= at }
		if err := s.Strike(ctx, i, fmt.Sprintf("%d records to be handled", at), handled, s.strike); err != nil {
			return err
		}
		if (i+1)%sampleEvery == 0 {
			s.sample(ctx)
		}
	}
	s.producer.let(int64(len(s.stream.records) - s.tail()))
	return nil
}

func (s *storm) strike(ctx context.Context, b fleet.Blow) error {
	switch b.Kind {
	case rig.KindKill:
		return s.kill(ctx)
	case rig.KindFreeze:
		// Until the group has given its partitions to others.
		return s.Freeze(ctx, session+session/4+b.Wait)
	case blowRebalance:
		return s.Fleet.Change(s.Random, s.Workers)
	case rig.KindPostgres:
		return s.killPostgres(ctx, b.Wait)
	case blowBroker:
		return s.killBroker(ctx, b.Wait)
	case blowFailover:
		return s.failOver(ctx)
	case rig.KindSwitchover:
		s.producer.let(s.producer.gate.Load() + s.toLose()) // so that there is work when it ends
		return s.SwitchOver(ctx, s.forward, s.postgres, s.standby, b.Wait)
	case blowMigrate:
		return s.migrateUnderKills(ctx, b.Wait)
	case rig.KindClock:
		return s.StepClock(ctx, b.Wait)
	}
	panic("a blow of no kind: " + b.Kind)
}

func (s *storm) kill(ctx context.Context) error {
	down, err := s.Kill(ctx, s.aim())
	if err != nil {
		return err
	}
	if down.InBatch {
		s.inBatch++
	}
	if down.InRetry {
		s.inRetry++
	}
	return nil
}

// aim chooses what the next kill hits: a batch, or every third time, if the policy tries messages
// again from the database, one of those.
func (s *storm) aim() *fleet.Shot {
	if s.opts.policy == policyKey && s.Random.IntN(3) == 0 {
		return s.Fleet.ShootRetry(s.Random)
	}
	return s.Fleet.Shoot(s.Random, false)
}

func (s *storm) killPostgres(ctx context.Context, down time.Duration) error {
	return rig.KillPostgres(ctx, s.postgres, down)
}

// killBroker kills a broker. Of three brokers two go on, and so does the storm. It does not kill
// the next before this one is in sync.
func (s *storm) killBroker(ctx context.Context, down time.Duration) error {
	s.broken.Wait()
	node := s.kafka.Nodes[s.Random.IntN(len(s.kafka.Nodes))]
	if err := node.Kill(ctx); err != nil {
		return err
	}
	restart := func() error {
		fleet.Pause(ctx, down)
		return node.Restart(context.WithoutCancel(ctx))
	}
	if len(s.kafka.Nodes) == 1 {
		return restart()
	}
	s.broken.Go(func() {
		if err := restart(); err != nil {
			s.Screen.Say("broker %d: %v", node.ID, err)
		}
	})
	return nil
}

// mark is what the promoted server knew when it took over. Everything after that was to be done
// again, and nothing before it.
type mark struct {
	positions map[int32]int64
	done      map[int32][]int64 // above the position of a partition
	lastN     int64             // of the effects
	lost      int64             // records whose effects the failover has lost
}

// toLose is how many records the primary handles at least before a failover loses them: about two
// batches of each worker.
func (s *storm) toLose() int64 { return int64(2 * s.Workers * s.batchSize()) }

// failOver makes the standby lose touch, waits until the primary has committed more, kills the
// primary, and promotes the standby.
func (s *storm) failOver(ctx context.Context) error {
	if err := s.standby.Detach(ctx); err != nil {
		return err
	}
	from := s.Fleet.Reached()
	begun := time.Now()
	s.producer.let(s.producer.gate.Load() + s.toLose())
	err := s.Until(ctx, "commits for a failover to lose", func(context.Context) (bool, error) {
		return s.Fleet.Reached() >= from+s.toLose() || time.Since(begun) > lossPatience && s.Fleet.Reached() > from, nil
	})
	if err != nil {
		return err
	}
	if err := s.promote(ctx); err != nil {
		return err
	}
	s.standby, err = s.postgres.Standby(ctx, rig.Twin, devenv.Options{})
	return err
}

// tail is how many records are left for the failover at the end.
func (s *storm) tail() int {
	if !s.opts.idle {
		return 0
	}
	return int(s.toLose())
}

// failOverIdle is a failover without traffic. The last messages of the stream are handled and lost,
// and no later message comes that would make a worker check its position.
func (s *storm) failOverIdle(ctx context.Context) error {
	if err := s.Until(ctx, "every record but the last ones to be acknowledged",
		s.acknowledged(len(s.stream.records)-s.tail())); err != nil {
		return err
	}
	if err := s.Until(ctx, "every record but the last ones to be handled", s.handled); err != nil {
		return err
	}
	if err := s.standby.Detach(ctx); err != nil {
		return err
	}
	s.producer.let(int64(len(s.stream.records)))
	if err := s.Until(ctx, "the last records to be acknowledged", s.acknowledged(len(s.stream.records))); err != nil {
		return err
	}
	if err := s.Until(ctx, "the last records to be handled, and lost", s.handled); err != nil {
		return err
	}
	s.Struck[blowFailover]++
	return s.promote(ctx)
}

func (s *storm) acknowledged(n int) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) { return s.producer.written.Load() >= int64(n), nil }
}

// promote kills the primary, and makes the standby take its place.
func (s *storm) promote(ctx context.Context) error {
	before, err := s.positionsAt(ctx, s.postgres.URL)
	if err != nil {
		return err
	}
	old := s.postgres
	err = rig.FailOver(ctx, s.forward, old, s.standby, func() error {
		m, err := s.takeMark(ctx, s.standby.URL, before)
		if err != nil {
			return err
		}
		s.marks = append(s.marks, m)
		s.Screen.Verbose("failover: %d records to be done again", m.lost)
		return nil
	})
	if err != nil {
		return err
	}
	s.postgres = s.standby
	s.standby = nil
	return old.Stop()
}
