package onlyoncetest_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `
create table effects (id bigint generated always as identity primary key, value text, at timestamptz default now());
create table audit (value text);
create table invoices (id text primary key);
create table totals (name text primary key, n int);
insert into totals values ('all', 0)`)
	return err
}

const insertSQL = `insert into effects (value) values ($1)`

// sound is what every handler here does first.
func sound(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, insertSQL, string(m.Value))
	return err
}

func three() []onlyoncetest.Message {
	return []onlyoncetest.Message{{ID: "m-0", Key: "a", Value: "0"}, {ID: "m-1", Key: "b", Value: "1"}, {ID: "m-2", Key: "a", Value: "2"}}
}

// with returns a case for a handler that is made for each process.
func with(handler func(p *onlyoncetest.Process) consumer.HandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		return consumer.New(p.Pool, p.Source(), handler(p), p.Tune(consumer.Config{BatchSize: 2}))
	}}
}

// after returns a case whose handler does something more.
func after(more consumer.HandlerFunc) onlyoncetest.Case {
	return with(func(*onlyoncetest.Process) consumer.HandlerFunc {
		return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if err := sound(ctx, tx, m); err != nil {
				return err
			}
			return more(ctx, tx, m)
		}
	})
}

// alone returns a case of a handler and nothing else, with the batches of a program that sets none.
func alone(handler consumer.HandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: onlyoncetest.Consume(handler, consumer.Config{})}
}

// batch is with for a batch handler.
func batch(handler func(p *onlyoncetest.Process) consumer.BatchHandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		return consumer.New(p.Pool, p.Source(), handler(p), p.Tune(consumer.Config{BatchSize: 3}))
	}}
}

func call(body []byte) outbox.Call { return outbox.Call{Sink: "mail", Name: "send", Body: body} }

// mailbox is a remote that accepts everything.
func mailbox(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	t.Cleanup(s.Close)
	return s.URL
}

func post(ctx context.Context, client *http.Client, address, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// serving returns a case of the HTTP layer in front of a handler.
func serving(mode idempotency.RouteMode, handler func(p *onlyoncetest.Process) http.HandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{
		Migrate:  migrate,
		Requests: requests(),
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			layer, err := idempotency.New(p.Pool, layerConfig())
			if err != nil {
				return nil, nil, err
			}
			h, err := layer.Handle(
				idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: mode, HandlerTimeout: 2 * time.Second},
				handler(p),
			)
			return h, layer, err
		},
	}
}

func layerConfig() idempotency.Config {
	return idempotency.Config{
		Scope:           func(*http.Request) (idempotency.Scope, error) { return idempotency.Scope{Tenant: "t"}, nil },
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}, LeaseTTL: time.Second,
	}
}

func requests() []onlyoncetest.Request {
	return []onlyoncetest.Request{{Path: "/charges", Key: "k-1", Body: `{"n":1}`}, {Path: "/charges", Key: "k-2", Body: `{"n":2}`}}
}

// charge is a sound HTTP handler with something more.
func charge(more func(r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && more != nil {
			err = more(r)
		}
		if err == nil {
			var tx consumer.Tx
			if tx, err = idempotency.TxOf(r); err == nil {
				_, err = tx.Exec(r.Context(), insertSQL, string(body))
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charged %s", body)
	}
}

// stored returns a case of a webhook endpoint that stores its events, and of a consumer of them.
func stored(handler func(p *onlyoncetest.Process) consumer.HandlerFunc) onlyoncetest.Case {
	c := events(nil)
	c.Serve = func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		e, err := webhook.New(p.Pool, webhook.Config{
			Name:          "e",
			Provider:      webhook.Stripe{},
			Secrets:       []string{webhookSecret},
			Partitions:    1,
			Logger:        p.Logger(),
			DuplicateWait: 100 * time.Millisecond,
			RetryAfter:    time.Second,
			PollInterval:  20 * time.Millisecond,
			LeaseTTL:      time.Second,
		})
		if err != nil {
			return nil, nil, err
		}
		worker, err := consumer.New(p.Pool, e, handler(p), consumer.Config{Scope: webhook.Scope("e"), Logger: p.Logger()})
		return e, worker, err
	}
	return c
}

const webhookSecret = "whsec_of_a_test_of_the_kit"

// events returns a case of a webhook endpoint whose handler runs in the request.
func events(handler func(p *onlyoncetest.Process) consumer.HandlerFunc) onlyoncetest.Case {
	var rs []onlyoncetest.Request
	for _, id := range []string{"evt_1", "evt_2"} {
		body := fmt.Sprintf(`{"id":%q,"type":"invoice.paid"}`, id)
		rs = append(rs, onlyoncetest.Request{Path: "/hook", Body: body, Sign: func(r *http.Request) {
			at := fmt.Sprint(time.Now().Unix())
			mac := hmac.New(sha256.New, []byte(webhookSecret))
			_, _ = mac.Write([]byte(at + "." + body))
			r.Header.Set("Stripe-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
		}})
	}
	return onlyoncetest.Case{
		Migrate:  migrate,
		Requests: rs,
		Repeat:   true,
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			e, err := webhook.New(p.Pool, webhook.Config{
				Name:          "e",
				Provider:      webhook.Stripe{},
				Secrets:       []string{webhookSecret},
				Mode:          webhook.Inline,
				Partitions:    1,
				DuplicateWait: 100 * time.Millisecond,
				RetryAfter:    time.Second,
				Handler:       handler(p),
			})
			if err != nil {
				return nil, nil, err
			}
			return e, onlyoncetest.RunnerFunc(e.Upkeep), nil
		},
	}
}

// received returns a case of messages that a queue's receiver stores, one of them without an id,
// and of a consumer of them.
func received(more func(*queue.Config)) onlyoncetest.Case {
	var all []onlyoncetest.Message
	for _, m := range append(three(), onlyoncetest.Message{Value: "3"}) {
		m.Topic = "orders"
		all = append(all, m)
	}
	handled := func(ctx context.Context, pool *pgxpool.Pool) error {
		var some bool
		err := pool.QueryRow(ctx, `select exists (select from effects)`).Scan(&some)
		if err == nil && !some {
			err = errors.New("no message was waited for")
		}
		return err
	}
	return onlyoncetest.Case{
		Migrate:  migrate,
		Messages: all,
		Parks:    []string{"no-key"},
		Check:    handled,
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			cfg := queue.Config{Name: "q", CopiesWithin: time.Hour, Partitions: 2, PollInterval: 20 * time.Millisecond}
			more(&cfg)
			q, err := queue.New(p.Pool, p.Broker("orders"), cfg)
			if err != nil {
				return nil, err
			}
			return consumer.New(p.Pool, q, consumer.HandlerFunc(sound), p.Tune(consumer.Config{BatchSize: 2}))
		},
	}
}

// named has a queue take its ids from a function.
func named(id func(*queue.Delivery) string) onlyoncetest.Case {
	return received(func(c *queue.Config) { c.Identify = func(d *queue.Delivery) error { d.ID = id(d); return nil } })
}

// sending returns a case whose calls a relay sends with a sink.
func sending(sink func(p *onlyoncetest.Process) (outbox.Sink, error)) onlyoncetest.Case {
	c := after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return outbox.Enqueue(ctx, tx, call(m.Value))
	})
	consume := c.Start
	c.Start = func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		s, err := sink(p)
		if err != nil {
			return nil, err
		}
		relay, err := newRelay(p, s)
		if err != nil {
			return nil, err
		}
		run, err := consume(p)
		return onlyoncetest.All(run, relay), err
	}
	return c
}

func newRelay(p *onlyoncetest.Process, s outbox.Sink) (*outbox.Relay, error) {
	return leasedRelay(p, s, 4*time.Second)
}

// leasedRelay is a relay that another process replaces after a ttl. If a busy machine does not
// renew its leases in time, a call is sent twice in a clean run.
func leasedRelay(p *onlyoncetest.Process, s outbox.Sink, ttl time.Duration) (*outbox.Relay, error) {
	return outbox.NewRelay(p.Pool, outbox.RelayConfig{Sinks: []outbox.Sink{s}, PollInterval: 20 * time.Millisecond,
		LeaseTTL: ttl,
		Backoff:  dedupe.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}})
}

// mailSink is a sink of the user's own.
type mailSink struct {
	p       *onlyoncetest.Process
	address string
	key     func(a *outbox.Attempt) string
}

func (*mailSink) Name() string { return "mail" }

func (*mailSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: time.Hour, Timeout: 3 * time.Second}
}

func (s *mailSink) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	if err := a.MayStart(); err != nil {
		return outbox.Failure("not now", err)
	}
	req, err := http.NewRequestWithContext(ctx, a.Method, s.address, strings.NewReader(string(a.Body)))
	if err != nil {
		return outbox.Failure("bad request", outbox.Permanent(err))
	}
	if key := s.key(a); key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := s.p.HTTP.Do(req)
	if err != nil {
		return outbox.Failure("no answer", err)
	}
	_ = res.Body.Close()
	return outbox.Result{Outcome: outbox.Delivered}
}

// remembering returns a case whose handler passes over messages whose transaction it has seen
// commit. That is right until a failover loses that transaction.
func remembering() onlyoncetest.Case {
	type runKey struct{}
	return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		var committed sync.Map
		cfg := p.Tune(consumer.Config{BatchSize: 2})
		cfg.Hooks.AttemptStart = func(ctx context.Context, _ consumer.Batch) context.Context {
			return context.WithValue(ctx, runKey{}, &sync.Map{})
		}
		cfg.Hooks.AttemptEnd = func(ctx context.Context, _ consumer.BatchResult, err error) {
			if ids, ok := ctx.Value(runKey{}).(*sync.Map); ok && err == nil {
				ids.Range(func(id, _ any) bool { committed.Store(id, true); return true })
			}
		}
		return consumer.New(p.Pool, p.Source(), consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if _, done := committed.Load(m.ID()); done {
				return nil
			}
			ctx.Value(runKey{}).(*sync.Map).Store(m.ID(), true)
			return sound(ctx, tx, m)
		}), cfg)
	}}
}

// ordered returns a case whose handler numbers its messages, although only the order of one
// ordering key is kept. In each process but the first, the first message fails, is parked and is
// overtaken.
func ordered() onlyoncetest.Case {
	return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		failed := 0
		return consumer.New(p.Pool, p.Source(), consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if p.Generation() > 1 && string(m.Value) == "0" && failed < 2 {
				failed++
				return errors.New("not yet")
			}
			_, err := tx.Exec(ctx, `insert into audit select count(*) || ': ' || $1 from audit`, string(m.Value))
			return err
		}), p.Tune(consumer.Config{BatchSize: 2, OnFailure: consumer.ParkOrderingKey}))
	}}
}

// judged is a case and the verdict that it must have.
type judged struct {
	name string
	c    onlyoncetest.Case
	kind string // empty for a sound one
	what string // part of Verdict.What
}

func faulty(t *testing.T) []judged {
	remote := mailbox(t)
	forgetful := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{IgnoreKeys: true})
	var memory, handles sync.Map
	var counter atomic.Int64
	return []judged{
		{"pool", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if err := sound(ctx, tx, m); err != nil {
					return err
				}
				_, err := p.Pool.Exec(ctx, `insert into audit values ($1)`, string(m.Value))
				return err
			}
		}), kindWrittenOutside, "judges_test.go:"},
		{"queries past the transaction", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if err := (queries{p.Pool}).insertInvoice(ctx, m.ID()); err != nil { // the second attempt fails
					return err
				}
				return outbox.Enqueue(ctx, tx, call(m.Value))
			}
		}), kindWrittenOutside, "called at judges_test.go:"},
		{"order of calls", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				names := []string{"hold", "charge"}
				if p.Generation() > 1 {
					slices.Reverse(names)
				}
				for _, name := range names {
					if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: name, OrderingKey: string(m.Key)}); err != nil {
						return err
					}
				}
				return nil
			}
		}), kindCallsDiffer, "in another order than in a clean run"},
		{"state of a session", alone(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `select set_config('app.first', $1, true) where coalesce(current_setting('app.first', true), '') = ''`,
				string(m.Value))
			if err == nil {
				_, err = tx.Exec(ctx, `insert into audit values (current_setting('app.first'))`)
			}
			return err
		}), kindEffectsDiffer, "a batch of its own"},
		{"temporary table", alone(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `do $$ begin create temporary table if not exists seen (value text) on commit drop; end $$`)
			if err == nil {
				_, err = tx.Exec(ctx, `insert into seen values ($1)`, string(m.Value))
			}
			if err == nil {
				_, err = tx.Exec(ctx, `insert into audit select count(*)::text from seen`)
			}
			return err
		}), kindEffectsDiffer, "a batch of its own"},
		{"goroutine", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = p.Pool.Exec(context.WithoutCancel(ctx), `update totals set n = n + 1`)
				}()
				<-done
				return sound(ctx, tx, m)
			}
		}), kindWrittenOutside, "totals"},
		{"mail", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if err := sound(ctx, tx, m); err != nil {
					return err
				}
				return post(ctx, p.HTTP, remote+"/send", string(m.Value))
			}
		}), kindCalledOutside, "judges_test.go:"},
		{"default client", after(func(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
			return post(ctx, http.DefaultClient, remote+"/send", string(m.Value))
		}), kindCalledOutside, "POST"},
		{"random id", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			c := call(m.Value)
			c.ID = uuid.NewString()
			return outbox.Enqueue(ctx, tx, c)
		}), kindNotDeterministic, "its key differs"},
		{"time in a body", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			return outbox.Enqueue(ctx, tx, call(fmt.Appendf(nil, `{"at":%q}`, time.Now().Format(time.RFC3339Nano))))
		}), kindNotDeterministic, "a time"},
		{"uuid in a body", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			return outbox.Enqueue(ctx, tx, call([]byte(uuid.NewString())))
		}), kindNotDeterministic, "a uuid"},
		{"map order in a body", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			parts := make(map[int]bool) // many: the orders of two clean runs must differ
			for i := range 100 {
				parts[i] = true
			}
			var b strings.Builder
			for k := range parts {
				fmt.Fprint(&b, k, " ")
			}
			return outbox.Enqueue(ctx, tx, call([]byte(b.String())))
		}), kindNotDeterministic, "the order of its parts"},
		{"an id at each attempt", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `insert into audit values ($1)`, uuid.NewString())
			return err
		}), kindNotDeterministic, "a uuid"},
		{"swallowed error", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, _ = tx.Exec(ctx, `insert into nowhere values (1)`)
			return nil
		}), kindParkedWrongly, "nowhere"},
		{"commit", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `commit`)
			return err
		}), kindParkedWrongly, "commit"},
		{"panic", after(func(context.Context, consumer.Tx, *consumer.Message) error { panic("a bug") }), kindParkedWrongly, "a bug"},
		{"memory", with(func(*onlyoncetest.Process) consumer.HandlerFunc {
			var own sync.Map
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if _, seen := own.LoadOrStore(m.ID(), true); seen {
					return nil // "handled already"
				}
				return sound(ctx, tx, m)
			}
		}), kindEffectsDiffer, "effects"},
		{"memory of the program", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if _, seen := memory.LoadOrStore(m.ID(), true); seen { // in an earlier run
				return nil
			}
			_, err := tx.Exec(ctx, `insert into audit values ($1)`, m.ID())
			return err
		}), kindNotDeterministic, "kept in memory from one run to the next"},
		{"counter", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `insert into audit values ($1)`, fmt.Sprint(counter.Add(1)))
			return err
		}), kindNotDeterministic, "audit"},
		{"memory of commits", remembering(), kindEffectsDiffer, "effects"},
		{
			"key of an offset",
			onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: onlyoncetest.Consume(consumer.HandlerFunc(sound), consumer.Config{
				Key: func(m *consumer.Message) (string, error) { return fmt.Sprint(m.Partition, "-", m.Offset), nil }})},
			kindEffectsDiffer,
			"effects",
		},
		{
			"key of a partition",
			onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: onlyoncetest.Consume(consumer.HandlerFunc(sound), consumer.Config{
				Key: func(m *consumer.Message) (string, error) { return fmt.Sprint(m.Partition, "-", m.Headers), nil }})},
			kindEffectsDiffer,
			"effects",
		},
		{"order of all messages", ordered(), kindEffectsDiffer, "messages/0 at 1 was handled before messages/0 at 0"},
		{"batch past the transaction", batch(func(p *onlyoncetest.Process) consumer.BatchHandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				for _, m := range msgs {
					if _, err := p.Pool.Exec(ctx, insertSQL, string(m.Value)); err != nil {
						return err
					}
				}
				return nil
			}
		}), kindWrittenOutside, "effects"},
		{"batch as a unit", batch(func(*onlyoncetest.Process) consumer.BatchHandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				_, err := tx.Exec(ctx, `insert into audit values ($1)`, fmt.Sprint(len(msgs), " messages"))
				return err
			}
		}), kindEffectsDiffer, "audit"},
		{"http past the transaction", serving(idempotency.Transactional, func(p *onlyoncetest.Process) http.HandlerFunc {
			return charge(func(r *http.Request) error {
				_, err := p.Pool.Exec(r.Context(), `update totals set n = n + 1`)
				return err
			})
		}), kindWrittenOutside, "totals"},
		{"http calls", serving(idempotency.Transactional, func(p *onlyoncetest.Process) http.HandlerFunc {
			return charge(func(r *http.Request) error { return post(r.Context(), p.HTTP, remote+"/send", "charged") })
		}), kindCalledOutside, "POST"},
		{
			"http without the layer",
			onlyoncetest.Case{
				Migrate:  migrate,
				Requests: requests(),
				Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						var id int64
						if err := p.Pool.QueryRow(
							r.Context(),
							`insert into effects (value) values ('x') returning id`,
						).Scan(&id); err != nil {
							http.Error(w, "again", http.StatusInternalServerError)
							return
						}
						_, _ = fmt.Fprint(w, id)
					}), nil, nil
				},
			},
			kindAnswersDiffer,
			"when it comes again",
		},
		{"event past the transaction", events(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				_, err := p.Pool.Exec(ctx, insertSQL, m.ID())
				return err
			}
		}), kindWrittenOutside, "effects"},
		{"event mails", events(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				return post(ctx, p.HTTP, remote+"/send", "an event")
			}
		}), kindCalledOutside, "POST"},
		{"stored event past the transaction", stored(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				_, err := p.Pool.Exec(ctx, insertSQL, m.ID())
				return err
			}
		}), kindWrittenOutside, "effects"},
		{
			"queue whose ids name the attempt",
			named(func(d *queue.Delivery) string { return fmt.Sprint(d.ID, d.Redelivered) }),
			kindEffectsDiffer,
			"effects",
		},
		{
			"queue whose ids name the time",
			named(func(d *queue.Delivery) string { return fmt.Sprint(d.ID, time.Now().UnixNano()) }),
			kindEffectsDiffer,
			"effects",
		},
		{"queue with ids of its broker", named(func(d *queue.Delivery) string { // a producer's copy gets another one
			id, _ := handles.LoadOrStore(d.Handle, fmt.Sprint(counter.Add(1)))
			return id.(string)
		}), kindEffectsDiffer, "effects"},
		{"sql past the transaction", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				db := stdlib.OpenDBFromPool(p.Pool)
				defer func() { _ = db.Close() }() // the pool stays open
				_, err := db.ExecContext(ctx, insertSQL, string(m.Value))
				return err
			}
		}), kindWrittenOutside, "judges_test.go:"},
		{"sink without a key", sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
			return &mailSink{p, remote, func(*outbox.Attempt) string { return "" }}, nil
		}), kindCalledOutside, "POST"},
		{"sink for a remote without keys", sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
			return httpsink.New(httpsink.Config{Name: "mail", BaseURL: p.Reach(forgetful), KeyWindow: time.Hour, AllowPrivate: true})
		}), kindRemotesDiffer, "more than once"},
		{"sink with a key for each attempt", sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
			return &mailSink{p, remote, func(a *outbox.Attempt) string { return fmt.Sprint(a.Key, p.Generation()) }}, nil
		}), kindCalledOutside, "key"},
	}
}

func soundCases(t *testing.T) []judged {
	remote := mailbox(t)
	ways := map[int]string{1: "500+", 2: "reset"}
	provider := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{
		Answer: func(_ string, n int) string { return ways[n] },
	})
	return []judged{
		{"messages", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			return outbox.Enqueue(ctx, tx, call(m.Value))
		}), "", ""},
		{"update", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `update totals set n = n + 1`)
			return err
		}), "", ""},
		{"queue", with(func(*onlyoncetest.Process) consumer.HandlerFunc {
			return func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
				tx.Queue(insertSQL, string(m.Value))
				return nil
			}
		}), "", ""},
		{"reads past the transaction", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				var n int
				if err := p.Pool.QueryRow(ctx, `select count(*) from audit`).Scan(&n); err != nil {
					return err
				}
				return sound(ctx, tx, m)
			}
		}), "", ""},
		{"writes past the transaction what stays the same", with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if _, err := p.Pool.Exec(ctx, `insert into totals values ('seen', 1) on conflict do nothing`); err != nil {
					return err
				}
				return sound(ctx, tx, m)
			}
		}), "", ""},
		{"calls in order", after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			for _, name := range []string{"hold", "charge"} {
				if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: name, OrderingKey: string(m.Key)}); err != nil {
					return err
				}
			}
			return nil
		}), "", ""},
		{"settings of a transaction", alone(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `select set_config('app.value', $1, true)`, string(m.Value))
			if err == nil {
				_, err = tx.Exec(ctx, `insert into audit values (current_setting('app.value'))`)
			}
			return err
		}), "", ""},
		{"refuses a message", with(func(*onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if string(m.Value) == "1" {
					return consumer.Permanent(errors.New("no such order"))
				}
				return sound(ctx, tx, m)
			}
		}), "", ""},
		{
			"positions",
			onlyoncetest.Case{
				Migrate:  migrate,
				Messages: three(),
				Start:    onlyoncetest.Consume(consumer.HandlerFunc(sound), consumer.Config{PositionsOnly: true}),
			},
			"",
			"",
		},
		{"batch", batch(func(*onlyoncetest.Process) consumer.BatchHandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				var values []string
				for _, m := range msgs {
					values = append(values, string(m.Value))
				}
				_, err := tx.Exec(ctx, `insert into effects (value) select unnest($1::text[])`, values)
				return err
			}
		}), "", ""},
		{"http", serving(idempotency.Transactional, func(*onlyoncetest.Process) http.HandlerFunc { return charge(nil) }), "", ""},
		{"http with a step", serving(idempotency.Leased, func(p *onlyoncetest.Process) http.HandlerFunc {
			return charge(func(r *http.Request) error {
				_, err := idempotency.Step(r.Context(), "pay", func(ctx context.Context, key string) ([]byte, error) {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, remote, strings.NewReader("pay"))
					if err != nil {
						return nil, err
					}
					req.Header.Set("Idempotency-Key", key)
					res, err := p.HTTP.Do(req)
					if err != nil {
						return nil, err
					}
					return []byte("paid"), res.Body.Close()
				})
				return err
			})
		}), "", ""},
		{"event", events(func(*onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				e, err := webhook.EventOf(m)
				if err != nil {
					return err
				}
				_, err = tx.Exec(ctx, insertSQL, e.ID)
				return err
			}
		}), "", ""},
		{"stored event", stored(func(*onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				_, err := tx.Exec(ctx, insertSQL, m.ID())
				return err
			}
		}), "", ""},
		{"messages of a queue", received(func(*queue.Config) {}), "", ""},
		{"messages of a queue in order", received(func(c *queue.Config) {
			c.Ordered = true
			c.Batch = 1
		}), "", ""},
		{"messages of a queue under ids of their bodies", named(func(d *queue.Delivery) string { return string(d.Body) }), "", ""},
		{"sql", with(func(*onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				return sqltx.Within(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, insertSQL, string(m.Value))
					return err
				})
			}
		}), "", ""},
		{"httpsink", sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
			return httpsink.New(httpsink.Config{Name: "mail", BaseURL: p.Reach(provider), KeyWindow: time.Hour, AllowPrivate: true})
		}), "", ""},
		{"sink", sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
			return &mailSink{p, remote, func(a *outbox.Attempt) string { return a.Key }}, nil
		}), "", ""},
	}
}

// judging has room for three cases at a time. Each runs several engines, and what they wait for,
// for example a lease, must not be the machine.
var judging = make(chan struct{}, 3)

// enter waits for room, and returns what leaves it.
func enter() (leave func()) {
	judging <- struct{}{}
	return func() { <-judging }
}

// Each faulty program is caught, under the right name and by a history of at most three events. No
// sound one is accused.
//
// Two of three are long cases, and a part of all may be drawn: see pgtest.Long.
func TestJudges(t *testing.T) {
	t.Parallel()
	for i, j := range faulty(t) {
		t.Run("faulty/"+j.name, func(t *testing.T) {
			if i%3 != 0 && !pgtest.Long(t.Name()) || !pgtest.Drawn(t.Name()) {
				t.Skip("a long case, or one of another part")
			}
			t.Parallel()
			defer enter()()
			x := &fatal{TB: t}
			j.c.Budget = 5 * time.Minute // the first verdict ends it
			rep := onlyoncetest.Run(x, j.c)
			v := rep.Verdict
			if v == nil {
				t.Fatalf("not caught: %s %s", rep, x.text)
			}
			t.Logf("%s", v)
			if v.Kind != j.kind || !strings.Contains(v.What+" "+v.Where, j.what) {
				t.Errorf("%s: %s, want %s and %q", v.Kind, v.What, j.kind, j.what)
			}
			if strings.Count(v.History, ",") > 2 || len(v.Timeline) > 10 {
				t.Errorf("%s: %d lines", v.History, len(v.Timeline))
			}
			if !json.Valid([]byte(v.JSON())) || !strings.Contains(x.text, v.History) {
				t.Errorf("%s", v.JSON())
			}
		})
	}
	for i, j := range soundCases(t) {
		t.Run("sound/"+j.name, func(t *testing.T) {
			if i%3 != 0 && !pgtest.Long(t.Name()) || !pgtest.Drawn(t.Name()) {
				t.Skip("a long case, or one of another part")
			}
			t.Parallel()
			defer enter()()
			x := &fatal{TB: t}
			j.c.Budget = 4 * time.Second // of single faults; pairs of them follow
			rep := onlyoncetest.Run(x, j.c)
			t.Log(rep)
			for seed := range *seeds {
				onlyoncetest.Draws(&j.c, uint64(seed)+1, pairs)
				rep := onlyoncetest.Run(x, j.c)
				t.Logf("seed %d: %s", seed+1, rep)
			}
			if x.text != "" {
				t.Errorf("accused: %s", x.text)
			}
		})
	}
}

// seeds is 20 at night.
var seeds = flag.Int("seeds", 2, "how many seeds each sound program of TestJudges is played with")

// pairs is how many pairs of faults are played with each seed.
const pairs = 4
