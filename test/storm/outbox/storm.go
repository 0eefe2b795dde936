package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// settledEvery is the interval between two checks of a condition that reads the whole log.
const settledEvery = 500 * time.Millisecond

// storm is one run.
type storm struct {
	rig.Rig
	rig.Database
	opts     options
	tamper   func(*callcheck.Facts) // nil but in tests
	remote   *callcheck.Remote
	producer *producer
}

func newStorm(o options, to *screen.Screen, tamper func(*callcheck.Facts)) *storm {
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(o.Seed, 1<<32+n)) }
	s := &storm{opts: o, tamper: tamper}
	s.Rig = rig.Rig{
		Options:  o.Options,
		Screen:   to,
		Plan:     fleet.Plan(o.Kills, shares, source(1)),
		Random:   source(2),
		Struck:   map[string]int{},
		Progress: s.progress,
		Stuck:    s.stuck,
	}
	return s
}

// Open starts the server, the remote and the relays.
func (s *storm) Open(ctx context.Context) (err error) {
	o := devenv.Options{Own: true, Log: func(line string) { s.Screen.Say("%s", screen.Wrap(line, screen.Width, "  ")) }}
	if s.Clock, err = rig.NewClock(); err != nil {
		return err
	}
	o.PostgresEnv = s.Clock.Env()
	err = s.OpenDatabase(ctx, o, int32(s.opts.producers+4), func(ctx context.Context, c *pgxpool.Conn) error {
		if _, err := c.Exec(ctx, callcheck.TablesSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		_, err := c.Exec(
			ctx,
			`insert into storm.seqs select s, 'k' || to_char(k, 'FM000') from unnest($1::text[]) s, generate_series(0, $2 - 1) k`,
			[]string{sinkMain, sinkStrict, sinkShort},
			orderingKeys,
		)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.AddStandby(ctx, o); err != nil {
		return err
	}
	s.producer = &producer{pool: s.Pool, total: int64(s.opts.calls), many: s.opts.producers, seed: s.Seed, kinds: map[string]int{}}
	if s.remote, err = callcheck.NewRemote(callcheck.Faulty(s.Seed, s.opts.failures)); err != nil {
		return err
	}
	s.Fleet, err = fleet.New(fleet.Config{
		Name:      "storm-outbox",
		Resilient: true,
		Verbose:   s.Screen.Verbose,
		Traps:     s.Traps(s.opts.calls, leaseTTL),
		Template:  relayConfig{Postgres: s.Address, Remote: s.remote.Address},
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

// Rage produces, strikes, waits until all is settled, and judges.
func (s *storm) Rage(ctx context.Context) (rig.Report, error) {
	begun := time.Now()
	r := &report{Summary: rig.Summary{Seed: s.Seed, Postgres: s.Primary.How}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() { produced <- s.producer.run(ctx) }()
	err := s.strikeAll(ctx)
	if err == nil {
		err = s.Until(ctx, "every call to be committed", func(context.Context) (bool, error) {
			select {
			case err := <-produced:
				produced <- err
				return true, err
			default:
				return false, nil
			}
		})
	}
	if err == nil {
		s.Zombies.Wait()
		var next time.Time
		err = s.Until(ctx, "every call to be settled", func(ctx context.Context) (bool, error) {
			if time.Now().Before(next) {
				return false, nil
			}
			next = time.Now().Add(settledEvery)
			n, err := s.unsettled(ctx)
			return n == 0, err
		})
	}
	r.Seconds = time.Since(begun).Seconds()
	cancel()
	if stopped := <-produced; err == nil && !errors.Is(stopped, context.Canceled) {
		err = stopped
	}
	s.Zombies.Wait() // a suspended relay does not leave
	if late := s.Fleet.Stop(rig.StopTimeout); late != nil {
		s.Breaches = append(s.Breaches, "I14 "+late.Error())
	}
	s.Breaches = append(s.Breaches, s.Fleet.Breaches()...)
	r.count(s)
	if err != nil {
		r.Breaches = s.Breaches
		return r, err
	}
	f, err := callcheck.Gather(context.WithoutCancel(ctx), s.Pool, s.remote, 2*leaseTTL)
	if err != nil {
		return r, err
	}
	f.Windows = map[string]time.Duration{sinkShort: shortWindow}
	if s.ClockAhead > 0 {
		// Afterwards keys look too young, by as much as T11 allows.
		f.Windows[sinkShort] += s.ClockAhead + watch.Often
		// Calls look older than they are: an operator decides (O6).
		f.Windows[sinkMain], f.Windows[sinkStrict] = longWindow, longWindow
	}
	f.PassOn = map[string]bool{sinkMain: true, sinkShort: true}
	if s.tamper != nil {
		s.tamper(f)
	}
	r.judged(f)
	for _, e := range r.Endings {
		if strings.Contains(e, "OO00") || strings.Contains(e, "are gone") || strings.Contains(e, "does not return") {
			s.Breaches = append(s.Breaches, "a relay gave up: "+e)
		}
	}
	r.Breaches = append(s.Breaches, f.Judge()...)
	r.OK = len(r.Breaches) == 0
	return r, nil
}

func (s *storm) unsettled(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = s.Pool.QueryRow(ctx, callcheck.UnsettledSQL).Scan(&n)
	return n, err
}

// progress differs whenever something has moved. The number of requests does not count: a request
// that is made again and again is no progress.
func (s *storm) progress() string {
	accepted, _ := s.remote.Progress()
	return fmt.Sprint(accepted, s.producer.written.Load(), s.Fleet.Restarts())
}

// stuck describes the calls that are not settled, and the sessions.
func (s *storm) stuck(ctx context.Context) (lines []string) {
	for _, sql := range []string{
		`
select format(
  '%s calls of sink %s are %s, the first is %s in lane %s',
  count(*),
  sink,
  state,
  min(id),
  min(lane)
) from onlyonce.calls where state <> 'delivered' group by sink, state`,
		`select format(
  'lane %s: version %s, last id %s, prev %s, target %s, held until %s',
  l.name,
  a.version,
  a.last_id,
  a.prev,
  a.target,
  l.until
) from onlyonce.lanes a join onlyonce.leases l on l.id = a.id
    where exists (select from onlyonce.calls c
                   where c.sink = a.sink and c.lane = a.lane and c.state in ('pending', 'retrying', 'blocked'))
          limit 10`,
		`
select format(
  'parked %s: row %s, %s %s, due %s, attempts %s, %s',
  id,
  row_id,
  state,
  reason,
  next_attempt_at,
  attempts,
  error
) from onlyonce.parked where state in ('retrying', 'blocked') order by id limit 10`,
		`
select format(
  'session %s: %s, %s, waits for %s, since %s: %s',
  pid,
  application_name,
  state,
  wait_event,
  state_change,
  left(query, 80)
) from pg_stat_activity where datname = current_database() and state <> 'idle' limit 20`,
	} {
		rows, err := s.Pool.Query(ctx, sql)
		if err != nil {
			lines = append(lines, err.Error())
			continue
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			lines = append(lines, err.Error())
		}
		lines = append(lines, found...)
	}
	return lines
}

// line is the live line of a run.
func (s *storm) line() string {
	accepted, requests := s.remote.Progress()
	return fmt.Sprintf("committed %s  accepted %s  requests %s  events %d of %d  relays %d", screen.Count(s.producer.written.Load()),
		screen.Count(accepted), screen.Count(int64(requests)), s.Events(), len(s.Plan), s.Fleet.Size())
}

// Close stops whatever was started.
func (s *storm) Close() error {
	var errs []error
	if s.Fleet != nil {
		errs = append(errs, s.Fleet.Stop(rig.StopTimeout), s.Fleet.Close())
	}
	if s.remote != nil {
		errs = append(errs, s.remote.Close())
	}
	errs = append(errs, s.CloseDatabase())
	errs = append(errs, s.Clock.Close())
	return errors.Join(errs...)
}
