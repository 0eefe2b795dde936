package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// A violation that a handler expects is forgiven in a savepoint, and its message applied with the
// others of its batch.
func TestSavepointForgivesAViolation(t *testing.T) {
	both(t, "violation", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		r.exec(`create table once (sku text primary key)`)
		values := r.numbered(0, 30)
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			tx.Queue(`insert into effects (value) values ($1)`, "before "+string(m.Value))
			err := tx.Savepoint(ctx, func() error {
				tx.Queue(`insert into effects (value) values ('undone unless new')`)
				_, err := tx.Exec(ctx, `insert into once values ($1)`, fmt.Sprint(m.Offset%3))
				return err
			})
			if err != nil && guard.SQLState(err) != "23505" {
				return err
			}
			return queued(ctx, tx, m)
		}, testConfig())
		r.reaches(0, 30)
		stop()
		if n := r.count(`select count(*) from effects where value = 'undone unless new'`); n != 3 {
			t.Errorf("%d, want 3", n)
		}
		r.exec(`delete from effects where value = 'undone unless new'`)
		for _, v := range values[:30:30] {
			values = append(values, "before "+v)
		}
		r.once(values...)
		if len(r.reasons()) > 0 || len(r.events) > 20 {
			t.Errorf("parked: %v in %d transactions", r.reasons(), len(r.events))
		}
	})
}

// T6, T7: an error that a savepoint must not forgive fails its message and no other.
func TestT7SavepointIsNoWayAround(t *testing.T) {
	for name, fn := range map[string]func(ctx context.Context, tx consumer.Tx) error{
		"commit": func(ctx context.Context, tx consumer.Tx) error {
			_ = tx.Savepoint(ctx, func() error { _, err := tx.Exec(ctx, "commit"); return err })
			return nil
		},
		"the 61st": func(ctx context.Context, tx consumer.Tx) error {
			for range 61 {
				_ = tx.Savepoint(ctx, func() error { return nil })
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unlike(t, "permanent", func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if err := fn(ctx, tx); err != nil {
					return err
				}
				return effect(ctx, tx, m)
			})
		})
	}
}

// T6, T7: a savepoint does not forgive that the connection is gone: the message's other writes do
// not commit, and no message is passed over.
func TestT7SavepointDoesNotForgiveALostConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	cfg := testConfig()
	cfg.BlockedAfter = 50 * time.Millisecond
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 7 {
			_ = tx.Savepoint(ctx, func() error {
				_, err := tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
				return err
			})
		}
		return effect(ctx, tx, m)
	}, cfg)
	until(t, "the halt", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.halts) > 0
	})
	stop()
	if h := r.halts[0]; h.Reason != consumer.HaltBlocked || h.Position != 7 {
		t.Errorf("halt: %v", h)
	}
	r.once(values[:7]...)
}

// T7: a deadlock inside a savepoint runs the whole transaction again, whatever the handler makes of
// it.
func TestT7DeadlockInASavepointRunsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	var unlucky atomic.Int32
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		err := tx.Savepoint(ctx, func() error {
			if m.Offset == 5 && unlucky.Add(1) <= 2 {
				_, err := tx.Exec(ctx, `do $$ begin raise exception using errcode = '40P01', message = 'as if'; end $$`)
				return err
			}
			return queued(ctx, tx, m)
		})
		if err != nil {
			tx.Queue(`insert into effects (value) values ('declined')`) // and forgiven
		}
		return nil
	}, testConfig())
	r.reaches(0, 10)
	stop()
	r.once(values...)
}

// More messages with savepoints than a transaction may have: the batch is divided, and none is
// parked.
func TestMoreSavepointsThanATransactionMayHave(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 100)
	cfg := testConfig()
	cfg.BatchSize = 100
	cfg.MaxAttempts = 1
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return tx.Savepoint(ctx, func() error { return queued(ctx, tx, m) })
	}, cfg)
	r.reaches(0, 100)
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}
