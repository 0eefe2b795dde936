package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
)

// O2: a relay may stop in the middle of a batch, and last_id is the id of one of its calls then.
// The next relay makes the others: each call is made once, in order.
func TestO2BatchIsLeftInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var calls []outbox.Call
	for i := range 10 {
		calls = append(calls, charge(fmt.Sprint(i)))
	}
	r.enqueueAll(calls...)
	if n := one[int](r, `select count(*) from onlyonce.batches`); n != 1 {
		t.Fatalf("%d batches", n)
	}
	g := r.gate()
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if string(a.Body) == `{"order":"4"}` {
			g.pass(a)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	first := r.start(cfg)
	g.wait()
	first.cancel()
	until(t, "it gives the lanes back", func() bool {
		return one[int](r, `select count(*) from onlyonce.leases where name like 'relay/%' and nonce is not null`) == 1
	})
	g.release()
	first.stop()
	if last := one[int64](r, `select l.last_id - b.id from onlyonce.lanes l join onlyonce.batches b using (sink, lane)`); last != 4 {
		t.Errorf("the cursor is at call %d", last)
	}
	r.start(cfg)
	r.states("delivered")
	if got := sink.bodies(); got != "0 1 2 3 4 5 6 7 8 9" {
		t.Errorf("sent %s", got)
	}
}

// O2: the erasure of a call that is settled moves its batch within the segment. A relay that has
// read its place before finds it again.
func TestO2BatchThatHasMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueAll(many(0, 1200)...)
	g := r.gate()
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if string(a.Body) == `{"order":"70"}` { // of the first chunk: the places of all batches are known
			g.pass(a)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.start(testConfig(sink))
	g.wait()
	r.exec(`
update onlyonce.batches
   set erased = array_fill(null::timestamptz, array[n::integer]) where id = (select max(id) from onlyonce.batches)`)
	g.release()
	r.states("delivered")
	if n := len(sink.calls()); n != 1200 {
		t.Errorf("%d calls", n)
	}
}

// sealer seals by turning bytes round.
type sealer struct{}

func (sealer) Seal(_ [16]byte, body []byte) ([]byte, error) { return turned(body), nil }
func (sealer) Open(_ [16]byte, body []byte) ([]byte, error) { return turned(body), nil }

func turned(b []byte) []byte {
	b = bytes.Clone(b)
	slices.Reverse(b)
	return b
}

// Whatever calls of a batch have in common or not, each is sent as it was enqueued, and looks the
// same in SQL.
func TestCallsOfABatchDiffer(t *testing.T) {
	t.Parallel()
	plain := charge("plain")
	other := outbox.Call{
		Sink:   "payments",
		Name:   "refund",
		Tenant: "acme",
		Scope:  "shop",
		ID:     "1",
		Method: http.MethodPut,
		Target: "/refunds/1",
		Header: http.Header{"X-A": {"1", "2"}},
		Trace:  "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Body:   []byte("other"),
	}
	ordered := charge("ordered")
	ordered.OrderingKey = "k"
	prefixed := charge("prefixed")
	prefixed.OrderingKey = "account-17:k"
	sealed := charge("sealed")
	sealed.Sealer = sealer{}
	empty := charge("empty")
	empty.Header = nil
	empty.Body = nil
	due := charge("due")
	due.NotBefore = time.Now().Add(-time.Hour)
	for name, calls := range map[string][]outbox.Call{
		"one":    {other},
		"same":   {plain, charge("plain too")},
		"all":    {plain, other, ordered, prefixed, sealed, empty, due},
		"prefix": {prefixed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueueAll(calls...)
			sink := newScripted(accept)
			cfg := testConfig(sink)
			cfg.Sealer = sealer{}
			r.start(cfg)
			r.states("delivered")
			var want, got, stored []string
			for _, c := range calls {
				if c.Method == "" {
					c.Method = http.MethodPost
				}
				key := outbox.Identity(origin.Origin{Tenant: c.Tenant, Scope: c.Scope}, false, c)
				want = append(
					want,
					fmt.Sprintf("%s %s %s %s %s %s %v %q %q",
						key, c.Tenant, c.Scope, c.Name, c.Method, c.Target, c.Header["X-A"], c.Trace, c.Body),
				)
				stored = append(
					stored,
					fmt.Sprintf("%s %s %s %s %s %s %q %t %t %t",
						key,
						c.Tenant,
						c.Scope,
						c.Name,
						c.Method,
						c.Target,
						c.Trace,
						c.OrderingKey != "",
						strings.Contains(c.OrderingKey, ":"),
						c.Sealer != nil),
				)
			}
			for _, d := range sink.calls() {
				got = append(
					got,
					fmt.Sprintf("%s %s %s %s %s %s %v %q %q",
						d.Key,
						d.Tenant,
						d.Scope,
						d.Name,
						d.Method,
						d.Target,
						d.Header["X-A"],
						d.Trace,
						d.Body),
				)
			}
			slices.Sort(want)
			slices.Sort(got)
			slices.Sort(stored)
			if !slices.Equal(got, want) {
				t.Errorf("sent\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			rows := one[[]string](
				r,
				`select array_agg(format(
  '%s %s %s %s %s %s "%s" %s %s %s',
  key,
  tenant,
  scope,
  name,
  method,
  target,
  coalesce(trace, ''),
  (order_key is not null)::text,
  (order_prefix is not null)::text,
  sealed::text
) order by key) from onlyonce.outbox_log`,
			)
			slices.Sort(rows)
			if !slices.Equal(rows, stored) {
				t.Errorf("stored\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(stored, "\n"))
			}
		})
	}
}

// The calls of a batch are parked one by one: what fails waits, and the others are delivered. A
// call that is not due is parked, too (O4).
func TestCallsOfABatchAreParkedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	calls := many(0, 6)
	for i := range calls {
		calls[i].OrderingKey = ""
	}
	calls[4].NotBefore = time.Now().Add(time.Hour)
	r.enqueueAll(calls...)
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		switch string(a.Body) {
		case `{"order":"1"}`, `{"order":"3"}`:
			return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.start(testConfig(sink))
	r.states("delivered", "waiting", "retrying")
	want := "0:delivered 1:waiting 2:delivered 3:waiting 4:retrying 5:delivered"
	if got := one[string](r, `select string_agg(convert_from(r.body, 'UTF8')::jsonb->>'order' || ':' || c.state, ' ' order by r.id)
		from onlyonce.outbox_log r join onlyonce.calls c on c.id = r.id`); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if n := one[int](
		r,
		`
select count(*)
  from onlyonce.parked p
  join onlyonce.outbox_log r on r.id = p.row_id and r.key = p.key and r.body = p.body and r.target = p.target`,
	); n != 3 {
		t.Errorf("%d parked calls are as the log has them", n)
	}
}

// A batch has at most 1,024 calls, and 256 kB of bodies if it has more than one. However well
// bodies compress, a relay reads them in portions.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	calls := many(0, 1500)
	large := func(id string, size int) outbox.Call {
		c := charge(id)
		c.Body = bytes.Repeat([]byte("a"), size)
		return c
	}
	for i := range 10 {
		calls = append(calls, large(fmt.Sprint("large", i), 100<<10))
	}
	calls = append(calls, large("largest", outbox.MaxBody))
	r.enqueueAll(calls...)
	if n := one[int](r, `select count(*) from onlyonce.batches where n > 1024 or n > 1 and bytes > 262144 or bytes <> (
		select sum(octet_length(l.body)) from onlyonce.outbox_log l where l.batch = batches.id)`); n != 0 {
		t.Errorf("%d batches that are too large, or whose size is wrong", n)
	}
	if n := one[int](r, `select count(*) from onlyonce.batches`); n > 8 {
		t.Errorf("%d batches", n)
	}
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered")
	if n := len(sink.calls()); n != len(calls) {
		t.Errorf("%d calls of %d", n, len(calls))
	}
}

// A batch that is written by hand is refused if it is none, with a constraint that says why.
func TestBatchWrittenByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := map[string]string{
		"slot":    "0",
		"lane":    "0",
		"n":       "2",
		"bytes":   "2",
		"keys":    "array[gen_random_uuid(), gen_random_uuid()]",
		"sink":    "'payments'",
		"tenant":  "''",
		"scope":   "''",
		"name":    "'n'",
		"method":  "'POST'",
		"targets": "'{/a,/b}'",
		"header":  "''",
		"bodies":  "array['a'::bytea, 'b']",
	}
	insert := func(change map[string]string) error {
		var columns, values []string
		for column, value := range good {
			if other, ok := change[column]; ok {
				value = other
			}
			columns = append(columns, column)
			values = append(values, value)
		}
		for column, value := range change {
			if _, ok := good[column]; !ok {
				columns = append(columns, column)
				values = append(values, value)
			}
		}
		_, err := r.pool.Exec(context.Background(), `insert into onlyonce.batches (`+strings.Join(columns, ", ")+`) values (`+strings.Join(
			values,
			", ",
		)+`)`)
		return err
	}
	for _, c := range []struct {
		constraint string
		change     map[string]string
		says       string // of the message
	}{
		{"batches_n", map[string]string{"id": "3 * 1024 + 1023"}, "n must be"},
		{"batches_n", map[string]string{"n": "0", "keys": "'{}'", "targets": "'{}'", "bodies": "'{}'", "bytes": "0"}, "n must be"},
		{"batches_one_of_two", map[string]string{"tenants": "'{a,b}'"}, "of tenant and its plural one must be null, and the other not"},
		{"batches_one_of_two", map[string]string{"name": "null"}, "of name and its plural one must be null, and the other not"},
		{"batches_one_of_two", map[string]string{"trace": "'x'", "traces": "'{x,y}'"}, "of trace and its plural one must be null"},
		{"batches_one_of_two", map[string]string{"body": "'xx'"}, "of body and its plural"},
		{"batches_one_of_two", map[string]string{"body": "'xx'", "bodies": "null"}, "body is for one call"},
		{"batches_lengths", map[string]string{"targets": "'{/a,/b,/c}'"}, "targets has 3 elements, and n is 2"},
		{"batches_lengths", map[string]string{"keys": "array[gen_random_uuid()]"}, "keys has 1 elements"},
		{"batches_lengths", map[string]string{"redo": "'{t}'"}, "redo has 1 elements"},
		{"batches_lengths", map[string]string{"erased": "'{null}'"}, "erased has 1 elements"},
		{"batches_no_nulls", map[string]string{"targets": "'{/a,null}'"}, "targets must hold no null"},
		{"batches_no_nulls", map[string]string{"keys": "array[gen_random_uuid(), null]"}, "keys must hold no null"},
		{"batches_no_nulls", map[string]string{"bodies": "array['aa'::bytea, null]"}, "bodies must hold no null"},
		{"batches_texts", map[string]string{"tenant": "repeat('x', 1025)"}, "1,024 bytes"},
		{"batches_texts", map[string]string{"scope": "repeat('x', 1025)"}, "1,024 bytes"},
		{"batches_texts", map[string]string{"tenant": "null", "tenants": "array['a', repeat('x', 1025)]"}, "1,024 bytes"},
		{"batches_texts", map[string]string{"scope": "null", "scopes": "array[repeat('x', 1025), 'a']"}, "1,024 bytes"},
		{"batches_bytes", map[string]string{"bytes": "1"}, "size of the bodies"},
		{
			"batches_bytes",
			map[string]string{"bodies": "array[repeat('a', 2000000)::bytea, repeat('b', 200000)::bytea]", "bytes": "2200000"},
			"2,097,152",
		},
	} {
		var refused *pgconn.PgError
		if err := insert(c.change); !errors.As(err, &refused) ||
			refused.ConstraintName != c.constraint ||
			!strings.Contains(refused.Message, c.says) {
			t.Errorf("%v: %v, want %s: %s", c.change, err, c.constraint, c.says)
		}
	}
	for _, change := range []map[string]string{nil, {"tenant": "null", "tenants": "array[repeat('x', 1024), repeat('y', 1024)]"}} {
		if err := insert(change); err != nil {
			t.Fatal(err)
		}
	}
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered")
	if n := len(sink.calls()); n != 4 {
		t.Errorf("%d calls", n)
	}
}

// O4: the locks of all ordering keys of a transaction's calls are taken, and not only that of a
// batch's first call.
func TestO4LocksOfAllKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := r.neighbours(2)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := outbox.EnqueueAll(t.Context(), tx, keyed(keys[0], 1), keyed(keys[1], 1)); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		err := pgx.BeginFunc(t.Context(), r.pool, func(other pgx.Tx) error {
			if _, err := other.Exec(t.Context(), `set local lock_timeout = '50ms'`); err != nil {
				return err
			}
			return outbox.Enqueue(t.Context(), other, keyed(key, 2))
		})
		if err == nil || !strings.Contains(err.Error(), "55P03") {
			t.Errorf("%s: %v, want that it waits for the lock", key, err)
		}
	}
}

// O1: keys are noted in portions, and a portion that is just full leaves no key out.
func TestO1KeysAreNotedInPortions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"a", "b", "c"} {
		r.enqueue(charge(id))
	}
	var left []string
	for range 4 {
		left = append(left, one[string](r, `select (not onlyonce.index_calls(1))::text`))
	}
	if got, want := strings.Join(left, " "), "true true true false"; got != want {
		t.Errorf("after each portion keys are left: %s, want %s", got, want)
	}
	if n := one[int](r, `select count(*) from onlyonce.call_keys`); n != 3 {
		t.Errorf("%d keys are noted, want 3", n)
	}
}

// O1: a call of a message that is handled again is found, whether its key was noted or not: written
// before or after the keys were, or by a transaction that was open meanwhile. The notes of another
// database cluster do not count.
func TestO1KeysAreNoted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	message := func(id string) origin.Origin { return origin.Origin{Scope: "stock", ID: id} }
	handled := func(id string) {
		t.Helper()
		if err := r.handled(message(id), charge("x")); err != nil {
			t.Fatal(err)
		}
	}
	noted := func(want int) {
		t.Helper()
		r.exec(`select onlyonce.index_calls(5000)`)
		if n := one[int](r, `select count(*) from onlyonce.call_keys`); n != want {
			t.Errorf("%d keys are noted, want %d", n, want)
		}
	}
	handled("before")
	open, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	o := message("open")
	tx := &handlerTx{Tx: open, origin: &o, marks: map[[16]byte]bool{}}
	c := charge("x")
	c.Scope = ""
	if err := outbox.Enqueue(t.Context(), tx, c); err != nil {
		t.Fatal(err)
	}
	if err := tx.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	handled("between") // has a higher transaction id than the one that is open
	noted(2)
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := func(ids ...string) {
		t.Helper()
		before := one[int](r, `select count(*) from onlyonce.outbox_log`)
		for _, id := range ids {
			redone := message(id)
			redone.Redo = true
			if err := r.handled(redone, charge("x")); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
		}
		if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != before {
			t.Errorf("%d calls were written again", n-before)
		}
	}
	again("before", "open", "between")
	noted(3)
	noted(3)
	handled("after")
	again("before", "open", "between", "after")
	// As after a restore into another cluster: what was noted is by other transaction ids.
	r.exec(`update onlyonce.call_index set system_id = system_id + 1`)
	r.exec(`truncate onlyonce.call_keys`)
	again("before", "open", "between", "after")
	noted(4)
	again("before", "open", "between", "after")
}

// K10: calls that are enqueued outside of consumers are claimed in the ring of their scope's class.
func TestK10CallHasAClass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into onlyonce.horizons values ('s', 'long', 'standard', '2000-01-01')`)
	r.enqueueAll(charge("1"), outbox.Call{Sink: "payments", Name: "n", Scope: "s", ID: "2", Target: "/x"})
	r.enqueueAll(outbox.Call{Sink: "payments", Name: "n", Scope: "s", ID: "3", Target: "/x"})
	if got := one[string](
		r,
		`
select string_agg(r.scope || ' ' || regexp_replace(i.segment, '_keys_\d$', ''), ', ' order by r.id)
  from onlyonce.outbox_log r join onlyonce.inbox i on i.key = r.key`,
	); got != "checkout standard, s standard_long, s standard_long" {
		t.Error(got)
	}
}

// Both sides compute a fingerprint in the same way: what a program in Go has enqueued, another one
// recognises by SQL, and a sealed body is in neither's (O1).
func TestFingerprintsAgree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	calls := []outbox.Call{
		charge("1"),
		{Sink: "payments", Name: "n", Scope: "s", ID: "2", Method: "PUT", Target: "/x?y=1", Body: []byte{0, 255}},
		charge("3"),
	}
	calls[2].Sealer = sealer{}
	r.enqueueAll(calls...)
	if n := one[int](r, `select count(*) from onlyonce.outbox_log r join onlyonce.inbox i on i.key = r.key
  and i.fingerprint = onlyonce.call_fingerprint(
    r.sink,
    r.tenant,
    r.scope,
    r.name,
    r.method,
    r.target,
    r.headers,
    r.body,
    r.sealed
  )`); n != 3 {
		t.Errorf("%d fingerprints of 3 agree", n)
	}
}
