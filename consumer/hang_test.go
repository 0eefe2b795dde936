package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// impatient bounds handlers closely. Only handlers that wait for the end of their context, or for
// ever, meet the bounds.
func impatient() consumer.Config {
	cfg := testConfig()
	cfg.HandlerTimeout = 300 * time.Millisecond
	cfg.BatchTimeout = 20 * time.Second
	cfg.HangTimeout = 100 * time.Millisecond
	cfg.MaxAttempts = 2
	return cfg
}

// D1: a handler that exceeds its time counts against its message only. A statement under way is cut
// off.
func TestD1DeadlineIsHeldAgainstItsMessage(t *testing.T) {
	for name, late := range map[string]consumer.HandlerFunc{
		"waits": func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_ = effect(ctx, tx, m)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), consumer.ErrHandlerTimeout) {
				return consumer.Permanent(context.Cause(ctx))
			}
			return ctx.Err()
		},
		"statement": func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, err := tx.Exec(ctx, `select pg_sleep(60)`)
			return err
		},
		"statement, swallowed": func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, _ = tx.Exec(ctx, `select pg_sleep(60)`)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 30)
			var alone atomic.Int32
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if m.Offset != 7 {
					return queued(ctx, tx, m)
				}
				if m.Attempt > 0 {
					alone.Add(1)
				}
				return late(ctx, tx, m)
			}, impatient())
			r.reaches(0, 30)
			stop()
			r.once(append(values[:7:7], values[8:]...)...)
			if got := fmt.Sprint(r.reasons()); got != "map[7:exhausted]" || alone.Load() != 2 {
				t.Errorf("parked: %s after %d attempts", got, alone.Load())
			}
			if n := r.count(`select count(*) from onlyonce.parked
				where error like 'consumer: handler took too long%HandlerTimeout%'`); n != 1 {
				t.Error("the parked message does not say that its handler took too long")
			}
			until(t, "no statement is left running", func() bool {
				return r.count(`select count(*) from pg_stat_activity
					where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()`) == 0
			})
			if len(r.hangs) > 0 {
				t.Errorf("%d hangs: it returned when its context ended", len(r.hangs))
			}
		})
	}
}

// D1: all handlers of a transaction together, and a call of a batch handler, have
// Config.BatchTimeout.
func TestD1BatchTimeout(t *testing.T) {
	both(t, "late", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		values := r.numbered(0, 30)
		cfg := impatient()
		// One message has no more time than the batch.
		cfg.HandlerTimeout = 0
		cfg.BatchTimeout = 300 * time.Millisecond
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if m.Offset == 7 {
				<-ctx.Done()
				return ctx.Err()
			}
			return queued(ctx, tx, m)
		}, cfg)
		r.reaches(0, 30)
		stop()
		r.once(append(values[:7:7], values[8:]...)...)
		if got := fmt.Sprint(r.reasons()); got != "map[7:exhausted]" {
			t.Errorf("parked: %s", got)
		}
		if n := r.count(`select count(*) from onlyonce.parked where error like '%BatchTimeout%'`); n != 1 {
			t.Error("the parked message does not say which bound its handler met")
		}
	})
}

// A handler that finishes just after its deadline has finished: what the database has is whole.
// Later ones do not begin without time.
func TestHandlerDoneBehindItsDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if ctx.Err() != nil {
			t.Errorf("offset %d began with a context that has ended", m.Offset)
		}
		if err := effect(ctx, tx, m); err != nil {
			return err
		}
		if m.Offset == 4 {
			<-ctx.Done()
		}
		return nil
	}, impatient())
	r.reaches(0, 10)
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}

// blockForEver is a handler that does not look at its context; its name is what the stack must
// show.
func blockForEver(release <-chan struct{}) { <-release }

// D1, D2: a handler that hangs is abandoned. Its transaction is rolled back and its connection
// given up, the batch continues on another one, and only its message is parked in the end.
func TestD1HandlerHangs(t *testing.T) {
	both(t, "one", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		cfg := r.pool.Config().Copy()
		cfg.MaxConns = 2 // a place that is not given back is missed
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		outer := r.pool
		r.pool = pool
		values := r.numbered(0, 10)
		release := make(chan struct{})
		var mu sync.Mutex
		var late []error
		var calls, left atomic.Int32
		ccfg := impatient()
		ccfg.BatchTimeout = 600 * time.Millisecond
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if m.Offset != 7 {
				return effect(ctx, tx, m)
			}
			calls.Add(1)
			if err := effect(ctx, tx, m); err != nil {
				return err
			}
			defer left.Add(1)
			blockForEver(release)
			_, err := tx.Exec(context.Background(), `insert into effects (value) values ('late')`)
			tx.Queue(`insert into effects (value) values ('late')`)
			inside := tx.Savepoint(context.Background(), func() error { return nil })
			_ = m.Attempt // still its own
			mu.Lock()
			late = append(late, err, inside)
			mu.Unlock()
			return nil
		}, ccfg)
		var free sync.Once
		defer free.Do(func() { close(release) })
		r.reaches(0, 10)
		r.once(append(values[:7:7], values[8:]...)...)
		if got := fmt.Sprint(r.reasons()); got != "map[7:exhausted]" {
			t.Errorf("parked: %s", got)
		}
		until(t, "its transactions are rolled back and its connections gone", func() bool {
			var open int
			err := outer.QueryRow(
				context.Background(),
				`select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`,
			).Scan(&open)
			if err != nil {
				t.Fatal(err)
			}
			return open == 0
		})
		if n := pool.Stat().TotalConns(); n > 2 {
			t.Errorf("the pool holds %d connections", n)
		}
		r.mu.Lock()
		if n := calls.Load(); len(r.hangs) != int(n) || n < 3 {
			t.Errorf("%d hangs were told, of %d", len(r.hangs), n)
		}
		for _, h := range r.hangs {
			if !strings.Contains(h.Stack, "consumer_test.blockForEver") || strings.Contains(h.Stack, "\ngoroutine ") {
				t.Errorf("the stack does not show the handler: %s", h.Stack)
			}
			if h.Topic != "orders" || h.Partition != 0 {
				t.Errorf("%+v", h)
			}
		}
		r.mu.Unlock()
		free.Do(func() { close(release) })
		until(t, "the handlers return", func() bool { return left.Load() == calls.Load() })
		stop() // nothing is left: Run returns nil
		r.once(append(values[:7:7], values[8:]...)...)
		mu.Lock()
		defer mu.Unlock()
		for _, err := range late {
			if err == nil {
				t.Error("a statement of a handler that was left behind was taken")
			}
		}
		r.pool = outer
	})
}

// Healthy and Run report a handler that is still running, and stop when it has returned.
func TestStuckHandlerIsTold(t *testing.T) {
	for _, released := range []bool{false, true} {
		t.Run(fmt.Sprint("released ", released), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 3)
			release := make(chan struct{})
			gone := make(chan struct{})
			var once sync.Once
			cfg := impatient()
			cfg.Hooks = r.hooks(cfg.Hooks)
			c, err := consumer.New(
				r.pool,
				r.src,
				consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					// The first call hangs, later ones do not.
					once.Do(func() { defer close(gone); <-release })
					return effect(ctx, tx, m)
				}),
				cfg,
			)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- c.Run(apart(ctx)) }()
			// The others wait for sync.Once too, and hang with it, until the first is released.
			until(t, "a hang", func() bool { return c.Healthy() != nil })
			if err := c.Healthy(); !errors.Is(err, consumer.ErrHandlerHung) {
				t.Errorf("healthy: %v", err)
			}
			if !released {
				cancel()
				if err := <-ended; !errors.Is(err, consumer.ErrHandlerHung) {
					t.Errorf("Run: %v", err)
				}
				close(release)
				<-gone
				until(t, "healthy again", func() bool { return c.Healthy() == nil })
				return
			}
			close(release)
			until(t, "healthy again", func() bool { return c.Healthy() == nil })
			r.reaches(0, 3)
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			if n := r.count(`select count(*) from effects`) + len(r.reasons()); n != len(values) {
				t.Errorf("%d effects and parked messages, want %d", n, len(values))
			}
		})
	}
}

// A drain that finds a hung handler ends, and counts it against no message.
func TestDrainLeavesAHungHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 5)
	release := make(chan struct{})
	entered := make(chan struct{})
	cfg := testConfig()
	cfg.DrainTimeout = 100 * time.Millisecond
	cfg.HangTimeout = 100 * time.Millisecond
	cfg.Hooks = r.hooks(cfg.Hooks)
	var once sync.Once
	c, err := consumer.New(r.pool, r.src, consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		once.Do(func() { close(entered) })
		<-release
		return effect(ctx, tx, m)
	}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(apart(ctx)) }()
	pgtest.Receive(t, patience, "the handler is entered", entered)
	cancel()
	if err := pgtest.Receive(t, patience, "Run ends", ended); !errors.Is(err, consumer.ErrHandlerHung) {
		t.Errorf("Run: %v", err)
	}
	close(release)
	until(t, "the handler is gone", func() bool { return c.Healthy() == nil })
	if n := r.count(`select count(*) from effects`); n != 0 {
		t.Errorf("%d effects of a handler that was given up", n)
	}
	stop := r.start(queued, testConfig())
	r.reaches(0, 5)
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}

// Goexit, which FailNow of a test in the handler calls, is an error like another.
func TestGoexitIsAnError(t *testing.T) {
	both(t, "goexit", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		values := r.numbered(0, 30)
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if m.Offset == 7 {
				_ = effect(ctx, tx, m)
				runtime.Goexit()
			}
			return queued(ctx, tx, m)
		}, testConfig())
		r.reaches(0, 30)
		stop()
		r.once(append(values[:7:7], values[8:]...)...)
		if got := fmt.Sprint(r.reasons()); got != "map[7:exhausted]" {
			t.Errorf("parked: %s", got)
		}
		if n := r.count(`select count(*) from onlyonce.parked where error like '%Goexit%'`); n != 1 {
			t.Error("the parked message does not say so")
		}
	})
}

// F9: a function that finds ids or ordering keys ends its goroutine: its message counts as one
// without an id, and the others go on. OnParked and OnBegin hold the message, with a report.
func TestF9FunctionsThatCallGoexit(t *testing.T) {
	quit := func(m *consumer.Message) {
		if m.Offset == 3 {
			runtime.Goexit()
		}
	}
	for name, adjust := range map[string]func(*consumer.Config){
		"Key": func(c *consumer.Config) {
			find := c.Key
			c.Key = func(m *consumer.Message) (string, error) { quit(m); return find(m) }
		},
		"Tenant":      func(c *consumer.Config) { c.Tenant = func(m *consumer.Message) string { quit(m); return "" } },
		"OrderingKey": func(c *consumer.Config) { c.OrderingKey = func(m *consumer.Message) []byte { quit(m); return m.Value } },
		"OrderingKey, slots": func(c *consumer.Config) {
			c.Concurrency = 2
			c.OrderingKey = func(m *consumer.Message) []byte { quit(m); return m.Value }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 6)
			cfg := testConfig()
			if name == "OrderingKey" {
				cfg.OnFailure = consumer.ParkOrderingKey
			}
			adjust(&cfg)
			stop := r.start(effect, cfg)
			r.reaches(0, 6)
			stop()
			r.once(append(values[:3:3], values[4:]...)...)
			if got := fmt.Sprint(r.reasons()); got != "map[3:no-key]" {
				t.Errorf("parked: %s", got)
			}
		})
	}
	for name, adjust := range map[string]func(*consumer.Config){
		"OnParked": func(c *consumer.Config) {
			c.OnParked = func(context.Context, consumer.Tx, *consumer.Message, consumer.ParkedEvent) error {
				runtime.Goexit()
				return nil
			}
		},
		"OnBegin": func(c *consumer.Config) {
			c.OnBegin = func(context.Context, consumer.Tx) error { runtime.Goexit(); return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.log.Append(0, "bad", id("bad"))
			cfg := testConfig()
			cfg.BlockedAfter = 20 * time.Millisecond
			adjust(&cfg)
			stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error { return consumer.Permanent(errBoom) }, cfg)
			if h := r.halted(); h.Reason != consumer.HaltBlocked || !strings.Contains(h.Error(), "runtime.Goexit") {
				t.Errorf("halt: %v", h)
			}
			stop()
		})
	}
}

// T6: what a handler leaves running finds the transaction closed, whatever it tries.
func TestT6GoroutineBehindItsHandlerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 1) // the last message of its batch: no later one takes the transaction
	applied := make(chan struct{})
	tried := make(chan []error, 1)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		go func() {
			<-applied
			_, exec := tx.Exec(context.Background(), `insert into effects (value) values ('late')`)
			_, query := tx.Query(context.Background(), `select 1`)
			tx.Queue(`insert into effects (value) values ('late')`)
			tried <- []error{exec, query, tx.Savepoint(context.Background(), func() error { return nil }),
				consumer.TxFor(tx, m).QueryRow(context.Background(), `select 1`).Scan(new(int))}
		}()
		return effect(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 1)
	close(applied)
	for i, err := range <-tried {
		if err == nil || !strings.Contains(err.Error(), "after its handler returned") {
			t.Errorf("%d: %v", i, err)
		}
	}
	stop()
	r.once(values...)
}
