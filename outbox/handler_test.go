package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// O1: a call may wait for an operator for longer than its key is remembered. If it is enqueued
// again, it is not written again, also while its outcome is unknown. With other bytes it is still
// refused. (While it is to be sent, its key is remembered: K6.)
func TestO1CallBeyondTheHorizon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	plain := func(id string) outbox.Call {
		c := charge(id)
		c.Header = nil
		return c
	}
	r.enqueue(plain("order-17"))
	r.exec(`insert into onlyonce.parked (
  kind,
  state,
  reason,
  key,
  tenant,
  scope,
  sink,
  lane,
  row_id,
  call_name,
  method,
  target,
  body
)
   select 'call',
          'reconcile',
          'window',
          key,
          tenant,
          scope,
          sink,
          lane,
          id,
          name,
          method,
          target,
          body
     from onlyonce.outbox_log order by id limit 1`)
	r.exec(`truncate onlyonce.batches`)
	r.exec(`delete from onlyonce.inbox`)
	other := plain("order-17")
	other.Body = []byte("another sum")
	err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { return outbox.Enqueue(t.Context(), tx, other) })
	if !errors.Is(err, outbox.ErrConflict) {
		t.Errorf("with other bytes: %v", err)
	}
	r.enqueue(plain("order-17"))
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 0 {
		t.Error("a call of unknown outcome is sent as a new one when its key is forgotten")
	}
}

// A handler's calls belong to its message. They commit with its effects or not at all. A second
// handling of the message asks for the same calls. Two calls with one identity are an error of the
// handler.
func TestCallsOfAHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := memlog.NewLog("orders", 1)
	for _, v := range []string{"fine", "fails first", "twice", "fine too"} {
		log.Append(0, v, consumer.Header{Name: "message-id", Value: []byte(v)})
	}
	var failed atomic.Bool
	c, err := consumer.New(
		r.pool,
		&memlog.Source{Log: log, GroupID: "stock"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			call := outbox.Call{Sink: "payments", Name: "charge", Body: m.Value}
			if err := outbox.Enqueue(ctx, tx, call); err != nil {
				return err
			}
			switch v := string(m.Value); {
			case v == "fails first" && m.Attempt > 0 && failed.CompareAndSwap(false, true), v == "fails first" && m.Attempt == 0:
				return errors.New("fails")
			case v == "twice":
				return outbox.Enqueue(ctx, tx, call)
			}
			return nil
		}),
		consumer.Config{
			Scope:       "stock",
			Key:         consumer.HeaderKey("message-id"),
			MaxAttempts: 2,
			Backoff:     dedupe.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond},
			Linger:      time.Millisecond,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	sink := newScripted(accept)
	r.start(testConfig(sink))
	until(t, "all messages are done", func() bool {
		return one[int](r, `select coalesce(max(next_offset), 0) from onlyonce.positions`) == 4
	})
	cancel()
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Error(err)
	}
	until(t, "three calls are made", func() bool { return len(sink.calls()) == 3 })
	r.states("delivered")
	want := map[string]string{}
	for _, v := range []string{"fine", "fails first", "fine too"} {
		want[outbox.Identity(origin.Origin{Scope: "stock", ID: v}, true, outbox.Call{Sink: "payments", Name: "charge"})] = v
	}
	for _, d := range sink.calls() {
		if want[d.Key] != string(d.Body) || d.Scope != "stock" {
			t.Errorf("key %s with body %q", d.Key, d.Body)
		}
	}
	parked := one[[]string](r, `select array_agg(convert_from(body, 'UTF8') || ' ' || error) from onlyonce.parked where kind = 'message'`)
	if len(parked) != 1 || !strings.HasPrefix(parked[0], "twice ") || !strings.Contains(parked[0], "set Call.ID") {
		t.Errorf("parked %q", parked)
	}

	// The handler does not depend on the relay: if an operator makes it handle the same messages
	// again, the calls are the same.
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 0`)
	r.exec(`delete from onlyonce.inbox`)
	again, err := consumer.New(
		r.pool,
		&memlog.Source{Log: log, GroupID: "stock"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Body: slices.Clone(m.Value)})
		}),
		consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id"), Linger: time.Millisecond},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() { ended <- again.Run(ctx) }()
	until(t, "all messages are done again", func() bool {
		return one[int](r, `select coalesce(max(next_offset), 0)::int from onlyonce.positions where run = 1`) == 4
	})
	cancel()
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Error(err)
	}
	r.states("delivered")
	seen := map[string]bool{}
	for _, d := range sink.calls() {
		if seen[d.Key] {
			t.Errorf("key %s was called again", d.Key)
		}
		seen[d.Key] = true
	}
}

// handlerTx replaces the transaction of a consumer's handler.
type handlerTx struct {
	pgx.Tx
	origin *origin.Origin
	marks  map[[16]byte]bool
	late   []any
	write  func(items []any) (string, []any)
}

func (h *handlerTx) Origin() (origin.Origin, bool) {
	if h.origin == nil {
		return origin.Origin{}, false
	}
	return *h.origin, true
}

func (h *handlerTx) BeforeCommit(item any, write func(items []any) (string, []any)) error {
	h.late = append(h.late, item)
	h.write = write
	return nil
}

// end writes the kept items, as the engine does right before the seal.
func (h *handlerTx) end(ctx context.Context) error {
	sql, args := h.write(h.late)
	_, err := h.Exec(ctx, sql, args...)
	return err
}
func (h *handlerTx) FirstUse(key [16]byte) bool {
	first := !h.marks[key]
	h.marks[key] = true
	return first
}

// O1: a call of a handler has its message's tenant, scope and identity.
func TestEnqueueInAHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inner, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Rollback(context.Background())
	origin := origin.Origin{Tenant: "acme", Scope: "stock", ID: "msg-1"}
	tx := &handlerTx{Tx: inner, origin: &origin, marks: map[[16]byte]bool{}}

	err = outbox.Enqueue(t.Context(), tx, outbox.Call{Sink: "payments", Name: "charge", Scope: "mine", Tenant: "mine"})
	if !errors.Is(err, outbox.ErrCall) ||
		!strings.Contains(err.Error(), "Scope: must be empty") ||
		!strings.Contains(err.Error(), "Tenant: must be empty") {
		t.Errorf("scope and tenant besides a message: %v", err)
	}
	body := []byte("one")
	call := outbox.Call{Sink: "payments", Name: "charge", Body: body}
	if err := outbox.Enqueue(t.Context(), tx, call); err != nil {
		t.Fatal(err)
	}
	copy(body, "two") // the caller may reuse its buffer
	if err := outbox.Enqueue(t.Context(), tx, call); !errors.Is(err, outbox.ErrCall) {
		t.Errorf("the same again: %v, want ErrCall", err)
	}
	call.ID = "line-2"
	if err := outbox.Enqueue(t.Context(), tx, call); err != nil {
		t.Errorf("with an ID: %v", err)
	}
	if len(tx.late) != 2 {
		t.Errorf("%d calls are kept for the end, want 2", len(tx.late))
	}
	if err := tx.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Between messages a handler's transaction is like any other: the call needs its own identity.
	tx.origin = nil
	if err := outbox.Enqueue(t.Context(), tx, outbox.Call{Sink: "payments", Name: "charge"}); !errors.Is(err, outbox.ErrCall) {
		t.Errorf("no message and no ID: %v", err)
	}
	if err := inner.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := outbox.Identity(origin, true, outbox.Call{Sink: "payments", Name: "charge"})
	if got := one[string](
		r,
		`select tenant || ' ' || scope || ' ' || convert_from(body, 'UTF8') from onlyonce.outbox_log where key = $1::text::uuid`,
		want,
	); got != "acme stock one" {
		t.Errorf("row %q", got)
	}
}

// O1: a call was rejected and redriven under a new key, once or twice, and its segment of the log
// was emptied. It is not written again under its first key, by which the remote does not know it,
// whether it is still to be sent or is settled. That holds until the remote has forgotten the key.
func TestO1RedrivenUnderANewKey(t *testing.T) {
	t.Parallel()
	message := origin.Origin{Scope: "stock", ID: "m"}
	again := origin.Origin{Scope: "stock", ID: "m", Redo: true}
	call := func(body string) outbox.Call {
		return outbox.Call{
			Sink:   "payments",
			Name:   "charge",
			Scope:  "stock",
			ID:     "1",
			Method: "POST",
			Target: "/charges",
			Body:   []byte(body),
		}
	}
	for name, enqueue := range map[string]func(r *rig, from origin.Origin, body string) error{
		"by a message": func(r *rig, from origin.Origin, body string) error { return r.handled(from, call(body)) },
		"by a transaction of its own": func(r *rig, _ origin.Origin, body string) error {
			return pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { return outbox.Enqueue(t.Context(), tx, call(body)) })
		},
		"by SQL": func(r *rig, _ origin.Origin, body string) error {
			_, err := r.pool.Exec(
				t.Context(),
				`
select onlyonce.enqueue(
  '51825619-b4aa-834b-8c96-7435425d5a3b',
  '',
  'stock',
  'payments',
  'charge',
  'POST',
  '/charges',
  '{}',
  '{}',
  $1
)`,
				[]byte(body),
			)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if err := enqueue(r, message, "sum"); err != nil {
				t.Fatal(err)
			}
			derived := one[string](r, `select keys[1]::text from onlyonce.batches`)
			r.exec(`with gone as (delete from onlyonce.batches returning *)
    insert into onlyonce.parked (
      kind,
      state,
      reason,
      scope,
      key,
      sink,
      lane,
      row_id,
      call_name,
      method,
      target,
      body
    )
    select 'call',
           'waiting',
           'rejected',
           scope,
           keys[1],
           sink,
           lane,
           id,
           name,
           method,
           target,
           body
      from gone`)
			known := func(when string) {
				t.Helper()
				r.exec(`delete from onlyonce.inbox`)
				if err := enqueue(r, again, "sum"); err != nil {
					t.Errorf("%s: %v", when, err)
				}
				if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 0 {
					t.Errorf("%s: it is written again", when)
				}
				r.exec(`delete from onlyonce.inbox`)
				if err := enqueue(r, again, "another sum"); !errors.Is(err, outbox.ErrConflict) &&
					!strings.Contains(fmt.Sprint(err), "OO004") {
					t.Errorf("%s, with other bytes: %v, want a conflict", when, err)
				}
				stored, err := ops.ExplainKey(t.Context(), r.pool, ops.ExplainQuestion{Key: derived})
				good := err == nil &&
					len(stored.Call) == 1 &&
					len(stored.Parked) == 1 &&
					len(stored.Copies) == 2 &&
					stored.Copies[1].Duplicate
				if !good {
					t.Errorf("%s, explained: %+v, %v", when, stored, err)
				}
			}
			redrive := func() {
				t.Helper()
				if _, err := ops.Redrive(
					t.Context(),
					r.pool,
					ops.By{Reason: "a test"},
					ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: one[int64](r, `select id from onlyonce.parked`)}, NewKey: true},
				); err != nil {
					t.Fatal(err)
				}
			}
			redrive()
			known("redriven")
			r.exec(`update onlyonce.parked set state = 'waiting', next_attempt_at = null`)
			redrive()
			known("redriven twice")
			if got := one[string](r, `select first_key::text from onlyonce.parked where key <> first_key`); got != derived {
				t.Errorf("the first key is %s, want %s", got, derived)
			}
			r.exec(`
update onlyonce.parked
   set state = 'resolved',
       next_attempt_at = null,
       parked_at = '2001-01-01Z',
       settled_at = clock_timestamp() - interval '8 days'`)
			known("delivered")
			r.exec(outbox.Statements["purge"], "payments", "7 days", 10, "9 days")
			r.exec(outbox.Statements["purge"], "payments", "7 days", 10, nil)
			known("delivered, and its retention has passed")
			r.exec(outbox.Statements["purge"], "payments", "7 days", 10, "1 day")
			if n := one[int](r, `select count(*) from onlyonce.parked`); n != 0 {
				t.Error("it is kept for longer than the remote remembers a key")
			}
		})
	}
}

// A message that is handled again asks for calls that may exist already, in the log, or parked
// after their segment was emptied. With the same bytes nothing is written, and other bytes are a
// conflict.
func TestO1HandledAgain(t *testing.T) {
	t.Parallel()
	origin := origin.Origin{Scope: "stock", ID: "m"}
	again := origin
	again.Redo = true
	for name, sql := range map[string]string{
		"in the log": `select`,
		"parked": `with gone as (delete from onlyonce.batches returning *)
   insert into onlyonce.parked (
     kind,
     state,
     reason,
     scope,
     key,
     sink,
     lane,
     row_id,
     call_name,
     method,
     target,
     header_names,
     header_values,
     body
   )
   select 'call',
          'waiting',
          'rejected',
          scope,
          keys[1],
          sink,
          lane,
          id,
          name,
          method,
          target,
          '{Content-Type}',
          '{application/json}',
          body
     from gone`,
		"in the index of keys": `select onlyonce.index_calls(5000)`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if err := r.handled(origin, charge("1")); err != nil {
				t.Fatal(err)
			}
			r.exec(sql)
			before := one[int](r, `select count(*) from onlyonce.outbox_log`)
			if err := r.handled(again, charge("1"), charge("new")); err != nil {
				t.Errorf("the same bytes: %v", err)
			}
			if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != before+1 {
				t.Errorf("%d rows were written, want the new one", n-before)
			}
			for what, change := range map[string]func(*outbox.Call){
				"body": func(c *outbox.Call) { c.Body = []byte("other") }, "target": func(c *outbox.Call) { c.Target = "/refunds" },
				"method": func(c *outbox.Call) { c.Method = "PUT" }, "header": func(c *outbox.Call) { c.Header = nil },
			} {
				c := charge("1")
				change(&c)
				if err := r.handled(again, c); err == nil || !strings.Contains(err.Error(), "OO004") {
					t.Errorf("another %s: %v, want OO004", what, err)
				}
			}
		})
	}
}
