package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// isolated sets the isolation level of every transaction.
func isolated(level string) func(*faults) {
	return func(f *faults) { f.cfg.OnBegin = isolation(level) }
}

// contested is a message without a call, so that a test can apply it without onlyonce.
const contested = "k1-3"

// claim: another transaction works with the same keys, or on the same rows, at the same time.
var claimRows = slices.Concat(
	sameKeyRows("first commits", func(f *faults, first *pgx.Conn) {
		until(f.t, "the second to wait", func() bool { return f.waiters() > 0 })
		f.sql(first, "commit")
	}, 0),
	sameKeyRows("first rolls back", func(f *faults, first *pgx.Conn) {
		until(f.t, "the second to wait", func() bool { return f.waiters() > 0 })
		f.sql(first, "rollback")
	}, 1),
	sameKeyRows("first hangs", func(f *faults, first *pgx.Conn) {
		until(f.t, "the second to give up waiting twice", func() bool { return f.retries() > 20 })
		if at := f.mix.Of(contested).Offset; f.position(0) > at {
			f.t.Errorf("position %d: the message at %d was acknowledged", f.position(0), at)
		}
		f.sql(first, "rollback")
	}, 1),
	[]row{
		{"claim", "same key, other payload", func(f *faults) {
			f.begin(1)
			f.mix.AddAs(0, "k0", "k0-0", "forged", "call")
			f.mix.Add(0, "k0", "behind", "call")
			f.finish(f.start(f.handle))
			f.parkedAs(map[string]string{"forged": "conflict"})
		}},
		{"claim", "same key, other payload: ordering keys", func(f *faults) {
			f.begin(1, ordered)
			f.mix.AddAs(0, "k0", "k0-0", "forged", "call")
			f.mix.Add(0, "k0", "behind", "call")
			f.finish(f.start(f.handle))
			n := f.count(`select count(*) from onlyonce.parked where reason = 'behind' and body = 'behind'::bytea and settled_at is null`)
			if n != 1 {
				f.t.Errorf("the message behind the conflict was not parked behind it")
			}
		}},
		{"claim", "deadlock", deadlock},
		{"claim", "serialization failure", func(f *faults) { serialization(f, levels[0]) }},
		{"claim", "serialization failure: serializable", func(f *faults) { serialization(f, levels[1]) }},
		{"claim", "serialization failure: more often than it is run again at once", func(f *faults) {
			var failed atomic.Int32
			f.misbehaves(nil, func(_ context.Context, tx consumer.Tx, _ *consumer.Message) error {
				if failed.Add(1) <= 15 {
					tx.Queue(`do $$ begin raise exception using errcode = '40001', message = 'as if serialized'; end $$`)
				}
				return nil
			})
		}},
	})

// sameKeyRows are one ending in each isolation level, on the optimistic path and on the other one.
func sameKeyRows(ending string, end func(f *faults, first *pgx.Conn), effects int) (rows []row) {
	for _, level := range append([]string{"read committed"}, levels...) {
		for _, claimFirst := range []bool{false, true} {
			variant := level
			if claimFirst {
				variant += ", claim first"
			}
			rows = append(rows, row{"claim", "same key at once, " + ending + ": " + variant, func(f *faults) {
				f.begin(1, isolated(level), func(f *faults) {
					f.cfg.ClaimFirst = claimFirst
					if ending == "first hangs" {
						f.cfg.Timeouts.Lock = 20 * time.Millisecond
					}
				})
				first := f.connect()
				f.sql(first, "begin isolation level "+level)
				key := dedupe.Key{Scope: "stock", ID: contested, Fingerprint: dedupe.FingerprintOf([]byte(contested))}
				f.sql(first, `select onlyonce.claim_consumer(array[$1::uuid], array[$2::bigint])`,
					pgtype.UUID{Bytes: key.Hash(), Valid: true}, key.Fingerprint.Int64())
				f.sql(first, scenario.EffectSQL, contested, 0, scenario.Elsewhere)
				stop := f.start(f.handle)
				end(f, first)
				f.finish(stop)
				f.parkedAs(nil)
				if n := f.count(`select count(*) from effects where value = $1 and off >= 0`, contested); n != effects {
					f.t.Errorf("the second applied it %d times, want %d", n, effects)
				}
			}})
		}
	}
	return rows
}

// connect is a session of the test's own.
func (f *faults) connect() *pgx.Conn {
	f.t.Helper()
	conn, err := pgx.ConnectConfig(f.t.Context(), f.pool.Config().ConnConfig)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (f *faults) sql(conn *pgx.Conn, sql string, args ...any) {
	f.t.Helper()
	if _, err := conn.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// deadlock lets the handlers of two partitions lock two rows in opposite order; the first time each
// waits for the other.
func deadlock(f *faults) {
	f.begin(2, func(f *faults) {
		f.cfg.OnBegin = func(_ context.Context, tx consumer.Tx) error {
			tx.Queue("set local deadlock_timeout = '20ms'")
			return nil
		}
	})
	f.exec(`create table stock (id int primary key, n int not null)`)
	f.exec(`insert into stock values (0, 0), (1, 0)`)
	var locked [2]chan struct{}
	var once [2]sync.Once
	for i := range locked {
		locked[i] = make(chan struct{})
	}
	var deadlocks atomic.Int32
	f.finish(f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := f.handle(ctx, tx, m); err != nil || (string(m.Value) != "k0-3" && string(m.Value) != "k1-3") {
			return err
		}
		for i := range 2 {
			if _, err := tx.Exec(ctx, `update stock set n = n + 1 where id = $1`, (int(m.Partition)+i)%2); err != nil {
				if guard.SQLState(err) == "40P01" {
					deadlocks.Add(1)
				}
				return err
			}
			if i == 0 {
				once[m.Partition].Do(func() { close(locked[m.Partition]) })
				select {
				case <-locked[1-m.Partition]:
				case <-ctx.Done():
				}
			}
		}
		return nil
	}))
	if n := f.count(`select sum(n) from stock`); n != 4 || deadlocks.Load() == 0 {
		f.t.Errorf("%d updates committed, want 4, after %d deadlocks", n, deadlocks.Load())
	}
	if got := f.reasons(); len(got) != 1 {
		f.t.Errorf("parked: %v, want the Permanent one alone", got)
	}
}

// serialization lets the handler update a row that has changed since its transaction's snapshot.
func serialization(f *faults, level string) {
	f.begin(1, isolated(level))
	f.exec(`create table stock (n int not null)`)
	f.exec(`insert into stock values (0)`)
	other := f.connect()
	var disturbed, failed atomic.Int32
	f.finish(f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := f.handle(ctx, tx, m); err != nil || string(m.Value) != scenario.Plain {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, `select n from stock`).Scan(&n); err != nil {
			return err
		}
		if disturbed.Add(1) <= 3 {
			if _, err := other.Exec(ctx, `update stock set n = n + 100`); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `update stock set n = $1`, n+1)
		if guard.SQLState(err) == "40001" {
			failed.Add(1)
		}
		return err
	}))
	f.parkedAs(nil)
	if n := f.count(`select n from stock`); n != 301 || failed.Load() < 3 {
		f.t.Errorf("the row holds %d, want 301, after %d failures", n, failed.Load())
	}
}

// handler: one message's handler misbehaves, after it has written its effect and its call, each
// time it runs.
var handlerRows = []row{
	{"handler", "error", func(f *faults) {
		f.misbehaves(exhausted, func(context.Context, consumer.Tx, *consumer.Message) error { return errBoom })
	}},
	{"handler", "error: of another kind than the engine's own", func(f *faults) {
		f.misbehaves(exhausted, func(context.Context, consumer.Tx, *consumer.Message) error {
			return errors.Join(source.ErrOwnershipLost, context.Canceled, context.DeadlineExceeded)
		})
	}},
	{"handler", "panic", func(f *faults) {
		f.misbehaves(exhausted, func(context.Context, consumer.Tx, *consumer.Message) error { panic("kaboom") })
		if n := f.count(`select count(*) from onlyonce.parked where error like 'handler panicked: kaboom%'`); n != 1 {
			f.t.Error("the parked message does not say that its handler panicked")
		}
	}},
	{"handler", "runtime.Goexit", func(f *faults) {
		f.misbehaves(exhausted, func(context.Context, consumer.Tx, *consumer.Message) error {
			runtime.Goexit()
			return nil
		})
	}},
	{"handler", "hang", func(f *faults) {
		release := make(chan struct{})
		f.after = func() {
			close(release)
			until(f.t, "the handlers that were left behind to end", func() bool { return f.consumer.Healthy() == nil })
			f.rig.mu.Lock()
			defer f.rig.mu.Unlock()
			if len(f.hangs) < 3 {
				f.t.Errorf("%d handlers were left behind, want one for each attempt", len(f.hangs))
			}
		}
		f.misbehaves(exhausted, func(context.Context, consumer.Tx, *consumer.Message) error {
			<-release
			return nil
		}, func(f *faults) {
			// Long enough for a handler to begin, also beside other packages.
			f.cfg.HandlerTimeout = 500 * time.Millisecond
			f.cfg.HangTimeout = 200 * time.Millisecond
		})
	}},
	{"handler", "hang: until its context ends", func(f *faults) {
		f.misbehaves(exhausted, func(ctx context.Context, _ consumer.Tx, _ *consumer.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}, func(f *faults) { f.cfg.HandlerTimeout = 30 * time.Millisecond })
	}},
	{"handler", "hang: in a statement", func(f *faults) {
		f.misbehaves(exhausted, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, err := tx.Exec(context.WithoutCancel(ctx), `select pg_sleep(3600)`)
			return err
		}, func(f *faults) { f.cfg.Timeouts.Statement = 30 * time.Millisecond })
	}},
	{"handler", "swallowed SQL error", func(f *faults) {
		f.misbehaves(exhausted, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_, _ = tx.Exec(ctx, `insert into effects (value, part) values ('x', 'not a number')`)
			return nil
		})
	}},
	{"handler", `Exec("commit")`, func(f *faults) { f.ends("commit") }},
	{"handler", `Exec("commit"): rollback`, func(f *faults) { f.ends("rollback") }},
	{"handler", `Exec("commit"): in a procedure`, func(f *faults) { f.ends("do $$ begin commit; end $$") }},
	{"handler", "two goroutines at once", func(f *faults) {
		f.misbehaves(exhausted, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			if !forks(ctx, tx) {
				f.t.Error("a call that overlapped with another one was answered")
			}
			return nil
		})
	}},
	{"handler", "two goroutines at once: one goes on behind its return", func(f *faults) {
		f.misbehaves(exhausted, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			src := &gated{begun: make(chan struct{}), more: ctx.Done()}
			ended := make(chan error, 1)
			go func() {
				_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"value"}, src)
				ended <- err
			}()
			select {
			case <-src.begun:
				return nil
			case err := <-ended: // on a slow machine the time may be over before it begins
				return err
			}
		}, func(f *faults) { f.cfg.HandlerTimeout = 50 * time.Millisecond })
	}},
	{"handler", "transaction of an earlier message", func(f *faults) {
		var kept consumer.Tx
		f.misbehaves(exhausted, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			if kept == nil {
				kept = tx
				return errBoom
			}
			_, err := kept.Exec(ctx, `insert into effects (value) values ('astray')`)
			return err
		})
	}},
	{"handler", "session state", func(f *faults) {
		f.misbehaves(nil, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			for _, sql := range []string{
				`create temp table scratch (i int)`,
				`prepare p as select 1`,
				`set default_transaction_read_only = on`,
			} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{"handler", "backend terminated", func(f *faults) {
		// The server does not name who ended the session. So no message is judged, and the
		// partition reports it and waits.
		var mended atomic.Bool
		f.begin(1, func(f *faults) { f.cfg.BlockedAfter = 100 * time.Millisecond })
		stop := f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == scenario.Plain && !mended.Load() {
				if _, err := tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`); err != nil {
					return err
				}
			}
			return f.handle(ctx, tx, m)
		})
		if h := f.halted(); h.Reason != consumer.HaltBlocked || !strings.Contains(h.Detail, "57P01") {
			f.t.Errorf("halt: %v", h)
		}
		mended.Store(true)
		f.finish(stop)
		f.parkedAs(nil)
	}},
	{"handler", "backend terminated: by somebody else, now and then", func(f *faults) {
		// Innocent: attempts that a lost connection ended are made again.
		var runs atomic.Int32
		f.misbehaves(nil, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			var pid int
			if err := tx.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
				return err
			}
			if runs.Add(1) <= 3 {
				if _, err := f.pool.Exec(ctx, `select pg_terminate_backend($1, 5000)`, pid); err != nil {
					return err
				}
			}
			return nil
		}, func(f *faults) { f.cfg.MaxAttempts = 5 })
	}},
	{"handler", "kills its process", func(f *faults) {
		f.begin(1)
		db := f.pool.Config().ConnString()
		deaths := 0
		// The first time in a batch, which counts nothing.
		for range testConfig().MaxAttempts + 1 {
			if state := runChild(f.t, "poison", db); killed(state) {
				deaths++
			}
			invariants(f.t, f.pool, f.mix, false)
		}
		if deaths != testConfig().MaxAttempts+1 {
			f.t.Errorf("%d processes died, want the one with the batch and one for each attempt", deaths)
		}
		f.finish(f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == scenario.Plain {
				f.t.Error("it was tried once more")
			}
			return f.handle(ctx, tx, m)
		}))
		if n := f.count(`select count(*) from onlyonce.parked where reason = 'crashed' and body = convert_to($1, 'UTF8')`,
			scenario.Plain); n != 1 {
			f.t.Errorf("the message that kills is not parked as crashed")
		}
	}},
	{"handler", "error in a queued statement", func(f *faults) {
		f.misbehaves(exhausted, func(_ context.Context, tx consumer.Tx, _ *consumer.Message) error {
			tx.Queue(`insert into effects (value, part) values ('x', 1 / length($1::text))`, "")
			return nil
		})
	}},
	{"handler", "error in a queued statement: of a deferred constraint", func(f *faults) {
		f.setUp = `create table parent (id int primary key);
			create table child (id int, parent int references parent deferrable initially deferred)`
		f.misbehaves(exhausted, func(_ context.Context, tx consumer.Tx, _ *consumer.Message) error {
			tx.Queue(`insert into child values (1, 999)`)
			return nil
		})
		f.parkedWith("23503")
	}},
	{"handler", "error in a queued statement: of a deferred trigger that does not end", func(f *faults) {
		f.setUp = `create table child (id int);
   create function endless() returns trigger language plpgsql as 'begin perform pg_sleep(3600); return null; end';
   create constraint trigger endless after insert on child deferrable initially deferred
                                             for each row execute function endless()`
		f.misbehaves(exhausted, func(_ context.Context, tx consumer.Tx, _ *consumer.Message) error {
			tx.Queue(`insert into child values (1)`)
			return nil
		}, func(f *faults) { f.cfg.Timeouts.Statement = 200 * time.Millisecond })
		f.parkedWith("57014")
	}},
}

// parkedWith expects the SQLSTATE of the server in the row of the one message that fails.
func (f *faults) parkedWith(state string) {
	f.t.Helper()
	if n := f.count(`select count(*) from onlyonce.parked where body = convert_to($1, 'UTF8') and error like '%' || $2 || '%'`,
		scenario.Plain, state); n != 1 {
		f.t.Errorf("%d rows carry %s", n, state)
	}
}

// exhausted is why a message is parked that fails each time.
var exhausted = map[string]string{scenario.Plain: "exhausted"}

// misbehaves runs bad as one message's handler, and expects these messages to be parked and no
// others. Under ordering keys the message is retried from the database, and later ones of its key
// wait.
func (f *faults) misbehaves(parked map[string]string, bad consumer.HandlerFunc, adjust ...func(*faults)) {
	f.t.Helper()
	f.begin(1, adjust...)
	if f.setUp != "" {
		f.exec(f.setUp)
	}
	stop := f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := f.handle(ctx, tx, m); err != nil {
			return err
		}
		if string(m.Value) == scenario.Plain {
			return bad(ctx, tx, m)
		}
		return nil
	})
	f.done()
	if f.after != nil {
		f.after()
	}
	f.finish(stop)
	f.parkedAs(parked)
}

// ends lets a handler try to end the transaction, in every way that the facade has for a statement.
func (f *faults) ends(sql string) {
	var runs atomic.Int32
	f.misbehaves(map[string]string{scenario.Plain: "permanent"}, func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
		switch runs.Add(1) % 4 {
		case 0:
			_, _ = tx.Exec(ctx, sql)
		case 1:
			if rows, err := tx.Query(ctx, sql); err == nil {
				rows.Close()
			}
		case 2:
			tx.Queue(sql)
		case 3:
			b := &pgx.Batch{}
			b.Queue(sql)
			_ = tx.SendBatch(ctx, b).Close()
		}
		return nil
	}, func(f *faults) { f.cfg.MaxAttempts = 4 })
}

// commit: how COMMIT ended is unknown, or the server forgets that it committed.
var commitRows = slices.Concat(
	cutRows("cut before the server gets COMMIT", pgtest.Unsent),
	cutRows("cut after COMMIT, before the reply", pgtest.Unheard),
	[]row{
		{"commit", "cut while the old backend still commits", func(f *faults) { f.late(pgtest.Held) }},
		{"commit", "cut while the old backend still commits: and then does not", func(f *faults) { f.late(pgtest.Dropped) }},
		{"commit", "context cancelled", func(f *faults) {
			hold := make(chan struct{})
			// The seal, with which COMMIT is sent: other goroutines send COMMITs of their own.
			w := &pgtest.Wire{Statement: "select onlyonce.seal()", At: func(n int32) pgtest.Cut {
				if n == 1 {
					return pgtest.Stalled
				}
				return pgtest.Pass
			}}
			f.begin(1, positionsOnly, func(f *faults) { f.cfg.DrainTimeout = 20 * time.Millisecond })
			cancelled := pgtest.Wired(f.t, f.pool, pgx.QueryExecModeCacheStatement, w, hold)
			ctx, cancel := context.WithCancel(f.t.Context())
			c, err := consumer.New(cancelled, f.src, consumer.HandlerFunc(f.handle), f.cfg)
			if err != nil {
				f.t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- c.Run(apart(ctx)) }()
			until(f.t, "COMMIT to be on its way", func() bool { return w.Cuts.Load() == 1 })
			cancel()
			f.drainPasses()
			close(hold)
			if err := <-ended; err != nil {
				f.t.Errorf("Run: %v", err)
			}
			if f.position(0) == 0 {
				f.t.Error("the batch in hand was not brought to its end")
			}
			f.finish(f.start(f.handle))
		}},
		{"commit", "Postgres killed and restarted", func(f *faults) { f.killsPostgres(positionsOnly, patient) }},
		{"commit", "Postgres killed and restarted: ordering keys", func(f *faults) { f.killsPostgres(ordered, patient) }},
		{"commit", "switchover whose sockets stay open", (*faults).switchesOver},
		{"commit", "failover that loses the last transactions", func(f *faults) { f.failsOver(positionsOnly) }},
		{"commit", "failover that loses the last transactions: ordering keys", func(f *faults) { f.failsOver(ordered) }},
		{"commit", "failover that loses the last transactions: and a take-over", func(f *faults) {
			f.failsOver(ordered, func(f *faults) { f.takenOver = true })
		}},
	})

// silenceRows are the silent servers.
var silenceRows = slices.Concat(
	silentRows("claim", consumer.ClaimSQL, map[string]func(*faults){
		"":                claimFirst,
		": ordering keys": func(f *faults) { claimFirst(f); ordered(f) },
	}),
	silentRows("commit", "commit", map[string]func(*faults){"": positionsOnly, ": ids": func(*faults) {}, ": ordering keys": ordered}),
)

// switchesOver lets the address lead to a standby for a while (T12). The consumer has handled the
// mix before, and gets it again meanwhile.
func (f *faults) switchesOver() {
	s := pgtest.NewSwitchover(f.t)
	f.rig = rigOn(f.t, s.Direct(), 1)
	f.begin(1, patient)
	pool := s.Pool()
	stop := f.startOn(f.src, pool, f.handle)
	f.done()
	s.Begin()
	f.mix.Fill(1, true)
	refused := func() bool {
		f.rig.mu.Lock()
		defer f.rig.mu.Unlock()
		return slices.ContainsFunc(f.tries, func(r consumer.RetryEvent) bool { return guard.SQLState(r.Err) == "25006" })
	}
	until(f.t, "the standby to refuse a write", refused)
	s.End(pool)
	f.finish(stop)
	f.parkedAs(nil)
}

// cutRows lose every third connection at COMMIT.
func cutRows(fault string, what pgtest.Cut) (rows []row) {
	for _, v := range []struct {
		name   string
		mode   pgx.QueryExecMode
		adjust func(*faults)
	}{
		{"", pgx.QueryExecModeCacheStatement, positionsOnly},
		{": unprepared", pgx.QueryExecModeExec, positionsOnly},
		{": ids", pgx.QueryExecModeCacheStatement, func(*faults) {}},
		{": ordering keys", pgx.QueryExecModeCacheStatement, ordered},
	} {
		rows = append(rows, row{"commit", fault + v.name, func(f *faults) {
			w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
				if n%3 == 0 {
					return what
				}
				return pgtest.Pass
			}}
			f.begin(1, v.adjust, patient)
			f.finish(f.startOn(f.src, pgtest.Wired(f.t, f.pool, v.mode, w, nil), f.handle))
			if w.Cuts.Load() < 3 {
				f.t.Errorf("only %d connections were cut", w.Cuts.Load())
			}
			if !f.mix.Ordered {
				f.parkedAs(nil)
			}
		}})
	}
	return rows
}

// late lets the client believe that its second COMMIT is lost, while the old backend still has the
// transaction open: the next run waits for it. Then the old one commits after all, or does not. A
// transaction keeps no run waiting if it has failed before its COMMIT, for example because of a
// duplicate beside it, or because its backend was so slow that the next run came first. So later
// COMMITs are lost too, until one does.
func (f *faults) late(what pgtest.Cut) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	var met atomic.Bool
	f.begin(1, positionsOnly, patient)
	w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
		if n >= 2 && n <= 12 && !met.Load() {
			return what
		}
		return pgtest.Pass
	}}
	stop := f.startOn(f.src, pgtest.Wired(f.t, f.pool, pgx.QueryExecModeCacheStatement, w, hold), f.handle)
	f.t.Cleanup(release)
	until(f.t, "the next run to wait for the old one", func() bool { return f.waiters() > 0 })
	met.Store(true)
	release()
	f.finish(stop)
	f.parkedAs(nil)
}

// drainPasses returns when a drain that begins now has had to give up: a partition whose handlers
// only wait for the end of their context is the clock.
func (f *faults) drainPasses() {
	clock := newRig(f.t, 1)
	clock.numbered(0, 1)
	in := make(chan struct{})
	var once sync.Once
	stop := clock.start(func(ctx context.Context, _ consumer.Tx, _ *consumer.Message) error {
		once.Do(func() { close(in) })
		<-ctx.Done()
		return ctx.Err()
	}, f.cfg)
	pgtest.Receive(f.t, patience, "in", in)
	stop()
}

// killsPostgres kills the server in the middle of handlers and of whatever else is under way,
// several times.
func (f *faults) killsPostgres(adjust ...func(*faults)) {
	server := f.server()
	f.begin(1, adjust...)
	f.src.FetchLimit = 5
	const kills = 3
	var asked atomic.Int64
	due := make(chan struct{}, kills)
	stop := f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		err := f.handle(ctx, tx, m)
		if n := asked.Load(); n < kills && f.calls.Load() >= 15*(n+1) && asked.CompareAndSwap(n, n+1) {
			due <- struct{}{}
		}
		return err
	})
	for range kills {
		<-due
		if err := server.Kill(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		if err := server.Restart(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
	f.finish(stop)
	if !f.mix.Ordered {
		f.parkedAs(nil)
	}
}

// failsOver puts the server back to where it was some transactions ago, while the owner lives: as
// after a failover to a standby that lacks them. Kafka's offset is ahead by then.
func (f *faults) failsOver(adjust ...func(*faults)) {
	server := f.server()
	f.lossy = true
	f.begin(1, adjust...)
	stop := f.start(f.handle)
	f.done()
	before := counted(f.t, f.pool, f.mix)
	restart := func(meanwhile ...string) {
		f.t.Helper()
		if err := server.Kill(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		for i := 0; i < len(meanwhile); i += 2 {
			if out, err := exec.CommandContext(
				f.t.Context(),
				meanwhile[i],
				strings.Fields(meanwhile[i+1])...,
			).CombinedOutput(); err != nil {
				f.t.Fatalf("%s: %v\n%s", meanwhile[i], err, out)
			}
		}
		if err := server.Restart(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
	data := filepath.Join(server.Dir, "data")
	standby := filepath.Join(server.Dir, "standby")
	restart("cp", "-a "+data+" "+standby)
	fates := []string{"", "fail:1"}
	for i := range 6 {
		f.mix.Add(0, "k0", fmt.Sprint("k0-lost", i), "call")
		f.mix.Add(0, "k1", fmt.Sprint("k1-lost", i), fates[i%2])
	}
	f.done()
	if f.takenOver { // the raise is lost too
		epoch := f.count(`select epoch from onlyonce.leases`)
		f.src.Rebalance()
		until(f.t, "a take-over", func() bool { return f.count(`select epoch from onlyonce.leases`) > epoch })
	}
	until(f.t, "the offset in Kafka", func() bool { at, _ := f.log.Committed("stock", 0); return at == f.mix.End(0) })
	lost := counted(f.t, f.pool, f.mix).Effects - before.Effects
	restart("rm", "-r "+data, "mv", standby+" "+data)
	f.mix.Add(0, "k0", "after", "call")
	f.finish(stop, "; ", lost, " effects were lost and done again")
	if lost < 9 {
		f.t.Errorf("%d effects were lost", lost)
	}
}
