package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// isolation sets a level in OnBegin.
func isolation(level string) func(context.Context, consumer.Tx) error {
	return func(_ context.Context, tx consumer.Tx) error {
		tx.Queue("set transaction isolation level " + level)
		return nil
	}
}

var levels = []string{"repeatable read", "serializable"}

// What OnBegin sets holds in the handler's transaction, and no longer.
func TestOnBeginSetsUpTheTransaction(t *testing.T) {
	for _, how := range []string{"queued", "sent"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 20)
			cfg := testConfig()
			cfg.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
				for _, sql := range []string{`set transaction isolation level serializable`, `set local app.tenant = 'acme'`} {
					if how == "queued" {
						tx.Queue(sql)
					} else if _, err := tx.Exec(ctx, sql); err != nil {
						return err
					}
				}
				return nil
			}
			var wrong atomic.Value
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				var level, tenant, lock string
				err := tx.QueryRow(
					ctx,
					`select current_setting('transaction_isolation'), current_setting('app.tenant'), current_setting('lock_timeout')`,
				).Scan(
					&level,
					&tenant,
					&lock,
				)
				good := err == nil &&
					level == "serializable" &&
					tenant == "acme" &&
					lock == "2s"
				if !good {
					wrong.Store(fmt.Sprintf("%q %q %q %v", level, tenant, lock, err))
				}
				return queued(ctx, tx, m)
			}, cfg)
			r.reaches(0, 20)
			stop()
			r.once(values...)
			if w := wrong.Load(); w != nil {
				t.Error(w)
			}
			for range r.pool.Config().MaxConns { // every connection that was used
				conn, err := r.pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Release()
				var level, tenant string
				if err := conn.QueryRow(
					t.Context(),
					`select current_setting('transaction_isolation'), coalesce(current_setting('app.tenant', true), '')`,
				).Scan(
					&level,
					&tenant,
				); err != nil ||
					level != "read committed" ||
					tenant != "" {
					t.Errorf("left behind: %q %q %v", level, tenant, err)
				}
			}
		})
	}
}

// T7: the timeouts hold from BEGIN on: for the statements of OnBegin, and for a session whose
// client falls silent there.
func TestT7TimeoutsHoldFromBegin(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 5)
	cfg := testConfig()
	cfg.Timeouts.Statement = 7 * time.Second
	cfg.Timeouts.Idle = time.Second
	var begun atomic.Int32
	var wrong, ended atomic.Value
	cfg.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
		tx.Queue(`set transaction isolation level repeatable read`) // before any snapshot
		ask := func() (got string, err error) {
			err = tx.QueryRow(
				ctx,
				`select concat_ws(
  ' ',
  current_setting('transaction_isolation'),
  current_setting('lock_timeout'),
  current_setting('statement_timeout'),
  current_setting('idle_in_transaction_session_timeout')
)`,
			).Scan(&got)
			return got, err
		}
		got, err := ask()
		if err != nil || got != "repeatable read 2s 7s 1s" {
			wrong.Store(fmt.Sprintf("%q %v", got, err))
		}
		if begun.Add(1) > 1 {
			return err
		}
		until(t, "the silent session's end", func() bool {
			return r.count(`select count(*) from pg_stat_activity
				where datname = current_database() and state = 'idle in transaction'`) == 0
		})
		_, err = ask()
		ended.Store(err != nil)
		return err
	}
	stop := r.start(queued, cfg)
	r.reaches(0, 5)
	stop()
	r.once(values...)
	if w := wrong.Load(); w != nil {
		t.Errorf("in OnBegin: %v", w)
	}
	if ended.Load() != true {
		t.Error("the transaction of a silent OnBegin went on")
	}
}

// T7: without OnBegin the fence sets the bounds, in each kind of transaction, before it waits for a
// lock.
func TestT7FenceSetsTheBounds(t *testing.T) {
	for name, cfg := range map[string]consumer.Config{"batch": testConfig(), "slots": testConfig(), "parked": orderConfig()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 5)
			cfg.Timeouts.Lock = 50 * time.Millisecond
			cfg.Timeouts.Statement = 7 * time.Second
			cfg.Timeouts.Idle = 9 * time.Second
			if name == "slots" {
				cfg.Concurrency = 3
			}
			var wrong atomic.Value
			var failed atomic.Bool
			handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				var got string
				err := tx.QueryRow(ctx, `select concat_ws(' ', current_setting('lock_timeout'), current_setting('statement_timeout'),
					current_setting('idle_in_transaction_session_timeout'))`).Scan(&got)
				if got != "50ms 7s 9s" {
					wrong.Store(got)
				}
				if name == "parked" && m.Offset == 2 && failed.CompareAndSwap(false, true) {
					return errBoom
				}
				return errors.Join(err, effect(ctx, tx, m))
			}
			stop := r.start(handler, cfg)
			r.reaches(0, 5)
			until(t, "the message that was parked is applied", func() bool { return r.count(`select count(*) from effects`) == 5 })
			if w := wrong.Load(); w != nil {
				t.Errorf("in the handler: %s", w)
			}
			if name == "parked" {
				return // its partition's fence is that of a batch
			}
			first, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := first.Exec(t.Context(), `select from onlyonce.leases for update`); err != nil {
				t.Fatal(err)
			}
			if _, err := first.Exec(t.Context(), `select pg_advisory_xact_lock(onlyonce.owner_lock(id)) from onlyonce.leases`); err != nil {
				t.Fatal(err)
			}
			r.log.Append(0, "late", id("late"))
			until(t, "the fence to give up waiting", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return slices.ContainsFunc(r.tries, func(e consumer.RetryEvent) bool { return guard.SQLState(e.Err) == "55P03" })
			})
			if err := first.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			until(t, "the message is applied", func() bool { return r.count(`select count(*) from effects`) == 6 })
			stop()
			r.once(append(values, "late")...)
		})
	}
}

// D1: no failure of OnBegin counts against a message. No attempt is counted, nothing is parked, and
// the transaction is tried again.
func TestD1FailingOnBeginIsNobodysFault(t *testing.T) {
	for name, bad := range map[string]func(ctx context.Context, tx consumer.Tx) error{
		"error":            func(context.Context, consumer.Tx) error { return errBoom },
		"permanent":        func(context.Context, consumer.Tx) error { return consumer.Permanent(errBoom) },
		"cancelled":        func(context.Context, consumer.Tx) error { return fmt.Errorf("asking: %w", context.Canceled) },
		"lost":             func(context.Context, consumer.Tx) error { return source.ErrOwnershipLost },
		"panic":            func(context.Context, consumer.Tx) error { panic("kaboom") },
		"statement":        func(_ context.Context, tx consumer.Tx) error { tx.Queue(`select 1 / 0`); return nil },
		"swallowed":        func(ctx context.Context, tx consumer.Tx) error { _, _ = tx.Exec(ctx, `selec`); return nil },
		"commit":           func(ctx context.Context, tx consumer.Tx) error { _, err := tx.Exec(ctx, `commit`); return err },
		"rollback, queued": func(_ context.Context, tx consumer.Tx) error { tx.Queue(`rollback`); return nil },
		"batch": func(ctx context.Context, tx consumer.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`select 1 / 0`)
			return tx.SendBatch(ctx, b).Close()
		},
		"its connection": func(ctx context.Context, tx consumer.Tx) error {
			_, err := tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
			return err
		},
		"cancelled, with its connection": func(ctx context.Context, tx consumer.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err := tx.Exec(ctx, `select pg_sleep(60)`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 20)
			var well atomic.Bool
			var failed atomic.Int32
			cfg := testConfig()
			cfg.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
				if well.Load() {
					return nil
				}
				failed.Add(1)
				return bad(ctx, tx)
			}
			stop := r.start(queued, cfg)
			until(t, "more failures than attempts", func() bool { return failed.Load() > 8 })
			if n := r.position(0); n != 0 || r.count(`select count(*) from effects`) > 0 {
				t.Errorf("position %d", n)
			}
			r.mu.Lock()
			if len(r.tries) < 5 { // each with a wait, and none in a loop
				t.Errorf("%d tries again for %d failures", len(r.tries), failed.Load())
			}
			for _, e := range r.tries { // a message that is alone is counted first, and then taken back
				if e.Attempt > 1 || e.Wait <= 0 {
					t.Errorf("tried again: %+v", e)
				}
			}
			r.mu.Unlock()
			well.Store(true)
			r.reaches(0, 20)
			stop()
			r.once(values...)
			if len(r.reasons()) > 0 || r.count(`select coalesce(max(attempts), 0) from onlyonce.attempts`) > 1 {
				t.Errorf("parked: %v", r.reasons())
			}
		})
	}
}

// D1: nor does it count against a message that is alone.
func TestD1FailingOnBeginOfAMessageAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	var begun atomic.Int32
	var alone atomic.Bool
	cfg := testConfig()
	cfg.OnBegin = func(_ context.Context, tx consumer.Tx) error {
		if alone.Load() && begun.Add(1) <= 10 {
			tx.Queue(`select 1 / 0`)
		}
		return nil
	}
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 1 && m.Attempt == 0 {
			alone.Store(true)
			return errBoom
		}
		return effect(ctx, tx, m) // waits, so that the hook's failure comes to it
	}, cfg)
	r.reaches(0, 3)
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}

// The whole engine above READ COMMITTED: copies inside a batch, in other partitions, under handlers
// that collide, and two scopes.
func TestT7EveryIsolationLevelAppliesOnce(t *testing.T) {
	for _, level := range levels {
		for name, claimFirst := range map[string]bool{"optimistic": false, "claim first": true} {
			t.Run(level+", "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2)
				r.exec(`create table tally (sku int primary key, n int not null)`)
				r.exec(`insert into tally select i, 0 from generate_series(0, 2) i`)
				var values []string
				for i := range 60 {
					v := fmt.Sprint("m", i)
					values = append(values, v)
					r.log.Append(int32(i%2), v, id(v))
					r.log.Append(int32((i+1)%2), v, id(v)) // while the first one is under way
				}
				handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					// Collides, and counts.
					tx.Queue(`update tally set n = n + 1 where sku = $1`, len(m.Value)%3)
					return effect(ctx, tx, m)
				}
				cfg := testConfig()
				cfg.OnBegin = isolation(level)
				cfg.ClaimFirst = claimFirst
				cfg.BatchSize = 5
				other := cfg
				other.Scope = "billing"
				stop := r.start(handle, cfg)
				stopOther := r.startOn(&memlog.Source{Log: r.log, GroupID: "billing"}, r.pool, handle, other)
				until(t, "every position", func() bool {
					return r.count(`select count(*) from onlyonce.positions where next_offset = 60`) == 4
				})
				stop()
				stopOther()
				if n := r.count(`select count(*) from (select value from effects group by value having count(*) = 2) v`); n != len(values) {
					t.Errorf("%d of %d messages have one effect in each scope", n, len(values))
				}
				n := r.count(`select count(*) from effects`)
				sum := r.count(`select sum(n) from tally`)
				if n != 120 || sum != 120 {
					t.Errorf("%d effects, %d counted, want 120", n, sum)
				}
				if len(r.reasons()) > 0 {
					t.Errorf("parked: %v", r.reasons())
				}
			})
		}
	}
}

// K2: a copy of an uncommitted message waits above READ COMMITTED too: for its commit, and then it
// is a duplicate, or its rollback, and then it is applied.
func TestK2UncommittedCopyAtEveryLevel(t *testing.T) {
	for _, level := range levels {
		for end, want := range map[string]int{"commit": 0, "rollback": 1} {
			t.Run(level+", "+end, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2)
				cfg := testConfig()
				cfg.OnBegin = isolation(level)
				r.log.Append(0, "same", id("one"))
				entered := make(chan struct{})
				release := make(chan struct{})
				var once sync.Once
				stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					if m.Partition == 0 && m.Attempt == 0 {
						if err := effect(ctx, tx, m); err != nil { // claimed by now
							return err
						}
						once.Do(func() { close(entered); <-release })
						if end == "rollback" {
							return errBoom
						}
						return nil
					}
					if m.Partition == 0 {
						return consumer.Permanent(errors.New("only the first run was to do it"))
					}
					return effect(ctx, tx, m)
				}, cfg)
				<-entered
				r.log.Append(1, "same", id("one"))
				until(t, "a session that waits for the copy", func() bool {
					return r.count(`select count(*) from pg_stat_activity
						where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0`) > 0
				})
				close(release)
				r.reaches(0, 1)
				r.reaches(1, 1)
				stop()
				// Rolled back, either of the two is first at the next try; the other one is its
				// duplicate then, parked or applied.
				applied := r.count(`select count(*) from effects`)
				parked := r.count(`select count(*) from onlyonce.parked`)
				if applied+parked != 1 || want == 0 && applied != 1 {
					t.Errorf("%d applied, %d parked, want one of them once", applied, parked)
				}
			})
		}
	}
}
