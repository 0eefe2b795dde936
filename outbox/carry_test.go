package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
)

// old writes a call as a process of schema 1 did, before the migration.
func (r *rig) old(id, sink, rest string) {
	r.t.Helper()
	r.exec(fmt.Sprintf(`insert into onlyonce.outbox (key, tenant, scope, sink, name, method, target, header_names, header_values, body%s)
		values (md5($1)::uuid, 'acme', 'checkout', $2, 'charge', 'POST', '/charges', '{X-A,X-B}', '{1,2}', convert_to('{"order":"' || $1 || '"}', 'UTF8')%s)`,
		columns(rest), values(rest)), id, sink)
}

func columns(rest string) (all string) {
	for _, kv := range strings.FieldsFunc(rest, func(r rune) bool { return r == ';' }) {
		all += ", " + strings.SplitN(kv, "=", 2)[0]
	}
	return all
}

func values(rest string) (all string) {
	for _, kv := range strings.FieldsFunc(rest, func(r rune) bool { return r == ';' }) {
		all += ", " + strings.SplitN(kv, "=", 2)[1]
	}
	return all
}

// Calls that stand in the table of schema 2 are sent under their keys and with their bytes, with the attempts and the window that they have
// had; those that are settled, of another sink, or not due are left alone.
func TestCarryOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 600 { // more than one transaction
		r.old(fmt.Sprint(i), "payments", "")
	}
	r.old("tried", "payments", "attempts=3;first_attempt_at=clock_timestamp() - interval '1 hour'")
	r.old("too-late", "payments", "attempts=3;first_attempt_at=clock_timestamp() - interval '25 hours'")
	r.old("later", "payments", "next_attempt_at=clock_timestamp() + interval '1 hour'")
	r.old("delivered", "payments", "state='delivered';settled_at=clock_timestamp()")
	r.old("other", "mail", "")
	sink := newScripted(accept)
	r.start(testConfig(sink))
	until(t, "all are sent", func() bool { return len(sink.calls()) >= 601 })
	until(t, "the one that is too late is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'reconcile'`) == 1 })
	until(t, "all are settled", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'retrying'`) == 1 })
	if n := len(sink.calls()); n != 601 {
		t.Errorf("%d calls, want 601", n)
	}
	for _, d := range sink.calls() {
		id := strings.TrimSuffix(strings.TrimPrefix(string(d.Body), `{"order":"`), `"}`)
		if want := one[string](r, `select md5($1)::uuid::text`, id); d.Key != want || d.Tenant != "acme" || d.Target != "/charges" ||
			d.Header.Get("X-A") != "1" || d.Header.Get("X-B") != "2" || (d.Attempt == 4) != (id == "tried") {
			t.Errorf("sent %+v, want key %s", d, want)
		}
	}
	if got := one[string](r, `select string_agg(convert_from(body, 'UTF8') || state, ' ' order by id) from onlyonce.outbox where state <> 'parked'`); got !=
		`{"order":"delivered"}delivered {"order":"other"}pending` {
		t.Errorf("left: %s", got)
	}
}

// While a relay of schema 2 holds the sink's lease the rows are its own.
func TestCarryOverWaitsForTheRelayOfSchema2(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.old("1", "payments", "")
	r.exec(`insert into onlyonce.leases (name, epoch, nonce, until) values ('relay/payments', 7, gen_random_uuid(), clock_timestamp() + interval '1 hour')`)
	sink := newScripted(accept)
	r.enqueue(charge("new"))
	x := r.start(testConfig(sink))
	r.states("delivered")
	x.stop()
	if got := one[string](r, `select state from onlyonce.outbox`); got != "pending" || sink.bodies() != "new" {
		t.Errorf("the row is %s, sent %s", got, sink.bodies())
	}
	r.giveBack()
	r.start(testConfig(sink))
	until(t, "it is sent", func() bool { return sink.bodies() == "new 1" })
	until(t, "it is settled", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
	if e := one[int](r, `select epoch::int from onlyonce.leases where name = 'relay/payments'`); e != 8 {
		t.Errorf("epoch %d: rows were taken over without the lease", e)
	}
}

// Settled calls are deleted once their retention has passed, and with those of the log their rows there; nothing else is.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Delivery) outbox.Result { return outbox.Reject("no", nil) })
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
	r.exec(`delete from onlyonce.outbox_log where body <> '{"order":"old in the log"}'`) // its segment was emptied
	r.old("delivered", "payments", "state='delivered';settled_at=clock_timestamp() - interval '8 days'")
	r.old("young", "payments", "state='delivered';settled_at=clock_timestamp() - interval '6 days'")
	r.start(testConfig(newScripted(accept)))
	until(t, "old rows are gone", func() bool {
		return one[int](r, `select (select count(*) from onlyonce.parked) + (select count(*) from onlyonce.outbox)`) == 5
	})
	left := one[[]string](r, `select array_agg(convert_from(body, 'UTF8')) from onlyonce.parked`)
	slices.Sort(left)
	if got := strings.Join(left, " "); got != `{"order":"old in the log"} {"order":"other"} {"order":"waiting"} {"order":"young"}` {
		t.Errorf("left: %s", got)
	}
}
