package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// unnested is the simplest handler of batches: one statement for all messages.
func unnested(_ context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	var values []string
	var parts []int32
	var offsets []int64
	for _, m := range msgs {
		values = append(values, string(m.Value))
		parts = append(parts, m.Partition)
		offsets = append(offsets, m.Offset)
	}
	tx.Queue(`insert into effects (value, part, off) select * from unnest($1::text[], $2::int[], $3::bigint[])`, values, parts, offsets)
	return nil
}

func copied(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"value", "part", "off"},
		pgx.CopyFromSlice(len(msgs), func(i int) ([]any, error) {
			return []any{string(msgs[i].Value), msgs[i].Partition, msgs[i].Offset}, nil
		}))
	return err
}

// A handler of batches gets messages in order, each of them new, and its writes take effect once.
func TestBatchHandlerGetsNewMessagesInOrder(t *testing.T) {
	for name, h := range map[string]consumer.BatchHandlerFunc{"unnest": unnested, "copy": copied} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			var values []string
			for p := range int32(2) {
				for i := range 100 {
					v := fmt.Sprintf("p%d-%d", p, i)
					values = append(values, v)
					for range 1 + i%2 { // copies inside a batch
						r.log.Append(p, v, id(v))
					}
					if i%10 == 0 { // and beyond it, in the other partition too
						r.log.Append(1-p, v, id(v))
					}
				}
			}
			var wrong atomic.Value
			stop := r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				seen := map[string]bool{}
				for i, m := range msgs {
					if i > 0 && msgs[i-1].Offset >= m.Offset || m.Partition != msgs[0].Partition {
						wrong.Store(fmt.Sprintf("%d/%d is behind %d/%d", m.Partition, m.Offset, msgs[0].Partition, msgs[0].Offset))
					}
					if seen[m.ID()] {
						wrong.Store("a duplicate reached the handler: " + m.ID())
					}
					seen[m.ID()] = true
				}
				return h(ctx, tx, msgs)
			}, testConfig())
			r.reaches(0, 160)
			r.reaches(1, 160)
			stop()
			r.once(values...)
			if w := wrong.Load(); w != nil {
				t.Error(w)
			}
		})
	}
}

// D1: the messages that the handler names are parked, and no others; so are failing messages that
// it does not name.
func TestD1BatchHandlerFails(t *testing.T) {
	bad := []int64{7, 8, 19, 25}
	named := func(wrap func(error) error) consumer.BatchHandlerFunc {
		return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
			var errs []error
			for _, m := range msgs {
				if slices.Contains(bad, m.Offset) {
					errs = append(errs, consumer.FailMessage(m, wrap(errBoom)))
				}
			}
			slices.Reverse(errs) // whichever it names first
			if err := unnested(ctx, tx, msgs); err != nil || len(errs) == 0 {
				return err
			}
			return fmt.Errorf("some: %w", errors.Join(errs...))
		}
	}
	among := func(fail func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error) consumer.BatchHandlerFunc {
		return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
			if err := unnested(ctx, tx, msgs); err != nil {
				return err
			}
			for _, m := range msgs {
				if slices.Contains(bad, m.Offset) {
					return fail(ctx, tx, m)
				}
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		h      consumer.BatchHandlerFunc
		reason string
	}{
		"named":     {named(func(err error) error { return err }), "exhausted"},
		"permanent": {named(consumer.Permanent), "permanent"},
		"not named": {among(func(context.Context, consumer.Tx, *consumer.Message) error { return errBoom }), "exhausted"},
		"panic":     {among(func(context.Context, consumer.Tx, *consumer.Message) error { panic("kaboom") }), "exhausted"},
		"queued": {among(func(_ context.Context, tx consumer.Tx, _ *consumer.Message) error {
			tx.Queue(`insert into effects (value, part) values ('x', 1 / length($1::text))`, "")
			return nil
		}), "exhausted"},
		"swallowed": {among(func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, _ = tx.Exec(ctx, `selec 1`)
			return nil
		}), "exhausted"},
		"somebody else": {among(func(context.Context, consumer.Tx, *consumer.Message) error {
			return consumer.FailMessage(&consumer.Message{Topic: "orders", Offset: 1000}, errBoom)
		}), "exhausted"},
		"deleted from": {func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
			if err := unnested(ctx, tx, msgs); err != nil {
				return err
			}
			msgs = slices.DeleteFunc(msgs, func(m *consumer.Message) bool { return !slices.Contains(bad, m.Offset) })
			if len(msgs) == 0 {
				return nil
			}
			return consumer.FailMessage(msgs[0], errBoom)
		}, "exhausted"},
		"commit": {among(func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, _ = tx.Exec(ctx, `commit`)
			return nil
		}), "permanent"},
		"its connection": {among(func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, err := tx.Exec(ctx, cutSQL)
			return err
		}), "exhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.cutting()
			values := r.numbered(0, 30)
			var judged atomic.Int32
			stop := r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				alone := len(msgs) == 1 && msgs[0].Attempt > 0
				for _, m := range msgs {
					if m.Attempt > 0 && !alone {
						t.Errorf("attempt %d at offset %d, which does not stand alone", m.Attempt, m.Offset)
					}
				}
				if alone && slices.Contains(bad, msgs[0].Offset) {
					judged.Add(1)
				}
				return c.h(ctx, tx, msgs)
			}, testConfig())
			r.reaches(0, 30)
			stop()
			var want []string
			parked := map[string]string{}
			for i, v := range values {
				if slices.Contains(bad, int64(i)) {
					parked[fmt.Sprint(i)] = c.reason
				} else {
					want = append(want, v)
				}
			}
			r.once(want...)
			if got := fmt.Sprint(r.reasons()); got != fmt.Sprint(parked) {
				t.Errorf("parked: %s", got)
			}
			attempts := int32(len(bad))
			if c.reason == "exhausted" {
				attempts *= 3
			}
			if n := judged.Load(); n != attempts {
				t.Errorf("%d attempts alone, want %d", n, attempts)
			}
			if n := r.count(`select count(*) from onlyonce.parked where attempts = $1`, attempts/int32(len(bad))); n != len(bad) {
				t.Errorf("%d of them are parked with their attempts", n)
			}
		})
	}
}

// O1: a call that is enqueued for a message of a batch has the key that the message handler gives
// it, however the batch is cut.
func TestO1KeysOfCallsInABatch(t *testing.T) {
	t.Parallel()
	call := func(m *consumer.Message) outbox.Call {
		return outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value}
	}
	keys := func(fail bool, cfg consumer.Config, batch bool) string {
		r := newRig(t, 1)
		r.numbered(0, 20)
		var stop func()
		if batch {
			stop = r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				for _, m := range msgs {
					if err := outbox.Enqueue(ctx, consumer.TxFor(tx, m), call(m)); err != nil {
						return err
					}
					// The same call twice is an error at once, also through another For.
					if err := outbox.Enqueue(ctx, consumer.TxFor(tx, m), call(m)); !errors.Is(err, outbox.ErrCall) {
						t.Errorf("twice from one message: %v", err)
					}
				}
				if err := outbox.Enqueue(ctx, tx, call(msgs[0])); err == nil {
					t.Error("a call of nobody's message was enqueued")
				}
				if fail && len(msgs) > 3 {
					return errBoom
				}
				return unnested(ctx, tx, msgs)
			}, cfg)
		} else {
			stop = r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				return errors.Join(outbox.Enqueue(ctx, tx, call(m)), queued(ctx, tx, m))
			}, cfg)
		}
		r.reaches(0, 20)
		stop()
		var all string
		if err := r.pool.QueryRow(
			t.Context(),
			`select string_agg(key::text || convert_from(body, 'UTF8'), ' ' order by id) from onlyonce.outbox_log`,
		).Scan(&all); err != nil {
			t.Fatal(err)
		}
		if n := r.count(`select count(*) from onlyonce.outbox_log`); n != 20 || len(r.reasons()) > 0 {
			t.Errorf("%d calls, want 20; parked: %v", n, r.reasons())
		}
		return all
	}
	for _, positions := range []bool{false, true} {
		cfg := testConfig()
		if positions {
			cfg.Key = nil
			cfg.PositionsOnly = true
		}
		want := keys(false, cfg, false)
		for name, got := range map[string]string{
			"in batches":           keys(false, cfg, true),
			"in batches cut apart": keys(true, cfg, true),
			"in other batches":     keys(false, func() consumer.Config { c := cfg; c.BatchSize = 3; return c }(), true),
		} {
			if got != want {
				t.Errorf("keys %s:\n%s\nand by messages:\n%s", name, got, want)
			}
		}
	}
}

// If a savepoint is undone, a call that was enqueued in it was not enqueued: the handler may
// enqueue it again.
func TestEnqueueAgainBehindAnUndoneSavepoint(t *testing.T) {
	t.Parallel()
	twice := func(ctx context.Context, tx, one consumer.Tx, m *consumer.Message) error {
		call := outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value}
		err := tx.Savepoint(ctx, func() error {
			if err := outbox.Enqueue(ctx, one, call); err != nil {
				return err
			}
			return errBoom
		})
		if !errors.Is(err, errBoom) {
			return fmt.Errorf("savepoint: %w", err)
		}
		call.Body = append([]byte("then "), m.Value...)
		return outbox.Enqueue(ctx, one, call)
	}
	check := func(r *rig) {
		t.Helper()
		if n := r.count(`select count(*) from onlyonce.outbox_log where convert_from(body, 'UTF8') like 'then %'`); n != 5 ||
			r.count(`select count(*) from onlyonce.outbox_log`) != 5 ||
			len(r.reasons()) > 0 {
			t.Errorf("%d calls, want 5; parked: %v", n, r.reasons())
		}
	}
	r := newRig(t, 1)
	r.numbered(0, 5)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error { return twice(ctx, tx, tx, m) }, testConfig())
	r.reaches(0, 5)
	stop()
	check(r)
	r = newRig(t, 1)
	r.numbered(0, 5)
	stop = r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
		for i, m := range msgs {
			one := consumer.TxFor(tx, m)
			over := tx
			if i%2 == 0 {
				over = one // savepoints through either
			}
			if err := twice(ctx, over, one, m); err != nil {
				return err
			}
		}
		return nil
	}, testConfig())
	r.reaches(0, 5)
	stop()
	check(r)
}
