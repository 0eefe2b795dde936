package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
)

// ingest is the side that receives: one server with an endpoint for each provider.
type ingest struct {
	run  string // a name of this run, in all that it stores
	pool *pgxpool.Pool
	url  string

	mu     sync.Mutex
	failed map[string]bool // events whose handler has failed once, as it is to
}

// endpoint is the name of a provider's endpoint in this run.
func (in *ingest) endpoint(p *provider) string { return p.name + "-" + in.run }

const effectsSQL = `create table if not exists webhook_ingest_effects (
  at bigserial, run text not null, endpoint text not null, id text not null, object text not null, version bigint not null)`

// version says what an event is about and which of two is the later one.
func version(e *webhook.Event) (object string, n int64, err error) {
	var about struct {
		Object  string `json:"object_id"`
		Version int64  `json:"object_version"`
	}
	err = json.Unmarshal(e.Body, &about)
	return about.Object, about.Version, err
}

var errNotNow = errors.New("not now")

// handle applies an event. One in eight fails at first: a worker tries again, and an inline
// handler's sender does.
func (in *ingest) handle(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	e, err := webhook.EventOf(m)
	if err != nil {
		return consumer.Permanent(err)
	}
	object, n, err := version(e)
	if err != nil {
		return consumer.Permanent(err)
	}
	in.mu.Lock()
	first := len(m.ID())%8 == int(n)%8 && !in.failed[m.ID()]
	if first {
		in.failed[m.ID()] = true
	}
	in.mu.Unlock()
	// There is no unique constraint, so that an event that is applied twice leaves two rows.
	tx.Queue(`insert into webhook_ingest_effects (run, endpoint, id, object, version) values ($1, $2, $3, $4, $5)`, in.run, m.Topic, e.ID, object, n)
	if first {
		return errNotNow
	}
	return nil
}

// serve runs the endpoints until ctx ends.
func (in *ingest) serve(ctx context.Context, ps []*provider, ready chan<- struct{}) error {
	if _, err := in.pool.Exec(ctx, effectsSQL); err != nil {
		return err
	}
	handler, err := webhook.InOrder(webhook.Ordered{Version: version, Rule: webhook.DropStale}, in.handle)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	var endpoints []*webhook.Endpoint
	for _, p := range ps {
		cfg := webhook.Config{Name: in.endpoint(p), Provider: p.scheme, Secrets: []string{p.secret}, Handler: handler, Partitions: 4,
			OrderingKey: func(e *webhook.Event) string { object, _, _ := version(e); return object },
			Consumer:    consumer.Config{RetryMin: 5 * time.Millisecond}, Source: webhook.SourceConfig{PollInterval: 50 * time.Millisecond}}
		if p.inline {
			cfg.Mode = webhook.Inline
		}
		endpoint, err := webhook.New(in.pool, cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		mux.Handle("/hooks/"+p.name, endpoint)
		endpoints = append(endpoints, endpoint)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	in.url = "http://" + l.Addr().String() + "/hooks/"
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	close(ready)
	work, working := errgroup.WithContext(ctx)
	for _, e := range endpoints {
		work.Go(func() error { return e.Run(working) })
	}
	err = work.Wait()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(bounded))
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// leftSQL counts stored events of the run that are still to be handled. In: run, the endpoints'
// suffix.
const leftSQL = `
select coalesce(sum(b.next_offset - coalesce(c.next_offset, 0)), 0)::bigint
  from onlyonce.streams s
  cross join lateral generate_series(0, s.partitions - 1) n
  cross join lateral onlyonce.stream_bounds(s.id, n::smallint) b
  left join onlyonce.positions c on c.scope = replace(s.topic, 'webhook.', 'webhook/') and c.topic = s.topic and c.partition = n
 where s.topic like 'webhook.%-' || $1`

// drained returns when everything that is stored has been handled.
func (in *ingest) drained(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var left int64
		if err := in.pool.QueryRow(ctx, leftSQL, in.run).Scan(&left); err != nil || left == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d stored events are still to be handled: %w", left, ctx.Err())
		}
	}
}

// tidySQL removes what a run has left in the user's own database. In: run.
var tidySQL = []string{
	`delete from webhook_ingest_effects where run = $1`,
	`delete from onlyonce.inbox i using onlyonce.webhook_ids w where w.endpoint like '%-' || $1 and i.key = w.key`,
	`delete from onlyonce.webhook_ids where endpoint like '%-' || $1`,
	`delete from onlyonce.webhook_bodies where endpoint like '%-' || $1`,
	`delete from onlyonce.webhook_objects where scope like '%-' || $1`,
	`delete from onlyonce.parked where scope like 'webhook%-' || $1`,
	`delete from onlyonce.progress p using onlyonce.cursors c where c.scope like 'webhook/%-' || $1 and p.cursor_id = c.id`,
	`delete from onlyonce.topics where scope like 'webhook/%-' || $1`,
	`delete from onlyonce.scopes where scope like 'webhook/%-' || $1`,
	`delete from onlyonce.leases where name like 'cursor/webhook/%-' || $1 || '/%' or name like '%events/webhook/%-' || $1 || '/%'`,
	`delete from onlyonce.streams where topic like 'webhook.%-' || $1`,
}

func (in *ingest) cleanUp(ctx context.Context) error {
	var errs []error
	for _, sql := range tidySQL {
		_, err := in.pool.Exec(ctx, sql, in.run)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
