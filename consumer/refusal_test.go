package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// D1: ten messages together need more locks than the server has room for, and each by itself does
// not. The batch is divided. The server is the test's own: others on a shared one would be refused,
// too.
func TestD1BatchThatNeedsTooMuchRoomIsDivided(t *testing.T) {
	t.Parallel()
	r := rigOn(t, pgtest.Pool(t, pgtest.Server(t, nil)), 1)
	room := r.count(`select current_setting('max_locks_per_transaction')::int * (current_setting('max_connections')::int + ` +
		`current_setting('max_prepared_transactions')::int)`)
	values := r.numbered(0, 10)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if _, err := tx.Exec(ctx, `select count(pg_advisory_xact_lock($1, g)) from generate_series(1, $2) g`,
			int32(m.Offset), room*2/10); err != nil {
			return err
		}
		return effect(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 10)
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}

// D1, T12: a deferred trigger meets a server that takes no writes, for example by postgres_fdw.
// That is no answer of this server, and counts against the message.
func TestD1DeferredTriggerThatMustNotWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`create function elsewhere() returns trigger language plpgsql as $$ begin
		if new.value like '%-2' then raise exception using errcode = '25006'; end if; return null; end $$`)
	r.exec(`create constraint trigger elsewhere after insert on effects deferrable initially deferred for each row
		execute function elsewhere()`)
	values := r.numbered(0, 5)
	stop := r.start(effect, testConfig())
	r.reaches(0, 5)
	stop()
	r.once(append(values[:2:2], values[3:]...)...)
	if got := fmt.Sprint(r.reasons()); got != "map[2:exhausted]" {
		t.Errorf("parked: %s", got)
	}
}

// D1: a limit of the statement's own (temp_file_limit, 53400) is an error of that statement,
// although its class is that of a server without room.
func TestD1OwnLimitOfAStatementCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 5)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 2 {
			for _, sql := range []string{`set local temp_file_limit = '64kB'`, `set local work_mem = '64kB'`,
				`select count(*) from (select g from generate_series(1, 200000) g order by md5(g::text)) x`} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
		}
		return effect(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 5)
	stop()
	r.once(append(values[:2:2], values[3:]...)...)
	if got := fmt.Sprint(r.reasons()); got != "map[2:exhausted]" {
		t.Errorf("parked: %s", got)
	}
}

// D1: a handler ends the context of its own statement, which is the first thing that the
// transaction sends, or travels with what the engine has queued. It is an answer of that handler,
// and neither the end of the partition's work nor the way to the server.
func TestD1HandlerEndsItsOwnContext(t *testing.T) {
	t.Parallel()
	for name, bounded := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled before": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		},
		"cancelled meanwhile": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Millisecond, cancel)
			return ctx, cancel
		},
		"deadline before": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Unix(0, 0))
		},
		"deadline meanwhile": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, ids := range []bool{true, false} {
				both(t, fmt.Sprintf("ids %t", ids), func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
					r := newRig(t, 1)
					values := r.numbered(0, 5)
					cfg := testConfig()
					if !ids {
						cfg.Key = nil
						cfg.PositionsOnly = true
					}
					stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
						if m.Offset == 2 {
							own, cancel := bounded(ctx)
							defer cancel()
							if _, err := tx.Exec(own, `select pg_sleep(60)`); err != nil {
								return err
							}
						}
						return effect(ctx, tx, m)
					}, cfg)
					r.reaches(0, 5)
					stop()
					r.once(append(values[:2:2], values[3:]...)...)
					if got := fmt.Sprint(r.reasons()); got != "map[2:exhausted]" {
						t.Errorf("parked: %s", got)
					}
				})
			}
		})
	}
}

// D1, D2: the server refuses a message's transaction again and again, for reasons that are no
// message's fault. The messages before it are applied, it is alone, and no attempt counts against
// it. After Config.BlockedAfter its partition halts and reports why. It continues by itself.
func TestD1RefusedMessageHaltsItsPartition(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"40001", "40P01", "55P03", "53200", "57P01", "unavailable"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			both(t, "one", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
				r := newRig(t, 1)
				values := r.numbered(0, 5)
				cfg := testConfig()
				cfg.BlockedAfter = 100 * time.Millisecond
				var mended atomic.Bool
				stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					switch {
					case m.Offset != 2 || mended.Load():
					case state == "unavailable":
						return fmt.Errorf("the price: %w", consumer.Permanent(consumer.Unavailable(errors.New("stale version"))))
					default:
						if _, err := tx.Exec(
							ctx,
							fmt.Sprintf(`do $$ begin raise exception 'stale version' using errcode = '%s'; end $$`, state),
						); err != nil {
							return err
						}
					}
					return effect(ctx, tx, m)
				}, cfg)
				h := r.halted()
				good := h.Reason == consumer.HaltBlocked &&
					h.Position == 2 &&
					strings.Contains(h.Detail, "offset 2") &&
					strings.Contains(h.Detail, "stale version")
				if !good {
					t.Errorf("halt: %v", h)
				}
				if err := r.consumer.Healthy(); err == nil || !strings.Contains(err.Error(), "stale version") {
					t.Errorf("Healthy: %v", err)
				}
				r.once(values[:2]...)
				mended.Store(true)
				r.reaches(0, 5)
				until(t, "Healthy to be nil again", func() bool { return r.consumer.Healthy() == nil })
				stop()
				r.once(values...)
				if len(r.reasons()) > 0 {
					t.Errorf("parked: %v", r.reasons())
				}
				if n := r.count(`select coalesce(max(attempts), 0) from onlyonce.attempts where "offset" = 2`); n > 1 {
					t.Errorf("%d attempts are held against the message", n)
				}
			})
		})
	}
}

// D2: an administrator ends the session of every handler, again and again: nothing of it is the
// message's fault.
func TestD2SessionsEndedByAnAdministrator(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	cfg := testConfig()
	cfg.MaxAttempts = 2
	var ended atomic.Int32
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := effect(ctx, tx, m); err != nil {
			return err
		}
		if ended.Add(1) <= 12 {
			var pid int
			if err := tx.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
				return err
			}
			r.exec(`select pg_terminate_backend($1)`, pid)
			until(t, "the session's end", func() bool { return r.count(`select count(*) from pg_stat_activity where pid = $1`, pid) == 0 })
		}
		return nil
	}, cfg)
	r.reaches(0, 3)
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}

// D2: idle_in_transaction_session_timeout ends the session of a handler that is idle for longer
// than Config.Timeouts.Idle. That is the handler's doing; what another setting ends is not.
func TestD2IdleTimeoutCountsWhereItIsTheConfigs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	cfg := testConfig()
	cfg.MaxAttempts = 2
	cfg.Timeouts.Idle = 50 * time.Millisecond
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		var pid int
		if err := tx.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		until(t, "the session's end", func() bool { return r.count(`select count(*) from pg_stat_activity where pid = $1`, pid) == 0 })
		return effect(ctx, tx, m)
	}, cfg)
	r.reaches(0, 1)
	stop()
	if got := fmt.Sprint(r.reasons()); got != "map[0:exhausted]" {
		t.Errorf("parked: %s", got)
	}
}
