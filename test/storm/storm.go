package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

const (
	// session is the workers' session timeout: short, because it is waited for after every kill,
	// and long enough for two cores.
	session = 3 * time.Second
)

// storm is one run.
type storm struct {
	rig.Rig
	opts   options
	tamper func(context.Context, *storm) error // nil but in tests
	stream *stream

	postgres *devenv.Postgres
	standby  *devenv.Postgres // nil: the machine cannot make one
	forward  *rig.Forwarder
	pooler   *devenv.PgBouncer // nil: workers connect to the forwarder
	kafka    *devenv.Kafka
	pool     *pgxpool.Pool // to the same address as the workers' connections
	client   *kgo.Client
	admin    *kadm.Client
	producer *producer
	topic    string // also the scope, the group and the sink

	inBatch int            // kills that hit a batch in progress
	inRetry int            // kills that hit a message that was tried again from the database
	marks   []mark         // one for each failover
	broken  sync.WaitGroup // brokers that are down

	next, nextDir string // program of the next version, and where it lies; empty: one version
	migratedAt    int64  // the last effect before the migration had ended
}

func newStorm(o options, to *screen.Screen, tamper func(context.Context, *storm) error) *storm {
	// Three sources, so that the plan stays the same when the stream draws another number.
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(o.Seed, n)) }
	of := usual
	if o.failover {
		of = failovers
	}
	if o.failovers > 0 {
		of = slices.Clone(failovers)
		of[0].Percent = (100*o.failovers + o.Kills/2) / o.Kills
	}
	s := &storm{opts: o, tamper: tamper, stream: makeStream(o.messages, o.duplicates, source(1)), topic: fmt.Sprintf("storm-%d", o.Seed)}
	s.Rig = rig.Rig{
		Options:  o.Options,
		Screen:   to,
		Plan:     fleet.Plan(o.Kills, of, source(2)),
		Random:   source(3),
		Struck:   map[string]int{},
		Progress: s.progress,
		Stuck:    s.stuck,
	}
	if o.mixed {
		s.Plan = withMigration(s.Plan)
	}
	s.producer = &producer{s: s, acked: map[string]bool{}}
	return s
}

// Open starts servers and workers.
func (s *storm) Open(ctx context.Context) (err error) {
	if s.opts.mixed {
		if err := s.buildNext(ctx); err != nil {
			return err
		}
	}
	o := devenv.Options{
		Own:     true,
		Brokers: s.opts.replicas,
		Log:     func(line string) { s.Screen.Say("%s", screen.Wrap(line, screen.Width, "  ")) },
	}
	if s.Clock, err = rig.NewClock(); err != nil {
		return err
	}
	o.PostgresEnv = s.Clock.Env()
	if s.postgres, err = devenv.StartPostgres(ctx, o); err != nil {
		return err
	}
	o.PostgresEnv = nil
	if s.kafka, err = devenv.StartKafka(ctx, o); err != nil {
		return err
	}
	if s.postgres.PID() == 0 || s.kafka.PID() == 0 {
		return fmt.Errorf("a storm kills its servers, and can do that only to processes of this machine: do "+
			"without %s=%s, and have a JVM and PostgreSQL installed",
			devenv.EnvForce, devenv.KindDocker)
	}
	if s.forward, err = rig.NewForwarder(rig.HostPort(s.postgres)); err != nil {
		return err
	}
	address := s.forward.Address(s.postgres)
	pc, err := pgxpool.ParseConfig(address)
	if err != nil {
		return err
	}
	pc.PrepareConn = dedupe.PrepareConn // what it reads is true of the primary alone
	if s.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return err
	}
	if err := s.createTables(ctx); err != nil {
		return err
	}
	if s.opts.failover || s.postgres.Kind == devenv.KindLocal {
		if s.standby, err = s.postgres.Standby(ctx, rig.Twin, o); err != nil {
			return err
		}
	}
	if s.client, err = kgo.NewClient(s.producer.options(kgo.RequestRetries(5))...); err != nil {
		return err
	}
	s.admin = kadm.NewClient(s.client)
	if _, err := s.admin.CreateTopic(ctx, int32(s.opts.partitions), -1, nil, s.topic); err != nil {
		return fmt.Errorf("creating topic %s: %w", s.topic, err)
	}
	if s.opts.pgBouncer {
		if s.pooler, err = devenv.StartPgBouncer(ctx, address, serverConnections, o); err != nil {
			return err
		}
		address = s.pooler.Exec()
	}
	s.Fleet, err = fleet.New(fleet.Config{
		Name:      "storm",
		Resilient: true,
		Verbose:   s.Screen.Verbose,
		Traps:     s.Traps(s.opts.messages, session),
		Template: workerConfig{
			Postgres: address, Brokers: s.kafka.Brokers, Topic: s.topic, Scope: s.topic, Session: session, BatchSize: s.batchSize(),
			Pool: s.poolSize(), Positions: s.opts.positions, Source: s.opts.source, Policy: s.opts.policy, Concurrency: s.opts.atOnce,
		},
	})
	if err != nil {
		return err
	}
	if err := s.StartWorkers(); err != nil {
		return err
	}
	s.Screen.Live(s.line)
	return s.Until(ctx, "every partition to have an owner", func(context.Context) (bool, error) {
		return s.Fleet.Settled(0, s.opts.partitions), nil
	})
}

// serverConnections is how many connections PgBouncer has to the server: fewer than the workers
// have to it, so that sessions change from worker to worker.
const serverConnections = 20

// poolSize is how many connections each worker has. The server has a hundred; what runs side by
// side may wait for one.
func (s *storm) poolSize() int32 {
	return int32(min(2*s.opts.partitions+2+(s.opts.atOnce-1)*s.opts.partitions, max(2*s.opts.partitions+2, 20))) //nolint:gosec // small
}

// batchSize makes batches so small that a short stream has some for each event to hit.
func (s *storm) batchSize() int {
	return min(max(len(s.stream.records)/(s.Kills+2)/s.opts.partitions/4, 5), 100)
}

// tableSQL makes the table of effects. n records their order: the effects of one ordering key are
// written by one transaction after the other.
const tableSQL = `
create schema storm;
create table storm.effects (
  n      bigint generated always as identity primary key,
  scope  text not null,
  id     text not null,
  key    text not null,
  seq    int not null,
  part   int not null,
  off    bigint not null,
  worker int not null,
  called boolean not null
)`

func (s *storm) createTables(ctx context.Context) error {
	return s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := migrations.Apply(ctx, c.Conn()); err != nil {
			return err
		}
		// Statements without parameters.
		_, err := c.Exec(ctx, tableSQL, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		_, err = c.Exec(
			ctx,
			fmt.Sprintf("alter database %s set default_transaction_isolation = '%s'",
				pgx.Identifier{c.Conn().Config().Database}.Sanitize(), s.opts.isolation),
		)
		return err
	})
}

// Rage produces, strikes, waits until all is settled, and judges.
func (s *storm) Rage(ctx context.Context) (rig.Report, error) {
	begun := time.Now()
	r := &report{
		Summary:     rig.Summary{Seed: s.Seed, Postgres: s.postgres.How},
		Unique:      len(s.stream.messages),
		Source:      s.opts.source,
		Policy:      s.opts.policy,
		Concurrency: s.opts.atOnce,
		Kafka:       s.kafka.How,
		Isolation:   s.opts.isolation,
		PgBouncer:   s.opts.pgBouncer,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() { produced <- s.producer.run(ctx) }()
	err := s.strikeAll(ctx)
	if err == nil {
		s.Zombies.Wait()
		s.broken.Wait()
		if s.opts.idle {
			err = s.failOverIdle(ctx)
		}
	}
	if err == nil {
		err = s.producedAll(ctx, produced)
	}
	if err == nil {
		err = s.Until(ctx, "every record to be handled", s.handled)
	}
	r.Seconds = time.Since(begun).Seconds()
	cancel()
	s.Zombies.Wait() // a suspended worker does not leave
	s.broken.Wait()
	if late := s.Fleet.Stop(rig.StopTimeout); late != nil {
		s.Breaches = append(s.Breaches, "I14 "+late.Error())
	}
	s.Breaches = append(s.Breaches, s.Fleet.Breaches()...)
	r.count(s)
	for _, line := range r.Endings {
		s.Screen.Verbose("%s", line)
	}
	if err != nil {
		r.Breaches = s.Breaches
		return r, err
	}
	ctx = context.WithoutCancel(ctx)
	if s.pooler != nil { // its own connections stay
		if err := s.pooler.Stop(); err != nil {
			return r, err
		}
	}
	if err := s.quiet(ctx); err != nil {
		return r, err
	}
	if s.tamper != nil {
		if err := s.tamper(ctx, s); err != nil {
			return r, err
		}
	}
	return r, s.judge(ctx, r)
}

// producedAll waits for the producer.
func (s *storm) producedAll(ctx context.Context, produced <-chan error) error {
	var err error
	return errors.Join(s.Until(ctx, "every record to be acknowledged", func(context.Context) (bool, error) {
		select {
		case err = <-produced:
			return true, nil
		default:
			return false, nil
		}
	}), err)
}

// unsettledSQL returns one row: how many parked messages that are first of their ordering key do
// not wait for an operator. $1 the scope.
const unsettledSQL = `
select count(*) from onlyonce.parked p
 where p.scope = $1 and p.settled_at is null
   and p.state in ('retrying', 'blocked') and not exists (
     select from onlyonce.parked f
      where f.order_key = p.order_key
        and f.settled_at is null
        and (f.partition, f."offset") < (p.partition, p."offset"))`

// handled returns true if the cursors are at the end of the log, and nothing is left to be tried
// again.
func (s *storm) handled(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	at, err := s.positions(ctx, s.pool)
	if err != nil {
		return false, err
	}
	ends, err := s.ends(ctx)
	if err != nil {
		return false, err
	}
	for p, end := range ends {
		if at[p] != end {
			return false, nil
		}
	}
	var left int
	err = s.pool.QueryRow(ctx, unsettledSQL, s.topic).Scan(&left)
	return left == 0, err
}

// progress differs whenever something has moved.
func (s *storm) progress() string {
	return fmt.Sprint(s.Fleet.Reached(), s.producer.written.Load(), s.Fleet.Mark(), s.Fleet.Resolved())
}

// stuck describes how far the stream was handled.
func (s *storm) stuck(ctx context.Context) (lines []string) {
	at, err := s.positions(ctx, s.pool)
	ends, endsErr := s.ends(ctx)
	var left int
	if err := errors.Join(err, endsErr, s.pool.QueryRow(ctx, unsettledSQL, s.topic).Scan(&left)); err != nil {
		lines = append(lines, "positions are not known: "+err.Error())
	}
	for p := range int32(len(ends)) {
		lines = append(lines, fmt.Sprintf("partition %d: handled up to %d of %d", p, at[p], ends[p]))
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("%d parked messages, the first of their ordering keys, are still to be tried", left))
	}
	return lines
}

// line is the status line of a running storm.
func (s *storm) line() string {
	handled, skipped := s.Fleet.Progress()
	return fmt.Sprintf("produced %s  applied %s  skipped %s  events %d of %d  workers %d", screen.Count(s.producer.written.Load()),
		screen.Count(int64(handled)), screen.Count(int64(skipped)), s.Events(), len(s.Plan), s.Fleet.Size())
}

// Close stops whatever was started.
func (s *storm) Close() error {
	var errs []error
	if s.Fleet != nil {
		errs = append(errs, s.Fleet.Stop(rig.StopTimeout), s.Fleet.Close())
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	if s.pooler != nil {
		errs = append(errs, s.pooler.Stop())
	}
	if s.forward != nil {
		errs = append(errs, s.forward.Close())
	}
	for _, p := range []*devenv.Postgres{s.standby, s.postgres} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	errs = append(errs, s.Clock.Close(), os.RemoveAll(s.nextDir))
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop())
	}
	return errors.Join(errs...)
}
