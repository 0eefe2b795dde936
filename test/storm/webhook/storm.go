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

// storm is one run.
type storm struct {
	rig.Rig
	rig.Database
	opts    options
	env     devenv.Options
	senders *senders
}

// source returns one of the sources that the seed fixes.
func source(seed, n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1<<34+n)) } //nolint:gosec // drawn from the seed

func newStorm(o options, to *screen.Screen) *storm {
	s := &storm{opts: o, senders: newSenders(o)}
	s.Rig = rig.Rig{
		Options:  o.Options,
		Screen:   to,
		Plan:     fleet.Plan(o.Kills, shares, source(o.Seed, 1)),
		Random:   source(o.Seed, 2),
		Struck:   map[string]int{},
		Progress: s.progress,
		Stuck:    s.stuck,
	}
	return s
}

// Open starts the servers and the workers.
func (s *storm) Open(ctx context.Context) (err error) {
	s.env = devenv.Options{Own: true, Log: func(line string) { s.Screen.Say("%s", screen.Wrap(line, screen.Width, "  ")) }}
	err = s.OpenDatabase(ctx, s.env, 4, rig.MakeEffects)
	if err != nil {
		return err
	}
	if err := s.addStandby(ctx); err != nil {
		return err
	}
	s.Fleet, err = fleet.New(fleet.Config{
		Name:      "storm-webhook",
		Resilient: true,
		Verbose:   s.Screen.Verbose,
		Traps:     s.Traps(s.opts.events, leaseTTL),
		Template:  workerConfig{Postgres: s.Address},
	})
	if err != nil {
		return err
	}
	s.senders.addresses = s.Fleet.Addresses
	if err := s.StartWorkers(); err != nil {
		return err
	}
	s.Screen.Live(s.line)
	return nil
}

// addStandby gives the primary a standby, for which each COMMIT waits from then on.
func (s *storm) addStandby(ctx context.Context) (err error) {
	if err := s.AddStandby(ctx, s.env); err != nil || s.Standby == nil {
		return err
	}
	return s.Primary.Synchronous(ctx, rig.Twin)
}

// Rage sends, strikes, waits until all is applied, and judges.
func (s *storm) Rage(ctx context.Context) (rig.Report, error) {
	begun := time.Now()
	r := &report{Summary: rig.Summary{Seed: s.Seed, Postgres: s.Primary.How}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- s.senders.run(ctx) }()
	err := s.strikeAll(ctx, sent)
	if err == nil {
		s.Zombies.Wait()
		err = s.Until(ctx, "every event to be applied", func(ctx context.Context) (bool, error) {
			if done, err := ended(sent); !done || err != nil {
				return false, err
			}
			return s.applied(ctx)
		})
	}
	r.Seconds = time.Since(begun).Seconds()
	cancel()
	if stopped := <-sent; err == nil && !errors.Is(stopped, context.Canceled) {
		err = stopped
	}
	s.Zombies.Wait() // a suspended worker does not leave
	if late := s.Fleet.Stop(rig.StopTimeout); late != nil {
		s.Breaches = append(s.Breaches, "I14 "+late.Error())
	}
	s.Breaches = append(s.Breaches, s.Fleet.Breaches()...)
	r.count(s)
	if err == nil {
		err = s.judge(context.WithoutCancel(ctx), r)
	}
	r.Breaches = s.Breaches
	r.OK = err == nil && len(r.Breaches) == 0
	return r, err
}

// ended reports whether the senders have ended, and their error.
func ended(sent chan error) (bool, error) {
	select {
	case err := <-sent:
		sent <- err
		return true, err
	default:
		return false, nil
	}
}

// appliedSQL returns one row: whether each stored event has been passed by its cursor. $1 the
// consumers' scopes.
const appliedSQL = `
select (select count(*) from onlyonce.event_log)
     = (select coalesce(sum(next_offset), 0) from onlyonce.positions where scope = any($1))`

func (s *storm) applied(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = s.Pool.QueryRow(ctx, appliedSQL, endpoints).Scan(&done)
	return done, err
}

// setsSQL returns one row: how many transactions have stored events, and how many the largest did.
const setsSQL = `
select count(*), coalesce(max(n), 0)
  from (select count(*) as n from onlyonce.event_log group by xmin::text) sets`

// parkedSQL returns what is parked: its reason, and the id that its sender gave it.
const parkedSQL = `select reason, substring(coalesce(event_id, '') from '[^/]*$') from onlyonce.parked order by id`

// judge compares the effects with what was answered.
func (s *storm) judge(ctx context.Context, r *report) error {
	rows, err := s.Pool.Query(ctx, rig.WrittenSQL)
	if err != nil {
		return err
	}
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rig.Message])
	if err != nil {
		return err
	}
	if rows, err = s.Pool.Query(ctx, parkedSQL); err != nil {
		return err
	}
	aside, err := pgx.CollectRows(rows, pgx.RowToStructByPos[parkedEvent])
	if err != nil {
		return err
	}
	if err := s.Pool.QueryRow(ctx, setsSQL).Scan(&r.Sets, &r.LargestSet); err != nil {
		return err
	}
	r.Effects = len(effects)
	r.Parked = len(aside)
	var answered []rig.Message // all are, or the run would not have come to its end
	for _, e := range s.senders.events {
		answered = append(answered, e.Message)
	}
	found := rig.Compare(answered, effects)
	r.Lost = len(found.Lost)
	r.Double = len(found.Double)
	r.Disorder = len(found.Inverted)
	s.Breaches = append(s.Breaches, found.Breaches()...)
	s.Breaches = append(s.Breaches, s.senders.wrong...)
	s.Breaches = append(s.Breaches, compareParked(s.senders.forged, aside)...)
	return nil
}

// parkedEvent is one that is parked.
type parkedEvent struct{ Reason, ID string }

// sameBody is the reason of an event whose body came before under another id.
const sameBody = "same-body"

// compareParked returns what is wrong with what is parked: exactly the events that were answered
// 200 under another id are, each once (W7).
func compareParked(forged map[string]bool, aside []parkedEvent) (breaches []string) {
	times := map[string]int{}
	for _, p := range aside {
		times[p.ID]++
		switch {
		case p.Reason != sameBody || !forged[p.ID]:
			breaches = append(breaches, fmt.Sprintf("I5 %q is parked: %s", p.ID, p.Reason))
		case times[p.ID] > 1:
			breaches = append(breaches, fmt.Sprintf("W7 %s is parked %d times", p.ID, times[p.ID]))
		}
	}
	for id := range forged {
		if times[id] == 0 {
			breaches = append(breaches, fmt.Sprintf("W7 %s was answered 200 and is not parked", id))
		}
	}
	return breaches
}

// progress differs whenever something has moved.
func (s *storm) progress() string {
	handled, _ := s.Fleet.Progress()
	return fmt.Sprint(s.senders.answered.Load(), handled, s.Fleet.Reached())
}

// stuck describes what is stored, and the sessions.
func (s *storm) stuck(ctx context.Context) (lines []string) {
	lines = append(lines, fmt.Sprintf("%d events are answered, receivers: %v", s.senders.answered.Load(), s.Fleet.Addresses()))
	rows, err := s.Pool.Query(ctx, `
  select format('lease %s until %s', name, until) from onlyonce.leases
   union all
  select format(
    'session %s: %s, waits for %s: %s',
    pid,
    state,
    wait_event,
    left(query, 80)
  )
    from pg_stat_activity where datname = current_database() and state <> 'idle'`)
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
	handled, _ := s.Fleet.Progress()
	return fmt.Sprintf("answered %s  applied %s  requests %s  events %d of %d  workers %d", screen.Count(s.senders.answered.Load()),
		screen.Count(int64(handled)), screen.Count(s.senders.requests.Load()), s.Events(), len(s.Plan), s.Fleet.Size())
}

// Close stops whatever was started.
func (s *storm) Close() error {
	var errs []error
	if s.Fleet != nil {
		errs = append(errs, s.Fleet.Stop(rig.StopTimeout), s.Fleet.Close())
	}
	errs = append(errs, s.CloseDatabase())
	return errors.Join(errs...)
}
