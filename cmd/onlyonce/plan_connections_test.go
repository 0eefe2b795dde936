package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestPlanConnections(t *testing.T) {
	t.Parallel()
	s := session{t: t}
	// 24 partitions on the two that are left: 12 each with two connections, and 2. Two sinks: 6.
	plan := []string{
		"plan", "connections", "-consumers", "3", "-partitions", "24", "-relays", "2", "-sinks",
		"2", "-exporters", "1", "-consoles", "1",
	}
	s.run(append(plan, "-max-connections", "200")...).want(t, statusGood, "while one of 3 is down: 12 partitions",
		" 26 ", " 78 ", "96 connections; the server must accept 96, and accepts 197").lines(
		t,
		0,
	)
	s.run(append(plan, "-max-connections", "98")...).want(t, statusFailed, "there are too few connections")
	short := s.run(append(plan, "-max-connections", "98", "-json")...)
	var p reports.ConnectionPlan
	err := json.Unmarshal([]byte(short.out), &p)
	good := err == nil &&
		p.Total == 96 &&
		p.Room == 95 &&
		len(p.Faults) == 1 &&
		p.Faults[0] == "the server accepts 95 connections (max_connections is 98, of which 3 are reserved), and 96 are "+
			"needed: set max_connections to 99 or more and start the server again, or put a pooler in front"
	if !good {
		t.Errorf("%+v, %v", p, err)
	}
	// Behind a pooler the server sees only the pooler's connections.
	s.run(append(plan, "-max-connections", "99", "-pooler", "96")...).want(t, statusGood, "96 connections; the server must accept 96")
	if r := s.run(append(plan, "-max-connections", "90", "-pooler", "60")...); r.status != statusFailed {
		t.Errorf("status %d of a pooler that is too small", r.status)
	}
	// 20 requests, 16 operations and 4 to spare, and renewals beside the pool; 1 for commands.
	s.run("plan", "connections", "-servers", "2", "-requests", "20", "-operations", "16", "-max-connections", "500").want(
		t,
		statusGood,
		"40 + 1",
		"83 connections",
	)
	for _, wrong := range [][]string{
		{},
		{"-consumers", "2"},
		{"-partitions", "2"},
		{"-relays", "1", "-consumers", "1", "-partitions", "1"},
		{"-relays", "-1"},
		{"-pooler", "0"},
	} {
		s.run(append([]string{"plan", "connections"}, wrong...)...).want(t, statusEnvironment)
	}
}

// The limit of a database counts too, and what the server reserves.
func TestPlanConnectionsAsksTheServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	plan := []string{"plan", "connections", "-consumers", "1", "-partitions", "2"}
	most := one[int](
		f,
		`select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int - `+
			`coalesce(current_setting('reserved_connections', true), '0')::int`,
	)
	f.run(plan...).want(t, statusGood, "7 connections; the server must accept 7, and accepts "+strconv.Itoa(most))
	name := one[string](f, `select quote_ident(current_database())`)
	f.exec(`alter database ` + name + ` connection limit 6`)
	f.run(append(plan, "-json")...).want(t, statusFailed)
	f.exec(`alter database ` + name + ` connection limit 7`)
	f.run(plan...).want(t, statusGood, "accepts 7")
}

// stuckSink holds its calls until it is told to let them go.
type stuckSink struct {
	name  string
	began func(string)
	goOn  chan struct{}
}

func (s *stuckSink) Name() string { return s.name }
func (s *stuckSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Minute}
}

func (s *stuckSink) Send(ctx context.Context, _ *outbox.Attempt) outbox.Result {
	s.began(s.name)
	select {
	case <-s.goOn:
		return outbox.Result{Outcome: outbox.Delivered}
	case <-ctx.Done():
		return outbox.Failure("the test has ended", ctx.Err())
	}
}

// The plan, compared with what connects: a consumer with every transaction and every retry of its
// partitions under way, and a relay with calls of two sinks. With pools of the planned size all of
// that runs at once, the consumer still reports, and the server sees no more connections than
// planned.
func TestPlanConnectionsIsWhatConnects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const (
		partitions  = 3
		concurrency = 2
		calls       = 8
	)
	p := reports.PlanConnections(
		&reports.ConnectionQuestion{Consumers: 1, Partitions: partitions, Concurrency: concurrency, Relays: 1, Sinks: 2},
		&reports.ServerRoom{Most: 100, Database: -1},
	)
	poolOf := func(part reports.ConnectionPart) *pgxpool.Pool {
		cfg, err := pgxpool.ParseConfig(f.url)
		if err != nil {
			t.Fatal(err)
		}
		cfg.MaxConns = int32(part.Pool)
		cfg.ConnConfig.RuntimeParams["application_name"] = "planned " + part.Part
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}

	var mu sync.Mutex
	begun := map[string]int{}
	began := func(what string) { mu.Lock(); defer mu.Unlock(); begun[what]++ }
	inside := func(what string) int { mu.Lock(); defer mu.Unlock(); return begun[what] }
	goOn := make(chan struct{})
	log := memlog.NewLog("orders", partitions)
	for part := range int32(partitions) {
		for _, key := range []string{"again", "a", "b"} {
			name := fmt.Sprint(key, part)
			log.AppendMessage(part, &consumer.Message{Key: []byte(name), Value: []byte(key), Headers: []consumer.Header{id(name)}})
		}
	}
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if began(m.ID()); string(m.Value) == "again" && inside(m.ID()) <= 2 { // the second time alone
			return errors.New("not now")
		}
		if _, err := tx.Exec(ctx, `select`); err != nil { // sends BEGIN, which waits for the first answer that is needed
			return err
		}
		began("handler")
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c, err := consumer.New(
		poolOf(p.Parts[0]),
		&memlog.Source{Log: log, GroupID: "g"},
		consumer.HandlerFunc(handle),
		consumer.Config{
			Scope:          "stock",
			Key:            consumer.HeaderKey("message-id"),
			OnFailure:      consumer.ParkOrderingKey,
			Concurrency:    concurrency,
			BatchSize:      1,
			HandlerTimeout: 2 * testPatience,
			BatchTimeout:   4 * testPatience,
			Backoff:        dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
			Timeouts:       dedupe.Timeouts{Idle: 2 * testPatience},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	sinks := []outbox.Sink{&stuckSink{"one", began, goOn}, &stuckSink{"two", began, goOn}}
	relay, err := outbox.NewRelay(poolOf(p.Parts[1]), outbox.RelayConfig{
		Sinks:        sinks,
		Concurrency:  calls,
		PollInterval: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for n := range calls {
		for _, sink := range sinks {
			tx, err := f.pool.Begin(t.Context())
			if err == nil {
				err = outbox.Enqueue(t.Context(), tx, outbox.Call{
					Sink:   sink.Name(),
					Target: "/",
					Name:   "charge",
					ID:     strconv.Itoa(n),
					Scope:  "checkout",
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- c.Run(ctx) }()
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})

	const atOnce = partitions * (concurrency + 1)
	pgtest.Until(t, testPatience, "every transaction, retry and call is under way", func() bool {
		return inside("handler") == atOnce && inside("one") == calls && inside("two") == calls
	})
	reported := `select max(seen_at)::text from onlyonce.owners`
	then := one[string](f, reported)
	connected := func(part reports.ConnectionPart) (n int) {
		return one[int](f, `select count(*) from pg_stat_activity where application_name = $1`, "planned "+part.Part)
	}
	most := map[string]int{}
	pgtest.Until(t, testPatience, "the consumer reports meanwhile", func() bool {
		for _, part := range p.Parts[:2] {
			most[part.Part] = max(most[part.Part], connected(part))
		}
		return one[string](f, reported) != then
	})
	if n := one[int](
		f,
		`select count(*) from pg_stat_activity where application_name = 'planned consumer' and state = 'idle in transaction'`,
	); n != atOnce {
		t.Errorf("%d sessions hold a transaction, and %d handlers run", n, atOnce)
	}
	close(goOn)
	f.until(`select count(*) = 0 from onlyonce.parked where settled_at is null`)
	f.until(fmt.Sprintf(`select count(*) = %d from onlyonce.calls where state = 'delivered'`, calls*len(sinks)))
	for _, part := range p.Parts[:2] {
		most[part.Part] = max(most[part.Part], connected(part))
		t.Logf("%s: planned %d, seen %d", part.Part, part.Total, most[part.Part])
		if most[part.Part] > part.Total {
			t.Errorf("%s: %d connections, and %d are planned", part.Part, most[part.Part], part.Total)
		}
	}
	if most["consumer"] <= atOnce {
		t.Errorf("the consumer had %d connections: none beside its %d handlers", most["consumer"], atOnce)
	}
}

// What the plan says is set as pool_max_conns in the address: commands and the relay, which asks
// for the schema outside of its pool, do not send it to the server.
func TestPoolParametersOfTheAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("pool_max_conns", "6")
	q.Set("pool_max_conn_lifetime", "1h")
	u.RawQuery = q.Encode()
	s := session{t: t, url: u.String()}
	s.run("status").want(t, statusGood)
	s.run("migrate").want(t, statusGood)
	u.RawQuery = "pool_max_conns=many"
	session{t: t, url: u.String()}.run("status").want(t, statusEnvironment, "not an address of a database")
}
