package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// connectTimeout bounds the first connection to a server that the user named.
const connectTimeout = 8 * time.Second

// Servers are a Postgres and a Kafka that answer.
type Servers struct {
	Postgres *Postgres
	Kafka    *Kafka

	stops []func() error
}

// Start finds or starts both at the same time. log gets a line for each that says which one was
// taken; verbose gets one for each way that did not work.
func Start(ctx context.Context, f Flags, log, verbose func(line string)) (*Servers, error) {
	s := &Servers{}
	options := devenv.Options{Log: verbose, AllowFake: true}
	var (
		wg             sync.WaitGroup
		pgErr, kafkErr error
		stopPg, stopK  func() error
	)
	wg.Go(func() { s.Postgres, stopPg, pgErr = startPostgres(ctx, f, options) })
	wg.Go(func() { s.Kafka, stopK, kafkErr = startKafka(ctx, f, options) })
	wg.Wait()
	for _, stop := range []func() error{stopPg, stopK} {
		if stop != nil {
			s.stops = append(s.stops, stop)
		}
	}
	if err := errors.Join(pgErr, kafkErr); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	log(s.Postgres.How)
	log(s.Kafka.How)
	return s, nil
}

// StartPostgres finds or starts Postgres alone, for demonstrations without Kafka.
func StartPostgres(ctx context.Context, f Flags, log, verbose func(line string)) (*Servers, error) {
	s := &Servers{}
	p, stop, err := startPostgres(ctx, f, devenv.Options{Log: verbose})
	if stop != nil {
		s.stops = append(s.stops, stop)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	s.Postgres = p
	log(p.How)
	return s, nil
}

// Stop closes connections, and stops what was started.
func (s *Servers) Stop() error {
	if s.Postgres != nil {
		s.Postgres.Pool.Close()
	}
	if s.Kafka != nil {
		s.Kafka.transport.CloseIdleConnections()
	}
	var errs []error
	for _, stop := range s.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// Postgres is a database with the schema onlyonce in it.
type Postgres struct {
	URL string
	// How says in one line which database was taken and why.
	How string
	// Given is true of the user's own database: what is not wanted any more must be removed.
	Given bool
	// Pool is for the demonstration's own questions; workers have theirs.
	Pool *pgxpool.Pool
}

func startPostgres(ctx context.Context, f Flags, o devenv.Options) (p *Postgres, stop func() error, err error) {
	address, from := f.postgres()
	if address != "" {
		p = &Postgres{URL: address, Given: true}
	} else {
		started, err := devenv.StartPostgres(ctx, o)
		if err != nil {
			return nil, nil, err
		}
		p = &Postgres{URL: started.URL, How: started.How}
		stop = started.Stop
		from = "devenv"
	}
	name := nameOf(p.URL)
	cfg, err := pgxpool.ParseConfig(p.URL)
	if err != nil {
		return nil, stop, fmt.Errorf("%s: not an address of a database, which has the form postgres://user@host:5432/name", from)
	}
	cfg.MaxConns = 4
	if p.Pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, stop, err
	}
	version, err := p.prepare(ctx)
	if err != nil {
		p.Pool.Close()
		return nil, stop, postgresError(ctx, name, from, err)
	}
	if p.Given {
		p.How = fmt.Sprintf("postgres: %s at %s (%s)", version, name, from)
	}
	return p, stop, nil
}

// prepare connects and applies our migrations.
func (p *Postgres) prepare(ctx context.Context) (version string, err error) {
	first, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := p.Pool.Acquire(first)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	version, _, _ = strings.Cut(conn.Conn().PgConn().ParameterStatus("server_version"), " ")
	if _, err := migrations.Apply(ctx, conn.Conn()); err != nil {
		return "", err
	}
	return version, migrations.Check(ctx, conn)
}

// nameOf names a database without its password.
func nameOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Redacted()
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		return "an address that cannot be parsed"
	}
	return fmt.Sprintf("%s:%d, database %q", cfg.Host, cfg.Port, cfg.Database)
}

// postgresError says why the database cannot be used, and what to do.
func postgresError(ctx context.Context, name, from string, err error) error {
	var (
		pg *pgconn.PgError
		op *net.OpError
	)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, migrations.ErrSchema):
		return fmt.Errorf("postgres at %s: %w", name, err)
	case errors.As(err, &pg) && pg.Code == "42501":
		return fmt.Errorf("postgres at %s: %s (SQLSTATE %s): connect as a role that may create schemas, or run `onlyonce migrate` as one",
			name, pg.Message, pg.Code)
	case errors.As(err, &pg):
		return fmt.Errorf("postgres at %s refused: %s (SQLSTATE %s): correct %s", name, pg.Message, pg.Code, from)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("cannot reach postgres at %s: no answer within %v: is it running, and is %s right?", name, connectTimeout, from)
	case errors.As(err, &op):
		return fmt.Errorf("cannot reach postgres at %s: %w: is it running, and is %s right?", name, op.Err, from)
	}
	return fmt.Errorf("cannot use postgres at %s (%s): %s", name, from, strings.Join(strings.Fields(err.Error()), " "))
}

func startKafka(ctx context.Context, f Flags, o devenv.Options) (k *Kafka, stop func() error, err error) {
	k = &Kafka{Address: f.kafka(), Given: true, SessionTimeout: shortSession}
	if len(k.Address.Brokers) == 0 {
		started, err := devenv.StartKafka(ctx, o)
		if err != nil {
			return nil, nil, err
		}
		k.Address = KafkaAddress{Brokers: started.Brokers}
		k.Given = false
		k.How = started.How
		stop = started.Stop
	}
	config, mechanism, err := k.Address.Security()
	if err != nil {
		return nil, stop, err
	}
	k.transport = &kafka.Transport{TLS: config, SASL: mechanism, ClientID: "onlyonce-demo", DialTimeout: 5 * time.Second,
		// What it knows of the cluster would otherwise be up to six seconds old, and not hold the
		// topic just created.
		MetadataTTL: time.Second}
	k.client = &kafka.Client{Addr: kafka.TCP(k.Address.Brokers...), Transport: k.transport}
	if k.Given {
		if err := k.inspect(ctx); err != nil {
			k.transport.CloseIdleConnections()
			return nil, stop, err
		}
		k.How = fmt.Sprintf("kafka: broker at %s", strings.Join(k.Address.Brokers, ","))
	}
	return k, stop, nil
}
