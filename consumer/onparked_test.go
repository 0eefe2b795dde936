package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
)

// buried is a Config.OnParked that writes a row and enqueues a call, and fails after that as long
// as broken is set.
func buried(t *testing.T, r *rig, broken *atomic.Bool) func(context.Context, consumer.Tx, *consumer.Message, consumer.ParkedEvent) error {
	r.exec(`create table dead (value text, reason text)`)
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message, e consumer.ParkedEvent) error {
		if e.State != "waiting" || e.Offset != m.Offset || e.Err == nil {
			t.Errorf("called with %+v", e)
		}
		if _, err := tx.Exec(ctx, `insert into dead values ($1, $2)`, string(m.Value), e.Reason); err != nil {
			return err
		}
		if err := outbox.Enqueue(ctx, tx, outbox.Call{
			Sink:  "dead",
			Name:  "bury",
			Scope: "dead-letters",
			ID:    fmt.Sprint(m.Offset, e.Reason),
			Body:  m.Value,
		}); err != nil {
			return err
		}
		if broken.Load() {
			return errors.New("no room for the dead")
		}
		return nil
	}
}

// buriedOnce fails the test unless the rows and calls are those of the messages.
func (r *rig) buriedOnce(want string) {
	r.t.Helper()
	var got string
	if err := r.pool.QueryRow(
		r.t.Context(),
		`select coalesce(string_agg(value || ':' || reason, ' ' order by value), '') from dead`,
	).Scan(&got); err != nil {
		r.t.Fatal(err)
	}
	calls := r.count(`select count(*) from onlyonce.outbox_log`)
	if n := len(strings.Fields(want)); got != want || calls != n {
		r.t.Errorf("buried %q with %d calls, want %q", got, calls, want)
	}
}

// D3: what OnParked writes commits with the parking or not at all. While it fails, nothing is
// parked or passed over, and the partition says why.
func TestD3OnParked(t *testing.T) {
	t.Parallel()
	both(t, "one", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		r.log.Append(0, "a", id("a"))
		r.log.Append(0, "bad", id("bad"))
		r.log.Append(0, "nameless")
		r.log.Append(0, "b", id("b"))
		var broken atomic.Bool
		broken.Store(true)
		cfg := testConfig()
		cfg.BlockedAfter = 50 * time.Millisecond
		cfg.OnParked = buried(t, r, &broken)
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == "bad" {
				return consumer.Permanent(errBoom)
			}
			return effect(ctx, tx, m)
		}, cfg)
		if h := r.halted(); h.Reason != consumer.HaltBlocked ||
			h.Position != 1 ||
			!strings.Contains(h.Detail, "Config.OnParked: no room for the dead") {
			t.Errorf("halt: %v", h)
		}
		r.buriedOnce("")
		if got := r.reasons(); len(got) > 0 {
			t.Errorf("parked: %v", got)
		}
		broken.Store(false)
		r.reaches(0, 4)
		stop()
		r.once("a", "b")
		r.buriedOnce("bad:permanent nameless:no-key")
		if got := r.reasons(); len(got) != 2 {
			t.Errorf("parked: %v", got)
		}
	})
}

// D3: each call of OnParked has a bound of its own. Those of a batch take longer together than one
// bound, and the batch is parked nevertheless.
func TestD3OnParkedOfManyMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`create table dead (value text, reason text)`)
	const many = 15
	for i := range many {
		r.log.Append(0, fmt.Sprint("b", i), id(fmt.Sprint("b", i)))
		r.log.Append(0, fmt.Sprint("nameless", i))
	}
	cfg := testConfig()
	cfg.BatchSize = 2 * many
	cfg.Linger = time.Second
	cfg.Timeouts = dedupe.Timeouts{Lock: time.Second, Statement: time.Second}
	cfg.OnParked = func(ctx context.Context, tx consumer.Tx, m *consumer.Message, e consumer.ParkedEvent) error {
		_, err := tx.Exec(ctx, `insert into dead select $1, $2 from pg_sleep(0.2)`, string(m.Value), e.Reason)
		return err
	}
	stop := r.start(effect, cfg)
	r.reaches(0, 2*many)
	stop()
	dead := r.count(`select count(*) from dead`)
	applied := r.count(`select count(*) from effects`)
	if dead != many || applied != many {
		t.Errorf("%d dead, %d applied, want %d each", dead, applied, many)
	}
}

// D3: what OnParked writes fails at the end of the transaction, by a deferred constraint. It is no
// more the message's fault than an error.
func TestD3OnParkedFailsAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`create table plots (id int primary key)`)
	r.exec(`create table graves (plot int references plots deferrable initially deferred)`)
	values := r.numbered(0, 3)
	cfg := testConfig()
	cfg.BlockedAfter = 50 * time.Millisecond
	cfg.OnParked = func(_ context.Context, tx consumer.Tx, _ *consumer.Message, _ consumer.ParkedEvent) error {
		tx.Queue(`insert into graves values (1)`)
		return nil
	}
	stop := r.start(permanentAtOne, cfg)
	if h := r.halted(); h.Reason != consumer.HaltBlocked || h.Position != 1 || !strings.Contains(h.Detail, "graves_plot_fkey") {
		t.Errorf("halt: %v", h)
	}
	if got := r.reasons(); len(got) > 0 {
		t.Errorf("parked: %v", got)
	}
	r.exec(`insert into plots values (1)`)
	r.reaches(0, 3)
	stop()
	r.once(values[0], values[2])
	if got := fmt.Sprint(r.reasons()); got != "map[1:permanent]" {
		t.Errorf("parked: %s", got)
	}
}

// permanentAtOne is a handler that cannot apply the message at offset 1.
func permanentAtOne(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if m.Offset == 1 {
		return consumer.Permanent(errBoom)
	}
	return effect(ctx, tx, m)
}

// D3: a call that OnParked enqueues is refused at the end of the transaction, because another one
// has its id. It is no more the message's fault than an error.
func TestD3OnParkedEnqueuesInVain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	enqueue := func(ctx context.Context, tx dedupe.AnyTx, id, body string) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "dead", Name: "bury", Scope: "dead-letters", ID: id, Body: []byte(body)})
	}
	if err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		return enqueue(t.Context(), tx, "taken", "another")
	}); err != nil {
		t.Fatal(err)
	}
	var callID atomic.Value
	callID.Store("taken")
	values := r.numbered(0, 3)
	cfg := testConfig()
	cfg.BlockedAfter = 50 * time.Millisecond
	cfg.OnParked = func(ctx context.Context, tx consumer.Tx, m *consumer.Message, _ consumer.ParkedEvent) error {
		return enqueue(ctx, tx, callID.Load().(string), string(m.Value))
	}
	stop := r.start(permanentAtOne, cfg)
	if h := r.halted(); h.Reason != consumer.HaltBlocked || h.Position != 1 || !strings.Contains(h.Detail, "statement of the hook") {
		t.Errorf("halt: %v", h)
	}
	if got := r.reasons(); len(got) > 0 {
		t.Errorf("parked: %v", got)
	}
	callID.Store("free")
	r.reaches(0, 3)
	stop()
	r.once(values[0], values[2])
	if got := fmt.Sprint(r.reasons()); got != "map[1:permanent]" {
		t.Errorf("parked: %s", got)
	}
}

// D3: OnParked ends the context of its own statement, with which the statement that parks travels,
// and returns the error or not.
func TestD3OnParkedEndsItsOwnContext(t *testing.T) {
	t.Parallel()
	for _, returned := range []bool{true, false} {
		t.Run(fmt.Sprint(returned), func(t *testing.T) {
			t.Parallel()
			onParkedEndsItsOwnContext(t, returned)
		})
	}
}

func onParkedEndsItsOwnContext(t *testing.T, returned bool) {
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	cfg := testConfig()
	cfg.BlockedAfter = 50 * time.Millisecond
	var slow atomic.Bool
	slow.Store(true)
	cfg.OnParked = func(ctx context.Context, tx consumer.Tx, _ *consumer.Message, _ consumer.ParkedEvent) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if slow.Load() {
			if _, err := tx.Exec(ctx, `select pg_sleep(0.1)`); returned {
				return err
			}
		}
		return nil
	}
	stop := r.start(permanentAtOne, cfg)
	if h := r.halted(); h.Reason != consumer.HaltBlocked || h.Position != 1 {
		t.Errorf("halt: %v", h)
	}
	slow.Store(false)
	r.reaches(0, 3)
	stop()
	r.once(values[0], values[2])
}

// D3: a message that the consumer retries is not left to an operator yet. When it is, OnParked
// writes in the transaction that says so. While it fails, the message is retried, and the failures
// are not the message's.
func TestD3OnParkedOfARetriedMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for i := range 3 {
		r.log.Append(0, fmt.Sprint("v", i), id(fmt.Sprint("m", i)))
	}
	var broken atomic.Bool
	var tries atomic.Int32
	broken.Store(true)
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.MaxAttempts = 2
	cfg.OnParked = buried(t, r, &broken)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 1 {
			tries.Add(1)
			return errBoom
		}
		return effect(ctx, tx, m)
	}, cfg)
	r.reaches(0, 3)
	until(t, "more attempts than MaxAttempts", func() bool { return tries.Load() > 8 })
	r.buriedOnce("")
	if n := r.count(`select count(*) from onlyonce.parked where state = 'retrying' and reason = 'failed' and attempts <= 2`); n != 1 {
		t.Error("the message is not retried")
		r.dump(`select state, reason, attempts, error from onlyonce.parked`)
	}
	broken.Store(false)
	until(t, "the message to wait for an operator", func() bool {
		return r.count(`select count(*) from onlyonce.parked where state = 'waiting' and reason = 'exhausted'`) == 1
	})
	stop()
	r.once("v0", "v2")
	r.buriedOnce("v1:exhausted")
}

// D3, D2: OnParked of such a message ends the context of its own statement, and with it the
// connection. The attempt is not known to have ended, and is taken for none.
func TestD3OnParkedOfARetriedMessageEndsItsOwnContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	var tries atomic.Int32
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.MaxAttempts = 2
	cfg.OnParked = func(ctx context.Context, tx consumer.Tx, _ *consumer.Message, _ consumer.ParkedEvent) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if tries.Load() < 8 {
			_, err := tx.Exec(ctx, `select pg_sleep(10)`)
			return err
		}
		return nil
	}
	stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error {
		tries.Add(1)
		return errBoom
	}, cfg)
	until(t, "the message to wait for an operator", func() bool {
		return r.count(`select count(*) from onlyonce.parked where state = 'waiting'`) == 1
	})
	stop()
	if got := fmt.Sprint(r.reasons()); got != "map[0:exhausted]" {
		t.Errorf("parked: %s", got)
	}
}

// D3: each time that a message is left to an operator is a dead letter of its own, also with the
// error's text in it: of the topic that was created again, and after a redrive.
func TestD3DeadLettersAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.OnParked = func(ctx context.Context, tx consumer.Tx, m *consumer.Message, e consumer.ParkedEvent) error {
		letter := *m
		letter.Value = fmt.Appendf(nil, "%v: %s", e.Err, m.Value)
		return bury(ctx, tx, &letter, e)
	}
	var n atomic.Int32
	bad := func(context.Context, consumer.Tx, *consumer.Message) error {
		return consumer.Permanent(fmt.Errorf("error %d", n.Add(1)))
	}
	letters := func() int { return r.count(`select count(*) from onlyonce.outbox_log`) }
	r.log.Append(0, "old", id("1"))
	stop := r.start(bad, cfg)
	r.reaches(0, 1)
	if got := letters(); got != 1 {
		t.Errorf("%d letters of the first time", got)
	}
	r.exec(`
update onlyonce.parked
   set state = 'retrying', redrives = redrives + 1, attempts = 0, next_attempt_at = clock_timestamp()`)
	until(t, "it to be left to an operator again", func() bool {
		return r.count(`select count(*) from onlyonce.parked where state = 'waiting' and redrives = 1`) == 1
	})
	if got := letters(); got != 2 {
		t.Errorf("%d letters after a redrive, want 2", got)
	}
	stop()
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp()`)
	r.log.Recreate()
	r.log.Append(0, "new", id("2"))
	r.setTo(0)
	stop = r.start(bad, cfg)
	r.reaches(0, 1)
	stop()
	if got := letters(); got != 3 {
		t.Errorf("%d letters with that of the new topic, want 3", got)
	}
}
