package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/webhook"
)

// keySink is a sink that counts keys.
type keySink struct {
	name string
	mu   sync.Mutex
	sent map[string]int
}

func (s *keySink) Name() string { return s.name }

func (s *keySink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Second}
}

func (s *keySink) Send(_ context.Context, a *outbox.Attempt) outbox.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[a.Key]++
	return outbox.Result{Outcome: outbox.Delivered}
}

func (s *keySink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

// O5, S5: a relay shares the lanes out among relays, whatever its sinks are called, and not with
// the members of consumers' groups.
func TestO5SinkNamedAsAnotherFeature(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 3 {
		r.applies(r.queue(r.pool, r.broker.Connect()), effect)
	}
	endpoint, err := webhook.NewSource(r.pool, webhook.SourceConfig{Endpoints: []string{"stripe"}})
	if err != nil {
		t.Fatal(err)
	}
	worker, err := consumer.New(r.pool, endpoint, consumer.HandlerFunc(effect), consumer.Config{Scope: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	r.runs(worker.Run)
	r.broker.Publish(message("a"))
	r.until("the members of both groups", func() bool {
		return r.count("effects") == 1 &&
			one[int](
				r,
				`select count(*) from onlyonce.leases
					where nonce is not null and name ~ '(queue.q|webhook.stripe)/0$' and name !~ '^(cursor|events)/'`,
			) == 2
	})

	calls := map[string]int{"events": 1000, "readers": 100, "events/s": 100, "relays": 100, "relay": 100}
	var sinks []outbox.Sink
	for name := range calls {
		sinks = append(sinks, &keySink{name: name, sent: map[string]int{}})
	}
	relay, err := outbox.NewRelay(r.pool, outbox.RelayConfig{Sinks: sinks})
	if err != nil {
		t.Fatal(err)
	}
	r.runs(relay.Run)
	err = pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		for sink, n := range calls {
			for i := range n {
				id := fmt.Sprint(i)
				if err := outbox.Enqueue(t.Context(), tx, outbox.Call{
					Sink:        sink,
					Name:        "n",
					Scope:       "s",
					ID:          id,
					OrderingKey: id,
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sinks {
		c := s.(*keySink)
		r.until(fmt.Sprintf("all %d calls of sink %q", calls[c.name], c.name), func() bool { return c.count() == calls[c.name] })
	}
}

// appliesAs runs a consumer of a scope, which counts what it handles.
func (r *rig) appliesAs(scope string, q *queue.Queue) *consumer.Consumer {
	r.t.Helper()
	c, err := consumer.New(r.pool, q, consumer.HandlerFunc(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into handled values ($1, $2)`, scope, m.ID())
		return nil
	}), consumer.Config{Scope: scope, Linger: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) handled(scope string) int {
	r.t.Helper()
	return one[int](r, `select count(distinct id) from handled where scope = $1`, scope)
}

// F15: two consumers with scopes of their own each handle every message of a queue.
func TestF15TwoScopesOfOneQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create table handled (scope text, id text, primary key (scope, id))`)
	r.runs(r.appliesAs("stock", r.queue(r.pool, nil)).Run)
	r.runs(r.appliesAs("mail", r.queue(r.pool, nil)).Run)
	r.broker.Publish(messages(0, 100)...)
	r.receives()
	for _, scope := range []string{"stock", "mail"} {
		r.until("all 100 messages, by "+scope, func() bool { return r.handled(scope) == 100 })
	}
}

// F15: a group that is given to two scopes is one's: the other does not join it.
func TestF15GroupOfTwoScopes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create table handled (scope text, id text, primary key (scope, id))`)
	shared := func(c *queue.Config) { c.Group = "workers" }
	r.runs(r.appliesAs("stock", r.queue(r.pool, nil, shared)).Run)
	r.broker.Publish(messages(0, 100)...)
	r.receives()
	r.until("the first scope's messages", func() bool { return r.handled("stock") == 100 })
	err := r.appliesAs("mail", r.queue(r.pool, nil, shared)).Run(t.Context())
	if err == nil ||
		!strings.Contains(err.Error(), `group "workers" belongs to scope "stock"`) ||
		!strings.Contains(err.Error(), `has scope "mail"`) {
		t.Errorf("Run returned %v", err)
	}
	r.broker.Publish(messages(100, 200)...)
	r.until("the first scope's later messages", func() bool { return r.handled("stock") == 200 })
	if n := r.handled("mail"); n != 0 {
		t.Errorf("the other scope has handled %d", n)
	}

	q := r.queue(r.pool, nil)
	r.appliesAs("stock", q)
	if _, err := consumer.New(r.pool, q, consumer.HandlerFunc(effect), consumer.Config{
		Scope: "mail",
	}); !errors.Is(err, consumer.ErrConfig) ||
		!strings.Contains(err.Error(), `the scope "stock"`) {
		t.Errorf("a Queue for two consumers: %v", err)
	}
}
