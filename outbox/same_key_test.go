package outbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
)

// enqueueUnder commits calls under the key of another call, as if its claim had been forgotten
// while both were in the log.
func (r *rig) enqueueUnder(key string, calls ...outbox.Call) {
	r.t.Helper()
	err := pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
		if err := outbox.EnqueueAll(r.t.Context(), tx, calls...); err != nil {
			return err
		}
		_, err := tx.Exec(
			r.t.Context(),
			`update onlyonce.batches set keys = array_fill($1::uuid, array[n::integer]) where xid = pg_current_xact_id()`,
			key,
		)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// rejectsFirst rejects the first call, and answers 503 to the others.
func rejectsFirst() func(context.Context, *outbox.Attempt) outbox.Result {
	var calls atomic.Int32
	return func(context.Context, *outbox.Attempt) outbox.Result {
		if calls.Add(1) == 1 {
			return outbox.Failure("the card has expired", outbox.Permanent(errors.New("status 402")))
		}
		return outbox.Failure("status 503", nil)
	}
}

// O1: parking drops no call: one whose key another parked call has is kept, and waits for an
// operator, in whichever state it would have been parked.
func TestO1ParkingKeepsCallsOfOneKey(t *testing.T) {
	t.Parallel()
	ordered := func(id string) outbox.Call {
		c := charge(id)
		c.OrderingKey = "account-17"
		return c
	}
	later := func(id string) outbox.Call {
		c := charge(id)
		c.NotBefore = time.Now().Add(time.Hour)
		return c
	}
	for name, call := range map[string]func(id string) outbox.Call{"tried again": charge, "blocked": ordered, "scheduled": later} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.enqueue(call("order-17"))
			key := one[string](r, `select key::text from onlyonce.outbox_log`)
			r.start(testConfig(newScripted(rejectsFirst())))
			until(t, "the first call is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
			r.enqueueUnder(key, call("order-18"))
			until(t, "each call of the log is parked", func() bool {
				return one[int](r, `select count(*) from onlyonce.calls where state in ('pending', 'delivered')`) == 0
			})
			if got := one[string](
				r,
				`
select state || ' ' || reason || ', key of its own ' || (key <> $1::uuid)
  from onlyonce.parked where body like '%order-18%'`,
				key,
			); got != "waiting conflict, key of its own false" {
				t.Errorf("the second call is parked as %s", got)
			}
		})
	}
	t.Run("together", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.enqueueUnder("36c5f7ba-8b07-8d0e-a3b4-0f1e2d3c4b5a", ordered("order-17"), ordered("order-18"), ordered("order-19"))
		r.start(testConfig(newScripted(rejectsFirst())))
		until(t, "each call of the log is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 3 })
		if got := one[string](r, `select string_agg(reason, ' ' order by id) from onlyonce.parked`); got != "rejected conflict conflict" {
			t.Errorf("parked as %s", got)
		}
	})
}

// O1: the cursor moves past a call only if it was delivered or is parked. One that cannot be
// parked, because its row is gone, ends the relay, and does not count as delivered.
func TestO1CallThatIsNotParkedEndsTheRelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gate := r.gate()
	relay := r.relay(testConfig(newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		gate.pass(a)
		return outbox.Failure("status 503", nil)
	})))
	r.enqueue(charge("order-17"))
	id := one[int64](r, `select id from onlyonce.outbox_log`)
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { ended <- relay.Run(ctx) }()
	gate.wait()
	r.exec(`delete from onlyonce.batches`)
	gate.release()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "rows of the log that were not sent are gone") {
		t.Errorf("%v, want the row that is gone", err)
	}
	if n := one[int](r, `select count(*) from onlyonce.lanes where last_id >= $1`, id); n != 0 {
		t.Error("the cursor has passed it")
	}
}

// O1: a message's id may be forgotten while a call of it is parked, and come again. Its calls are
// those of the first message: one of the same bytes exists, and one of others is a conflict.
func TestO1ParkedCallOutlivesTheClaimOfItsMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	enqueue := func(body string, sealed bool) error {
		return pgx.BeginFunc(t.Context(), r.pool, func(inner pgx.Tx) error {
			from := origin.Origin{Tenant: "acme", Scope: "stock", ID: "msg-1"}
			tx := &handlerTx{Tx: inner, origin: &from, marks: map[[16]byte]bool{}}
			call := outbox.Call{Sink: "payments", Name: "charge", Body: []byte(body)}
			if sealed {
				call.Sealer = plainSealer{}
			}
			if err := outbox.Enqueue(t.Context(), tx, call); err != nil {
				return err
			}
			return tx.end(t.Context())
		})
	}
	if err := enqueue("10 EUR", false); err != nil {
		t.Fatal(err)
	}
	sink := newScripted(rejectsFirst())
	r.start(testConfig(sink))
	for _, state := range []string{"as it was", "under a new key"} {
		until(t, "the call is rejected", func() bool {
			return one[int](r, `select count(*) from onlyonce.parked where reason = 'rejected'`) == 1
		})
		if err := enqueue("10 EUR", false); err != nil {
			t.Errorf("%s, the same bytes: %v", state, err)
		}
		if err := enqueue("20 EUR", false); err == nil || !strings.Contains(err.Error(), "OO004") {
			t.Errorf("%s, other bytes: %v, want OO004", state, err)
		}
		if err := enqueue("10 EUR", true); err == nil || !strings.Contains(err.Error(), "OO004") {
			t.Errorf("%s, bytes that cannot be compared: %v, want OO004", state, err)
		}
		if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 1 {
			t.Errorf("%s: the log has %d calls, want 1", state, n)
		}
		r.exec(`update onlyonce.parked set first_key = coalesce(first_key, key), key = gen_random_uuid()`)
	}
	// Once that call is settled, the message is a new one.
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp()`)
	if err := enqueue("20 EUR", false); err != nil {
		t.Errorf("after the first call was settled: %v", err)
	}
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 2 {
		t.Errorf("the log has %d calls, want 2", n)
	}
}

// plainSealer seals nothing, and has the call count as sealed.
type plainSealer struct{}

func (plainSealer) Seal(_ [16]byte, body []byte) ([]byte, error)   { return body, nil }
func (plainSealer) Open(_ [16]byte, sealed []byte) ([]byte, error) { return sealed, nil }

// O1: a key that a program has chosen stands for one call: under it, a call of another sink,
// tenant, scope or name is a conflict, and not a copy. Also if the first one is parked, and its
// claim was forgotten.
func TestO1KeyOfOnesOwnStandsForOneCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const key = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
	single := func(sink, tenant, scope, name string) error {
		_, err := r.pool.Exec(t.Context(), `
select onlyonce.enqueue(
  $1,
  $2,
  $3,
  $4,
  $5,
  'POST',
  '/orders',
  '{}',
  '{}',
  '{}'::bytea
)`,
			key, tenant, scope, sink, name)
		return err
	}
	several := func(sink, tenant, scope, name string) error {
		_, err := r.pool.Exec(
			t.Context(),
			`select onlyonce.enqueue_calls(
  '{2}',
  array[$1]::uuid[],
  array[null]::uuid[],
  array[$4],
  array[$2],
  array[$3],
  array[$5],
  '{POST}',
  '{/orders}',
  '{""}',
  array[null]::text[],
  array['{}'::bytea],
  array[null]::timestamptz[],
  array[null]::timestamptz[],
  '{false}',
  '{false}',
  '{false}'
)`,
			key,
			tenant,
			scope,
			sink,
			name,
		)
		return err
	}
	for _, state := range []string{"in the log", "parked"} {
		for how, write := range map[string]func(sink, tenant, scope, name string) error{"enqueue": single, "enqueue_calls": several} {
			enqueue := func(sink, tenant, scope, name string) error {
				if state == "parked" { // each call that is compared with the parked one claims its key anew
					r.exec(`delete from onlyonce.inbox`)
				}
				return write(sink, tenant, scope, name)
			}
			if err := enqueue("payments", "acme", "shop", "charge"); err != nil {
				t.Errorf("%s, %s: the call: %v", state, how, err)
			}
			for _, other := range [][4]string{
				{"invoices", "acme", "shop", "charge"},
				{"payments", "beta", "shop", "charge"},
				{"payments", "acme", "mail", "charge"},
				{"payments", "acme", "shop", "refund"},
			} {
				if err := enqueue(other[0], other[1], other[2], other[3]); err == nil || !strings.Contains(err.Error(), "OO004") {
					t.Errorf("%s, %s: %v: %v, want OO004", state, how, other, err)
				}
			}
		}
		if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 1 {
			t.Errorf("%s: the log has %d calls, want 1", state, n)
		}
		if state == "parked" {
			break
		}
		r.start(testConfig(newScripted(rejectsFirst())))
		until(t, "the call is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
	}
}
