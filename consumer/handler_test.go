package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
)

// unlike runs bad for the message at offset 7 of 30, and the plain effect for the others. It
// expects only that message to be parked, for the reason.
func unlike(t *testing.T, reason string, bad consumer.HandlerFunc) *rig {
	t.Helper()
	r := newRig(t, 1)
	values := r.numbered(0, 30)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 7 {
			return bad(ctx, tx, m)
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 30)
	stop()
	r.once(append(values[:7:7], values[8:]...)...)
	got := fmt.Sprint(r.reasons())
	want := "map[7:" + reason + "]"
	if got != want {
		t.Errorf("parked: %s, want %s", got, want)
	}
	n := r.count(`
select count(*)
  from onlyonce.parked
 where body = 'p0-7'::bytea and attempts > 0 and "offset" = 7 and header_values = array['p0-7'::bytea]`)
	if n != 1 {
		t.Errorf("the message is not whole in onlyonce.parked")
	}
	return r
}

// D1, D3: the one that fails is parked in the transaction that moves the cursor, after its
// attempts, and its neighbours apply (D2).
func TestD3ExhaustedMessageIsParkedAlone(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	unlike(t, "exhausted", func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		_ = effect(ctx, tx, m)
		if m.Attempt > 0 {
			calls.Add(1)
		}
		return errBoom
	})
	if n := calls.Load(); n != 3 {
		t.Errorf("%d attempts with the message alone, want MaxAttempts, 3", n)
	}
}

// D3: a Permanent error is tried once with the message alone, and then parked.
func TestPermanentIsParkedAtOnce(t *testing.T) {
	t.Parallel()
	var alone atomic.Int32
	unlike(t, "permanent", func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
		if m.Attempt > 0 {
			alone.Add(1)
		}
		return consumer.Permanent(errBoom)
	})
	if n := alone.Load(); n != 1 {
		t.Errorf("%d attempts with the message alone, want 1", n)
	}
}

// D1: a queued statement's error surfaces at a neighbour; the neighbour must not be judged for it.
func TestD1QueuedErrorIsBlamedOnItsOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 30)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 7 {
			tx.Queue(`insert into effects (value, part) values ('x', 1 / length($1::text))`, "")
			return nil
		}
		var n int
		// Flushes the neighbour's statement.
		if err := tx.QueryRow(ctx, `select count(*) from effects`).Scan(&n); err != nil {
			return consumer.Permanent(err)
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 30)
	stop()
	r.once(append(values[:7:7], values[8:]...)...)
	if got := fmt.Sprint(r.reasons()); got != "map[7:exhausted]" {
		t.Errorf("parked: %s", got)
	}
}

// T6: whatever a handler does to end the transaction, its batch stays whole.
func TestT6HandlerCannotEndTheTransaction(t *testing.T) {
	for _, sql := range []string{
		"commit", "rollback", " /* so */ COMMIT", "end", "abort", "begin",
		"prepare transaction 'x'", "savepoint s", "-- c\n;commit",
	} {
		for _, how := range []string{"exec", "query", "queue", "batch"} {
			t.Run(how+" "+strings.TrimSpace(sql), func(t *testing.T) {
				t.Parallel()
				unlike(t, "permanent", func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					_ = effect(ctx, tx, m)
					switch how {
					case "exec":
						_, _ = tx.Exec(ctx, sql)
					case "query":
						rows, err := tx.Query(ctx, sql)
						if err == nil {
							rows.Close()
						}
					case "queue":
						tx.Queue(sql)
					case "batch":
						b := &pgx.Batch{}
						b.Queue(sql)
						_ = tx.SendBatch(ctx, b).Close()
					}
					_ = effect(ctx, tx, m)
					return nil
				})
			})
		}
	}
}

// T6: SET CONSTRAINTS ALL IMMEDIATE trips the seal, and the error says what to do.
func TestT6SetConstraintsAllIsRefused(t *testing.T) {
	t.Parallel()
	r := unlike(t, "permanent", func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		_, err := tx.Exec(ctx, "set constraints all immediate")
		return err
	})
	if n := r.count(`select count(*) from onlyonce.parked where error like '%OO002%'`); n != 1 {
		t.Error("the parked message does not carry OO002")
	}
}

func TestTransactionIsOverWhenTheHandlerReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	var kept consumer.Tx
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		kept = tx
		return effect(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 1)
	stop()
	if _, err := kept.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "after its handler returned") {
		t.Errorf("a transaction used after its handler: %v", err)
	}
}

// T7: after a serialization failure or a deadlock the whole transaction runs again, handler
// included. It counts against no message.
func TestT7SerializationFailureRunsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	var failed atomic.Int32
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 5 && failed.Add(1) <= 3 {
			tx.Queue(`do $$ begin raise exception using errcode = '40001', message = 'as if serialized'; end $$`)
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 10)
	stop()
	r.once(values...)
	if len(r.reasons()) != 0 || len(r.events) != 1 {
		t.Errorf("parked: %v, transactions: %d, want the one batch", r.reasons(), len(r.events))
	}
}

// D3: parking claims the message's key like applying does, so a copy of a parked message is a
// duplicate.
func TestD3CopyOfAParkedMessageIsADuplicate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "sick", id("sick"))
	r.log.Append(0, "well", id("well"))
	var calls atomic.Int32
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "sick" && calls.Add(1) < 20 {
			if m.Offset > 0 {
				return queued(ctx, tx, m) // the copy would go through
			}
			return consumer.Permanent(errBoom)
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 2)
	// It was given up since: the parked row no longer claims its key, but the key itself does.
	// (While it is parked: see K7.)
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp()`)
	r.log.Append(0, "sick", id("sick"))
	r.log.Append(0, "well", id("well"))
	r.reaches(0, 4)
	stop()
	r.once("well")
	if got := fmt.Sprint(r.reasons()); got != "map[0:permanent]" {
		t.Errorf("parked: %s", got)
	}
}

// The rows, batches and copies of the facade work like pgx's own.
func TestTxHasWhatHandlersNeed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 3)
	problem := make(chan error, 100)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		problem <- func() error {
			tx.Queue(`insert into effects (value) values ($1)`, "queued")
			var n int
			if err := tx.QueryRow(ctx, `select count(*) from effects where value = $1`, "queued").Scan(&n); err != nil ||
				n != int(m.Offset)+1 {
				return fmt.Errorf("a read does not see the queued write: %d, %w", n, err)
			}
			if err := tx.QueryRow(ctx, `select 1 where false`).Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
				return fmt.Errorf("no rows: %w", err)
			}
			rows, err := tx.Query(ctx, `select i from generate_series(1, 5) i`)
			if err != nil {
				return err
			}
			if rows.Conn() != nil {
				return errors.New("rows give the connection away")
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[int])
			if err != nil || len(got) != 5 {
				return fmt.Errorf("rows: %v, %w", got, err)
			}
			b := &pgx.Batch{}
			b.Queue(`insert into effects (value) values ('batch')`)
			b.Queue(`select 42`).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			if err := tx.SendBatch(ctx, b).Close(); err != nil || n != 42 {
				return fmt.Errorf("batch: %d, %w", n, err)
			}
			if c, err := tx.CopyFrom(
				ctx,
				pgx.Identifier{"effects"},
				[]string{"value"},
				pgx.CopyFromRows([][]any{{"copied"}}),
			); err != nil ||
				c != 1 {
				return fmt.Errorf("copy: %d, %w", c, err)
			}
			var s string
			if err := tx.QueryRow(ctx, `select 1`).Scan(&s, &s); err == nil {
				return errors.New("scanning one column into two is no error")
			}
			return nil
		}()
		return nil
	}, testConfig())
	r.reaches(0, 3)
	stop()
	for range 3 {
		if err := <-problem; err != nil {
			t.Error(err)
		}
	}
	for _, v := range []string{"queued", "batch", "copied"} {
		if n := r.count(`select count(*) from effects where value = $1`, v); n != 3 {
			t.Errorf("%d effects %q, want 3", n, v)
		}
	}
}

// F9: the count of a message that the position has passed is deleted when the next one is counted.
func TestF9CountsBelowThePositionAreDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 12)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset%3 == 0 {
			return consumer.Permanent(errBoom)
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 12)
	stop()
	if n := r.count(`select count(*) from onlyonce.attempts where "offset" = 9`); n != 1 ||
		r.count(`select count(*) from onlyonce.attempts`) != 1 {
		t.Errorf("%d counts of the last message that was alone, of %d", n, r.count(`select count(*) from onlyonce.attempts`))
	}
}
