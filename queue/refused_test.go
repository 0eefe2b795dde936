package queue_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/queue"
)

// refuses has the database refuse messages whose body begins with "bad", in these tables.
func (r *rig) refuses(sqlState string, tables ...string) {
	r.t.Helper()
	r.exec(`create function refuse() returns trigger language plpgsql as $$
		begin
			if convert_from(new.body, 'UTF8') like 'bad%' then raise exception using errcode = tg_argv[0], message = 'refused'; end if;
			return new;
		end $$`)
	for _, t := range tables {
		r.exec(`create trigger refuse before insert on ` + t + ` for each row execute function refuse('` + sqlState + `')`)
	}
}

// order returns the ids of the stored messages in the order of storing, all of one key.
func (r *rig) order() string {
	r.t.Helper()
	return one[string](r, `select coalesce(string_agg(id, ' ' order by "offset"), '') from onlyonce.event_log`)
}

// A message that the database refuses is parked under its id. A copy that comes once the database
// takes it, before it is redriven or after that, is a copy (Q2); while it is parked, also one that
// comes after the inbox has forgotten its id.
func TestQ2CopiesOfARefusedMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuses("22000", "onlyonce.event_log")
	r.broker.Publish(message("a", "bad"), message("b", "bad"))
	r.receives()
	r.until("both are parked", func() bool { return r.broker.Left() == 0 && r.count("onlyonce.parked") == 2 })
	r.exec(`drop trigger refuse on onlyonce.event_log`)
	r.exec(`delete from onlyonce.inbox where key = onlyonce.key('', 'queue/q', 'b')`)
	r.broker.Publish(message("a", "bad"), message("b", "bad"))
	r.until("the first copies are acknowledged", func() bool { return r.broker.Left() == 0 })
	if n := one[int](
		r,
		`select onlyonce.append_parked(array(select id from onlyonce.parked where reason = 'permanent' and event_id = 'a'))`,
	); n != 1 {
		t.Errorf("%d are redriven", n)
	}
	r.broker.Publish(message("a", "bad"), message("a", "bad, and other"))
	r.until("the others are acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := r.order(); got != "a" || r.count("onlyonce.parked") != 3 || r.stored().Copies != 3 {
		t.Errorf("stored: %s; %d were parked, want the refused ones and the conflict; %+v", got, r.count("onlyonce.parked"), r.stored())
	}
}

// K7: messages are parked, whatever the reason, until the inbox has forgotten their ids, and then
// redriven: each is stored, and a copy that the broker delivers after that is one.
func TestK7CopyOfWhatWasRedrivenLate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuses("22000", "onlyonce.event_log")
	r.broker.Publish(message("a", "bad"), message("b", "bad"))
	r.receives()
	r.until("both are parked", func() bool { return r.broker.Left() == 0 && r.count("onlyonce.parked") == 2 })
	r.exec(`drop trigger refuse on onlyonce.event_log`)
	r.exec(`delete from onlyonce.inbox`)
	if n := one[int](r, `select onlyonce.append_parked(array(select id from onlyonce.parked))`); n != 2 {
		t.Errorf("%d are redriven", n)
	}
	r.broker.Publish(message("a", "bad"), message("b", "bad"))
	r.until("the copies are acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := one[int](r, `select count(*) from onlyonce.event_log`); got != 2 || r.stored().Copies != 2 {
		t.Errorf("%d messages are stored, want 2; %+v", got, r.stored())
	}
}

// A trigger that raises an error in the plain way, whose SQLSTATE is P0001 (Q4).
func TestQ4RaiseException(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuses("P0001", "onlyonce.event_log")
	r.broker.Publish(message("a"), message("b", "bad"), message("c"))
	r.receives()
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := r.stored(); got != (queue.StoredEvent{Fresh: 2, Parked: 1}) {
		t.Errorf("%+v", got)
	}
}

// Messages that can be neither stored nor parked do not hold up later ones: neither if they fill a
// batch that the broker delivers first in each session, nor if the later one is too large for their
// transaction (Q4).
func TestQ4RefusedMessagesBeforeOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuses("22000", "onlyonce.event_log", "onlyonce.parked")
	r.broker.Publish(message("u", "bad"), message("v", "bad"))
	r.broker.Publish(message("w", "bad"), message("x", strings.Repeat("x", 8<<20)), message("y"))
	q, _ := r.receives(func(c *queue.Config) { c.Batch = 2 })
	r.until("all others are acknowledged", func() bool { return r.broker.Left() == 3 && q.Healthy() != nil })
	r.exec(`drop trigger refuse on onlyonce.event_log`)
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
}

// With Ordered a message that can be neither stored nor parked holds up the later ones, those of
// its transaction and of its batch too (Q5).
func TestQ5RefusedMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuses("22000", "onlyonce.event_log", "onlyonce.parked")
	r.broker.Publish(message("1"), message("2", "bad"), message("3"), message("4", strings.Repeat("x", 8<<20)))
	q, _ := r.receives(func(c *queue.Config) {
		c.Ordered = true
		c.Identify = func(d *queue.Delivery) error { d.Key = []byte("one"); return nil }
	})
	r.until("the receiver reports the refused message", func() bool {
		err := q.Healthy()
		return err != nil && strings.Contains(err.Error(), "neither stored nor parked")
	})
	if got := r.order(); got != "1" || r.broker.Left() != 3 {
		t.Errorf("stored: %s; %d are left", got, r.broker.Left())
	}
	r.exec(`drop trigger refuse on onlyonce.event_log`)
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
	if got := r.order(); got != "1 2 3 4" {
		t.Errorf("stored: %s", got)
	}
}

// A message that waits for an uncommitted copy in another process holds up no other of its batch.
// It comes again, as a copy if that was committed, and as new if it was not (Q4).
func TestQ4CopyThatWaitsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		r := newRig(t)
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		key := dedupe.Key{Scope: queue.Scope("q"), ID: "b", Fingerprint: dedupe.FingerprintOf([]byte("body of b"))}
		outcomes, err := dedupe.ClaimAll(t.Context(), tx, []dedupe.Key{key})
		if err != nil || outcomes[0] != dedupe.Fresh {
			t.Fatal(outcomes, err)
		}
		r.broker.Publish(message("a"), message("b"), message("c"))
		r.receives()
		r.until("the others are acknowledged", func() bool { return r.broker.Left() == 1 && r.stored().Fresh == 2 })
		want := queue.StoredEvent{Fresh: 2, Copies: 1}
		end := tx.Commit
		if !commits {
			end = tx.Rollback
			want = queue.StoredEvent{Fresh: 3}
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.until("it is acknowledged too", func() bool { return r.broker.Left() == 0 })
		if got := r.stored(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// The claim alone waits for a short time: a message that waits for another transaction of its
// partition is stored once that has ended, and the receiver is healthy meanwhile (Q4).
func TestQ4OnlyTheClaimIsImpatient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q, _ := r.receives(func(c *queue.Config) { c.Partitions = 1 })
	r.broker.Publish(message("a"))
	r.until("the first one is stored", func() bool { return r.broker.Left() == 0 })
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := eventsource.Append(t.Context(), tx, eventsource.Event{Topic: queue.Topic("q"), ID: "other"}); err != nil {
		t.Fatal(err)
	}
	r.broker.Publish(message("b"), message("c"))
	r.until("the others have waited for longer than a claim does", func() bool {
		return q.Healthy() != nil ||
			one[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
			and clock_timestamp() - query_start > interval '600 milliseconds')`)
	})
	if err := q.Healthy(); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.until("they are stored", func() bool { return r.broker.Left() == 0 })
}
