package webhook_test

import (
	"context"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// W22: the bodies of stored, parked and forwarded events are sealed, and the handler gets them
// open. An event whose key is not there is parked sealed, and applied once the key is there. A body
// that was moved to another event does not open.
func TestW22EventsAreSealed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	applied := make(chan string, 10)
	handler := func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
		e, err := webhook.EventOf(m)
		if err == nil {
			applied <- e.ID + " " + string(e.Body)
		}
		return err
	}
	e := r.serve(samples(t)["GitHub"], func(c *webhook.Config) {
		c.Sealer = pgtest.Sealer(t, 1)
		c.Forward = &webhook.Forward{Sink: "payments", Target: "/events"}
		c.MaxBody = 1 << 20
	})
	for _, id := range []string{"1", "2", "3"} {
		e.sendAs(id, "secret "+id).want(t, 200, false)
	}
	e.sendAs("1", "secret 1").want(t, 200, true)
	e.sendAs("4", "secret 1").want(t, 200, true) // the same body under another id is set aside
	const stored = `select body from onlyonce.event_log union all select body from onlyonce.parked union all select body
		from onlyonce.outbox_log`
	all, open := one[int](r, `select count(*) from (`+stored+`) x`), one[int](
		r,
		`select count(*) from (`+stored+`) x where position('secret'::bytea in body) > 0`,
	)
	if all != 7 ||
		open != 0 {
		t.Errorf("%d bodies are stored, %d of them open", all, open)
	}
	r.exec(`update onlyonce.event_log l set body = (select o.body from onlyonce.event_log o where o.id = 'e/github/2')
		where l.id = 'e/github/3'`)

	run := func(sealer *seal.Sealer) (stop func()) {
		x := r.receiver(e.sample, func(c *webhook.Config) { c.Sealer = sealer })
		worker, err := consumer.New(r.recv, x, consumer.Unsealed(consumer.HandlerFunc(handler), sealer), consumer.Config{
			Scope:       webhook.Scope("e"),
			MaxAttempts: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- worker.Run(ctx) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	closed := func(n int) {
		t.Helper()
		pgtest.Until(t, time.Minute, "events that do not open are parked, sealed", func() bool {
			return one[int](
				r,
				`select count(*) from onlyonce.parked
					where settled_at is null and state = 'waiting' and "offset" is not null and error like '%the event is sealed%'
					and position('secret'::bytea in body) = 0`,
			) == n
		})
	}
	stop := run(pgtest.Sealer(t, 2)) // another key
	closed(3)
	stop()
	r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = now(), attempts = 0 where "offset" is not null`)
	defer run(pgtest.Sealer(t, 2, 1))()
	got := map[string]bool{}
	for range 2 {
		select {
		case one := <-applied:
			got[one] = true
		case <-time.After(time.Minute):
			t.Fatalf("applied once the key is there: %v", got)
		}
	}
	if !got["1 secret 1"] || !got["2 secret 2"] {
		t.Errorf("applied: %v", got)
	}
	closed(1)
}
