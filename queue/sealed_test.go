package queue_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// W22: the bodies of stored and parked messages are sealed, and copies are found nevertheless. The
// handler gets bodies open, also of messages that were set aside and redriven. A message whose key
// is not there is parked sealed, and applied once the key is there.
func TestW22MessagesAreSealed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sealed := func(c *queue.Config) { c.Sealer = pgtest.Sealer(t, 1) }
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin
		raise exception using errcode = '22000', message = 'refused';
		end $$`)
	r.exec(`create trigger refuse before insert on onlyonce.event_log for each row when (new.id = 'refused') execute function refuse()`)
	marked := message("b", "secret b") // a producer's own header does not look like ours
	marked.Headers = []consumer.Header{{Name: "onlyonce-sealed", Value: []byte("true")}}
	r.broker.Publish(message("a", "secret a"), marked, message("a", "secret a"), message("a", "secret other"), message("", "secret none"),
		message("refused", "secret refused"))
	r.receives(sealed)
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	r.broker.Publish(message("b", "secret b"))
	r.until("the copy is acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := r.stored(); got != (queue.StoredEvent{Fresh: 2, Copies: 2, Parked: 3}) {
		t.Errorf("%+v", got)
	}
	r.exec(`drop trigger refuse on onlyonce.event_log`)
	open := func() int {
		return one[int](
			r,
			`select count(*) from (select body from onlyonce.event_log union all select body from onlyonce.parked) x
				where position('secret'::bytea in body) > 0`,
		)
	}

	var mu sync.Mutex
	applied := map[string]bool{}
	handle := func(_ context.Context, _ consumer.Tx, msgs []*consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			applied[string(m.Value)] = len(m.Headers) == 0
		}
		return nil
	}
	run := func(s *seal.Sealer) (stop func()) {
		c, err := consumer.New(
			r.pool,
			r.queue(r.pool, nil),
			consumer.Unsealed(consumer.BatchHandlerFunc(handle), s),
			consumer.Config{Scope: "s", MaxAttempts: 1},
		)
		if err != nil {
			t.Fatal(err)
		}
		return r.runs(c.Run)
	}
	stop := run(nil)
	r.until("messages that do not open are parked, sealed", func() bool {
		return one[int](
			r,
			`select count(*) from onlyonce.parked where state = 'waiting' and "offset" is not null and error like '%the event is sealed%'`,
		) == 2
	})
	stop()
	if n := open(); n != 0 || len(applied) != 0 {
		t.Errorf("%d bodies lie open; applied: %v", n, applied)
	}
	r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = now(), attempts = 0 where "offset" is not null`)
	if n := one[int](r, `select onlyonce.append_parked(array(select id from onlyonce.parked where "offset" is null))`); n != 3 {
		t.Errorf("%d are redriven, want 3", n)
	}
	run(pgtest.Sealer(t, 2, 1))
	r.until("all are applied", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(applied) == 5
	})
	mu.Lock()
	defer mu.Unlock()
	for body, bare := range applied {
		if !strings.HasPrefix(body, "secret ") || !bare {
			t.Errorf("applied: %q; without our header: %t", body, bare)
		}
	}
	if n := open(); n != 0 {
		t.Errorf("%d bodies lie open", n)
	}

	// Erased by its id: the message, and the other body that was set aside under it.
	partition := one[int32](
		r,
		`select partition from onlyonce.event_log where id = 'b'`,
	)
	offset := one[int64](r, `select "offset" from onlyonce.event_log where id = 'b'`)
	at, err := reports.EventAt(t.Context(), r.pool, queue.Topic("q"), partition, offset, true)
	if err == nil {
		err = at.Open(pgtest.Sealer(t, 1))
	}
	if err != nil || string(at.Body) != "secret b" {
		t.Errorf("an operator sees %+v, %v", at, err)
	}
	r.until("all is handled", func() bool {
		_, err := ops.EraseEvents(t.Context(), r.pool, ops.By{Reason: "GDPR-4"}, ops.EraseEventsInput{Topic: queue.Topic("q"), ID: "a"})
		return err == nil
	})
	if n := one[int](
		r,
		`select count(*)
			from (select body from onlyonce.event_log where id = 'a' union all select body from onlyonce.parked where event_id = 'a') x
			where body is not null`,
	); n != 0 {
		t.Errorf("%d bodies of the message are left", n)
	}
}
