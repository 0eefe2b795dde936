package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Settled calls are deleted once their retention has passed and the log has dropped their rows.
// Nothing else is deleted, although the clock is 5 days ahead.
func TestT11Retention(t *testing.T) {
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
	})
	mail := newScripted(no.send)
	mail.name = "mail"
	for _, id := range []string{"old", "old in the log", "young", "waiting"} {
		r.enqueue(charge(id))
	}
	other := charge("other")
	other.Sink = "mail"
	r.enqueue(other)
	x := r.start(testConfig(no, mail))
	r.states("waiting")
	x.stop()
	set := func(id, sql string) {
		r.exec(`update onlyonce.parked set `+sql+` where body = convert_to($1, 'UTF8')`, `{"order":"`+id+`"}`)
	}
	for _, id := range []string{"old", "old in the log", "other"} {
		set(id, `state = 'resolved', settled_at = clock_timestamp() - interval '8 days'`)
	}
	set("young", `state = 'discarded', settled_at = clock_timestamp() - interval '6 days'`)
	set("waiting", `parked_at = clock_timestamp() - interval '80 days'`)
	// The log's oldest segment was opened after some of them were parked, so that theirs was
	// emptied.
	for _, id := range []string{"old", "young"} {
		set(id, `parked_at = clock_timestamp() - interval '9 days'`)
	}
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() - interval '8 days' where ring = 'outbox' and slot = 0`)
	// T11: the clock is ahead, so that what is young looks old.
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	pgtest.ShiftClock(t, r.pool)("5 days")
	r.start(testConfig(newScripted(accept)))
	until(t, "old rows are gone", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 4 })
	left := one[[]string](r, `select array_agg(convert_from(body, 'UTF8')) from onlyonce.parked`)
	slices.Sort(left)
	if got := strings.Join(left, " "); got != `{"order":"old in the log"} {"order":"other"} {"order":"waiting"} {"order":"young"}` {
		t.Errorf("left: %s", got)
	}
}

// T13: a database that is slow deletes all of them too, in smaller portions.
func TestT13PurgeOfASlowDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 30 {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	cfg := testConfig(newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
	}))
	cfg.Brake.Off = true
	first := r.start(cfg)
	r.states("waiting")
	first.stop()
	r.exec(`
update onlyonce.parked
   set state = 'resolved',
       settled_at = clock_timestamp() - interval '8 days',
       parked_at = clock_timestamp() - interval '9 days'`)
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() - interval '8 days' where ring = 'outbox' and slot = 0`)
	pgtest.Bound(t, r.pool, "onlyonce.parked", 5)
	r.start(cfg)
	until(t, "all are deleted", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 0 })
}

// D8: a parked call is given up and erased. If it is enqueued again, it is no new one, and not
// sent.
func TestD8CopyOfAnErasedCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
	})
	r.enqueue(charge("a"))
	x := r.start(testConfig(no))
	r.states("waiting")
	x.stop()
	if _, err := ops.Discard(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 1}},
	); err != nil {
		t.Fatal(err)
	}
	if _, err := ops.EraseParked(t.Context(), r.pool, ops.By{Reason: "a test"}, ops.EraseParkedInput{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if n := one[int](
		r,
		`
select (select count(*)
          from onlyonce.parked
         where octet_length(body) > 0 or error <> '') + (select count(*)
                                                           from onlyonce.outbox_log where octet_length(body) > 0)`,
	); n != 0 {
		t.Errorf("%d places still hold the body or the error", n)
	}
	r.enqueue(charge("a"), charge("b"))
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered", "discarded")
	if got := one[string](r, `select string_agg(state, ' ' order by state) from onlyonce.calls`); got != "delivered discarded" {
		t.Errorf("calls: %s", got)
	}
}
