package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// Kinds of blows besides those of every storm.
const (
	blowBroker = "broker" // SIGKILL to the broker, then a restart
)

// shares are how many of a hundred blows are of a kind; the others are kills.
func shares(brokerKills bool) fleet.Shares {
	all := fleet.Shares{{rig.KindChange, 8}, {rig.KindFreeze, 12}, {rig.KindPostgres, 10}, {rig.KindSwitchover, 8}}
	if brokerKills {
		all = append(all, fleet.Shares{{blowBroker, 20}}...)
	}
	return all
}

// storm is one run.
type storm struct {
	rig.Rig
	rig.Database
	opts     options
	broker   broker
	producer *producer
}

func newStorm(o options, to *screen.Screen) *storm {
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(o.Seed, 1<<33+n)) } //nolint:gosec // drawn from the seed
	s := &storm{opts: o, producer: &producer{messages: stream(o.messages, source(3)), copies: o.copies, random: source(4)}}
	s.Rig = rig.Rig{
		Options:  o.Options,
		Screen:   to,
		Plan:     fleet.Plan(o.Kills, shares(kinds[o.broker].killed), source(1)),
		Random:   source(2),
		Struck:   map[string]int{},
		Progress: s.progress,
		Stuck:    s.stuck,
	}
	return s
}

// Open starts the servers and the workers.
func (s *storm) Open(ctx context.Context) (err error) {
	o := devenv.Options{Own: true, Log: func(line string) { s.Screen.Say("%s", screen.Wrap(line, screen.Width, "  ")) }}
	if err := s.OpenDatabase(ctx, o, 4, rig.MakeEffects); err != nil {
		return err
	}
	if err := s.AddStandby(ctx, o); err != nil {
		return err
	}
	if s.broker, err = kinds[s.opts.broker].start(ctx, o); err != nil {
		return err
	}
	s.producer.broker = s.broker
	s.Fleet, err = fleet.New(fleet.Config{
		Name:      "storm-queue",
		Resilient: true,
		Verbose:   s.Screen.Verbose,
		Template:  workerConfig{Postgres: s.Address, Kind: s.opts.broker, Broker: s.broker.url()},
	})
	if err != nil {
		return err
	}
	if err := s.StartWorkers(); err != nil {
		return err
	}
	s.Screen.Live(s.line)
	return nil
}

// Rage produces, strikes, waits until all is applied, and judges.
func (s *storm) Rage(ctx context.Context) (rig.Report, error) {
	begun := time.Now()
	r := &report{Summary: rig.Summary{Seed: s.Seed, Postgres: s.Primary.How}, Broker: s.opts.broker}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() { produced <- s.producer.run(ctx) }()
	err := s.strikeAll(ctx)
	if err == nil {
		s.Zombies.Wait()
		err = s.Until(ctx, "every message to be applied", func(ctx context.Context) (bool, error) {
			select {
			case err := <-produced:
				produced <- err
				if err != nil {
					return false, err
				}
			default:
				return false, nil
			}
			return s.acknowledged(ctx)
		})
	}
	r.Seconds = time.Since(begun).Seconds()
	cancel()
	if stopped := <-produced; err == nil && !errors.Is(stopped, context.Canceled) {
		err = stopped
	}
	s.Zombies.Wait() // a suspended worker does not leave
	if late := s.Fleet.Stop(rig.StopTimeout); late != nil {
		s.Breaches = append(s.Breaches, "I14 "+late.Error())
	}
	s.Breaches = append(s.Breaches, s.Fleet.Breaches()...)
	r.Summary.Count(&s.Rig)
	r.NoClock = "not-played"
	if s.Standby == nil {
		r.NoStandby = "no-standby"
	}
	r.Messages = len(s.producer.messages)
	r.Stored = s.producer.stored.Load()
	r.Again = s.producer.again.Load()
	r.KillsInBatch = s.Rig.KillsInBatch
	r.BrokerKills = s.Struck[blowBroker]
	r.Changes = s.Struck[rig.KindChange]
	if err == nil {
		err = s.judge(context.WithoutCancel(ctx), r)
	}
	r.Breaches = s.Breaches
	r.OK = err == nil && len(r.Breaches) == 0
	return r, err
}

// strikeAll plays the plan: each blow when its part of the stream was applied.
func (s *storm) strikeAll(ctx context.Context) error {
	for i, b := range s.Plan {
		at := int64(b.At * float64(s.opts.messages))
		s.producer.let(at + s.ahead())
		applied := func() bool { return s.Fleet.Reached() >= at-s.ahead()/2 }
		if err := s.Strike(ctx, i, fmt.Sprintf("%d messages to be applied", at), applied, s.strike); err != nil {
			return err
		}
	}
	s.producer.let(int64(s.opts.messages))
	return nil
}

func (s *storm) strike(ctx context.Context, b fleet.Blow) error {
	more := func() { s.producer.let(s.producer.gate.Load() + s.ahead()) }
	return s.StrikeUsual(ctx, b, rig.Usual{
		Database: &s.Database,
		Lease:    leaseTTL,
		More:     more,
		Own: func(ctx context.Context, b fleet.Blow) error {
			if b.Kind != blowBroker {
				return rig.NoBlow(ctx, b)
			}
			if err := s.broker.kill(ctx); err != nil {
				return err
			}
			fleet.Pause(ctx, b.Wait)
			return s.broker.restart(ctx)
		},
	})
}

// ahead is how many messages may be published beyond what the next blow waits for.
func (s *storm) ahead() int64 { return int64(max(s.opts.messages/(s.Kills+1), 200)) }

// appliedSQL returns one row: whether each stored message has been passed by its cursor.
const appliedSQL = `
select (select count(*)
          from onlyonce.event_log) = (select coalesce(sum(next_offset), 0) from onlyonce.positions where scope = $1)`

// acknowledged reports whether the broker has nothing left, and what it had is applied.
func (s *storm) acknowledged(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if left, _, err := s.broker.left(ctx); left || err != nil {
		return false, err
	}
	var done bool
	err := s.Pool.QueryRow(ctx, appliedSQL, queueName).Scan(&done)
	return done, err
}

// judge compares the effects with the stream.
func (s *storm) judge(ctx context.Context, r *report) error {
	rows, err := s.Pool.Query(ctx, rig.WrittenSQL)
	if err != nil {
		return err
	}
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rig.Message])
	if err != nil {
		return err
	}
	var parked int
	if err := s.Pool.QueryRow(ctx, `select count(*) from onlyonce.parked`).Scan(&parked); err != nil {
		return err
	}
	if r.FirstStored, err = s.FirstStored(ctx, &s.Database); err != nil {
		return err
	}
	r.Effects = len(effects)
	s.Breaches = append(s.Breaches, rig.Compare(s.producer.messages, effects).Breaches()...)
	if parked > 0 {
		s.Breaches = append(s.Breaches, fmt.Sprintf("I5 %d messages are parked", parked))
	}
	return nil
}

// progress differs whenever something has moved.
func (s *storm) progress() string {
	return fmt.Sprint(s.Fleet.Reached(), s.producer.published.Load(), s.Fleet.Restarts())
}

// stuck describes the broker and the sessions.
func (s *storm) stuck(ctx context.Context) (lines []string) {
	if _, state, err := s.broker.left(ctx); err != nil {
		lines = append(lines, err.Error())
	} else {
		lines = append(lines, "broker: "+state)
	}
	rows, err := s.Pool.Query(ctx, `
  select format('lease %s until %s', name, until) from onlyonce.leases
   union all select format(
     'session %s: %s, waits for %s: %s',
     pid,
     state,
     wait_event,
     left(query, 80)
   ) from pg_stat_activity where datname = current_database() and state <> 'idle'`)
	if err != nil {
		return append(lines, err.Error())
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		found = append(found, err.Error())
	}
	return append(lines, found...)
}

// line is the live line of a run.
func (s *storm) line() string {
	return fmt.Sprintf(
		"published %s  applied %s  events %d of %d  workers %d",
		screen.Count(s.producer.published.Load()),
		screen.Count(s.Fleet.Reached()),
		s.Events(),
		len(s.Plan),
		s.Fleet.Size(),
	)
}

// Close stops whatever was started.
func (s *storm) Close() error {
	var errs []error
	if s.Fleet != nil {
		errs = append(errs, s.Fleet.Stop(rig.StopTimeout), s.Fleet.Close())
	}
	if s.broker != nil {
		errs = append(errs, s.broker.close())
	}
	errs = append(errs, s.CloseDatabase())
	return errors.Join(errs...)
}

// report is the outcome of a storm, and what -json prints.
type report struct {
	rig.Summary
	Broker       string `json:"broker"`
	Messages     int    `json:"messages"` // unique
	Again        int64  `json:"again"`    // published again: copies, and where no acknowledgement came
	Stored       int64  `json:"stored"`   // and acknowledged by the broker, with the copies
	Effects      int    `json:"effects"`
	KillsInBatch int    `json:"kills_in_batch"`
	BrokerKills  int    `json:"broker_kills"`
	Changes      int    `json:"changes"` // workers that joined or left in order
	// The longest time from the end of a switchover, when the primary answered again, to the next
	// message that was stored; in seconds.
	FirstStored float64 `json:"first_stored"`
}

// Details returns the errors of workers that gave up.
func (r *report) Details() []string { return r.Endings }

// Line returns the summary line.
func (r *report) Line(verdict string) string {
	return fmt.Sprintf(
		"storm-queue %s seed=%d broker=%s messages=%d stored=%d again=%d effects=%d kills=%d "+
			"kills_in_batch=%d freezes=%d changes=%d broker_kills=%d postgres_kills=%d restarts=%d first_stored=%.1f seconds=%.1f",
		verdict,
		r.Seed,
		r.Broker,
		r.Messages,
		r.Stored,
		r.Again,
		r.Effects,
		r.Kills,
		r.KillsInBatch,
		r.Freezes,
		r.Changes,
		r.BrokerKills,
		r.PostgresKills,
		r.Restarts,
		r.FirstStored,
		r.Seconds,
	)
}
