package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/gauges"
	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/webhook"
)

// The names that the shapes' rows have too.
const (
	scope     = "c"
	slotScope = "slots"
	topic     = "t"
	sink      = "s"
	endpoint  = "e"
	tenant    = "a"
	route     = "/charges"
	secret    = "whsec_of_growth_shapes"
	idHeader  = "id"
	okBody    = "ok"
)

// batch is how many messages a transaction has at most: what it asks for by key, and no row
// returns, is not allowed for.
const batch = 8

// engines are all parts of onlyonce, as one program has them, on a pool.
type engines struct {
	pool   *pgxpool.Pool
	remote *httptest.Server // of the calls
	keyed  *memlog.Log      // of a consumer with ids, and one transaction at a time
	slots  *memlog.Log      // of one with positions only, and several
	sent   int              // messages and requests of each kind
	log    *slog.Logger
}

func newEngines(pool *pgxpool.Pool, log *slog.Logger) *engines {
	e := &engines{pool: pool, keyed: memlog.NewLog(topic, 1), slots: memlog.NewLog(slotScope, 1), log: log}
	e.remote = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if strings.Contains(string(body), "fails") {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	return e
}

// handle applies a message: it has an effect, and enqueues a call, unless its value says that it
// fails.
func handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	value := string(m.Value)
	if strings.Contains(value, "fails") {
		return errors.New("asked to fail")
	}
	if _, err := tx.Exec(ctx, `insert into effects values ($1)`, value); err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: sink, Name: "n", Target: "/", ID: fmt.Sprint(m.Topic, m.Partition, m.Offset),
		OrderingKey: string(m.Key), Body: m.Value})
}

// consumer returns a consumer's Run.
func (e *engines) consumer(log *memlog.Log, of string, cfg consumer.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		cfg.Scope = of
		cfg.BatchSize = batch
		cfg.Backoff = dedupe.Backoff{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond}
		cfg.OnFailure = consumer.ParkOrderingKey
		cfg.Logger = e.log
		c, err := consumer.New(e.pool, &memlog.Source{Log: log, GroupID: of}, consumer.HandlerFunc(handle), cfg)
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
}

// relay sends the calls. It has a rate for each tenant.
func (e *engines) relay(ctx context.Context) error {
	s, err := httpsink.New(httpsink.Config{
		Name:         sink,
		BaseURL:      e.remote.URL,
		KeyWindow:    24 * time.Hour,
		Timeout:      5 * time.Second,
		AllowPrivate: true,
		Transport:    &http.Transport{},
	})
	if err != nil {
		return err
	}
	defer s.Close()
	r, err := outbox.NewRelay(e.pool, outbox.RelayConfig{Sinks: []outbox.Sink{s}, PollInterval: 100 * time.Millisecond,
		Backoff: dedupe.Backoff{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond}, Retention: 30 * 24 * time.Hour,
		Rates: []outbox.Rate{{Sink: sink, EachTenant: true, PerSecond: 200}}, Logger: e.log})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// server has the HTTP layer in both modes, operations, and a receiver of webhooks. Its consumer
// applies the events.
type server struct {
	mux  *http.ServeMux
	runs []func(context.Context) error
}

func (e *engines) server() (*server, error) {
	s := &server{mux: http.NewServeMux()}
	layer, err := idempotency.New(e.pool, idempotency.Config{
		Scope:           func(*http.Request) (idempotency.Scope, error) { return idempotency.Scope{Tenant: tenant}, nil },
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}, PurgeInterval: time.Second, Logger: e.log})
	if err != nil {
		return nil, err
	}
	operations, err := idempotency.NewOperations(
		layer,
		idempotency.OperationsConfig{Stream: "operations", Path: "/operations/", PollInterval: 100 * time.Millisecond,
			Logger: e.log},
		map[string]idempotency.Work{"work": finish},
	)
	if err != nil {
		return nil, err
	}
	for mode, path := range map[idempotency.RouteMode]string{idempotency.Transactional: route, idempotency.Leased: "/leased"} {
		h, err := layer.Handle(idempotency.Route{Pattern: path, KeyWindow: 24 * time.Hour, Mode: mode}, charge(mode, operations))
		if err != nil {
			return nil, err
		}
		s.mux.Handle(path, h)
	}
	ep, err := webhook.New(e.pool, webhook.Config{Name: endpoint, Provider: webhook.GitHub{}, Secrets: []string{secret}, Partitions: 1,
		PollInterval: 100 * time.Millisecond, Logger: e.log})
	if err != nil {
		return nil, err
	}
	s.mux.Handle("/webhook", ep)
	c, err := consumer.New(e.pool, ep, consumer.HandlerFunc(handle), consumer.Config{
		Scope:     webhook.Scope(endpoint),
		BatchSize: batch,
		Logger:    e.log,
	})
	if err != nil {
		return nil, err
	}
	s.runs = []func(context.Context) error{layer.Run, operations.Run, c.Run}
	return s, nil
}

// charge is the handler of a mode. A transactional one begins an operation.
func charge(mode idempotency.RouteMode, operations *idempotency.Operations) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var err error
		if mode == idempotency.Leased {
			_, err = idempotency.Step(req.Context(), "charge", func(context.Context, string) ([]byte, error) { return []byte(okBody), nil })
		}
		var tx consumer.Tx
		if err == nil {
			tx, err = idempotency.TxOf(req)
		}
		if err == nil {
			_, err = tx.Exec(req.Context(), `insert into effects values ($1)`, req.Header.Get("Idempotency-Key"))
		}
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadGateway)
		case mode == idempotency.Transactional:
			if err := operations.Accept(w, req, idempotency.Request{Name: "work"}); err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
			}
		default:
			w.WriteHeader(http.StatusCreated)
		}
	})
}

// look reads what operators and exporters read.
func (e *engines) look(ctx context.Context) error {
	err := errors.Join(read(ctx, e, operate.CursorList), read(ctx, e, operate.ParkedList), read(ctx, e, operate.CallList),
		read(ctx, e, operate.EventList), read(ctx, e, operate.RequestList), read(ctx, e, operate.OperationList),
		read(ctx, e, operate.PlaceList), read(ctx, e, operate.AuditList))
	if err != nil {
		return err
	}
	if _, err := ops.Status(ctx, e.pool, ops.StatusQuestion{CountLimit: time.Minute}); err != nil {
		return err
	}
	if _, err := ops.Examine(ctx, e.pool, ops.ExamineQuestion{}); err != nil {
		return err
	}
	_, err = gauges.Measure(ctx, e.pool, time.Minute)
	return err
}

// read reads one of the lists.
func read[F, T any](ctx context.Context, e *engines, list *operate.List[F, T]) error {
	if _, err := list.Begin().Read(ctx, e.pool, time.Minute); err != nil {
		return fmt.Errorf("%s: %w", list.Name, err)
	}
	return nil
}

// claims runs functions under ids, and copies of them.
func (e *engines) claims(ctx context.Context, ids []string) error {
	for _, id := range append(ids, ids[0]) {
		_, err := dedupe.Do(
			ctx,
			e.pool,
			dedupe.Key{Scope: "loop", ID: id, Fingerprint: dedupe.NoFingerprint},
			func(ctx context.Context, tx dedupe.GuardedTx) error {
				_, err := tx.Exec(ctx, `insert into effects values ($1)`, id)
				return err
			},
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// behindSQL counts the consumers of a log that have not come to its end.
const behindSQL = `
select 2 - count(*)
  from onlyonce.positions p where p.scope in ('` + scope + `', '` + slotScope + `') and p.next_offset >= $1`

// least is how long a round is at least: relays and housekeeping work beside the messages.
const least = 4 * time.Second

// round runs all parts, gives each `n` messages or requests, some of which fail, and stops them
// when all are applied, or the patience ends. It returns what a part failed with. watch is a
// connection of the rig's own.
func (e *engines) round(ctx context.Context, watch *pgx.Conn, n int, patience time.Duration) (done bool, err error) {
	ctx = process.With(ctx, &process.Process{Pace: process.Pace{
		Prune:     2,
		Sweep:     10 * time.Millisecond,
		PruneIdle: 20 * time.Millisecond,
		Promote:   time.Second,
	}})
	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	failures := make(chan error, 16)
	run := func(name string, f func(context.Context) error) {
		parts.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failures <- fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	s, err := e.server()
	if err != nil {
		stop()
		return false, err
	}
	web := httptest.NewServer(s.mux)
	defer func() {
		web.Close()
		stop()
		parts.Wait()
	}()
	run("consumer", e.consumer(e.keyed, scope, consumer.Config{Key: consumer.HeaderKey(idHeader)}))
	run(slotScope, e.consumer(e.slots, slotScope, consumer.Config{PositionsOnly: true, Concurrency: 4}))
	run("relay", e.relay)
	for _, f := range s.runs {
		run("server", f)
	}
	begun := time.Now()
	ids := e.write(n)
	heard := make(chan struct{})
	run("clients", func(ctx context.Context) error {
		defer close(heard)
		return ask(ctx, web.URL, ids)
	})
	if err := errors.Join(e.claims(ctx, ids), e.look(ctx)); err != nil {
		return false, err
	}
	for asked := false; !done && time.Since(begun) < patience; {
		select {
		case <-heard:
			asked = true
			heard = nil
		case err := <-failures:
			return false, err
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		var behind int
		if err := watch.QueryRow(ctx, behindSQL, e.keyed.End(0)).Scan(&behind); err != nil {
			return false, err
		}
		done = asked && behind == 0 && time.Since(begun) > least
	}
	return done, nil
}
