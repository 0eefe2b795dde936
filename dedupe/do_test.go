package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// effects is a database with a table in which repeated effects are possible.
func effects(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.DB(t)
	exec(t, pool, `create table effects (id text not null)`)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// writes is a function for Do that writes an effect and counts its runs.
func writes(id string, runs *atomic.Int32) func(context.Context, dedupe.GuardedTx) error {
	return func(ctx context.Context, tx dedupe.GuardedTx) error {
		runs.Add(1)
		_, err := tx.Exec(ctx, `insert into effects values ($1)`, id)
		return err
	}
}

func TestDoAppliesOnce(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	var runs atomic.Int32
	for i, want := range []dedupe.Outcome{dedupe.Fresh, dedupe.Duplicate, dedupe.Duplicate} {
		if got, err := dedupe.Do(t.Context(), pool, key("a", "1"), writes("a", &runs)); err != nil || got != want {
			t.Errorf("%d: %v, %v", i, got, err)
		}
	}
	// Another payload under the id is an error, and changes nothing.
	if got, err := dedupe.Do(t.Context(), pool, key("a", "2"), writes("a", &runs)); got != 0 || !errors.Is(err, dedupe.ErrConflict) {
		t.Errorf("%v, %v", got, err)
	}
	if n := count(t, pool, "effects"); n != 1 || runs.Load() != 1 {
		t.Errorf("%d effects of %d runs", n, runs.Load())
	}
	// With OnConflict, its writes commit, each time.
	cfg := dedupe.DoConfig{OnConflict: writes("aside", &runs)}
	for range 2 {
		if got, err := cfg.Do(t.Context(), pool, key("a", "2"), writes("a", &runs)); got != dedupe.Conflict || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
	if n := count(t, pool, "effects where id = 'aside'"); n != 2 || count(t, pool, "effects") != 3 {
		t.Errorf("%d conflicts are set aside", n)
	}
	// An error of the function takes the claim with it.
	boom := errors.New("boom")
	if got, err := dedupe.Do(t.Context(), pool, key("b", "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
		return errors.Join(writes("b", &runs)(ctx, tx), boom)
	}); got != 0 || !errors.Is(err, boom) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := dedupe.Do(t.Context(), pool, key("b", "1"), writes("b", &runs)); got != dedupe.Fresh ||
		err != nil ||
		count(t, pool, "effects where id = 'b'") != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// Copies at once: one applies the message, and the others wait for it.
func TestDoOfCopiesAtOnce(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	var runs, fresh atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := (dedupe.DoConfig{Timeouts: dedupe.Timeouts{Lock: patience}}).Do(
				t.Context(),
				pool,
				key("a", "1"),
				writes("a", &runs),
			)
			if err != nil {
				t.Error(err)
			}
			if got == dedupe.Fresh {
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	if n := count(t, pool, "effects"); n != 1 || runs.Load() != 1 || fresh.Load() != 1 {
		t.Errorf("%d effects, %d runs, %d fresh", n, runs.Load(), fresh.Load())
	}
}

// T4: the connection breaks at the claim or at COMMIT, before the server gets it or before its
// answer comes back. The next attempt's claim shows which.
func TestT4DoWhoseCommitHasNoAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at      string
		cut     pgtest.Cut
		outcome dedupe.Outcome
		runs    int32
	}{
		{"select onlyonce.claim(", pgtest.Unsent, dedupe.Fresh, 1},
		{"select onlyonce.claim(", pgtest.Unheard, dedupe.Fresh, 1},
		{"commit", pgtest.Unsent, dedupe.Fresh, 2},
		{"commit", pgtest.Unheard, dedupe.Duplicate, 1},
	} {
		base := effects(t)
		w := &pgtest.Wire{Statement: c.at, At: func(n int32) pgtest.Cut {
			if n == 1 {
				return c.cut
			}
			return pgtest.Pass
		}}
		pool := pgtest.Wired(t, base, pgx.QueryExecModeCacheDescribe, w, nil)
		var runs atomic.Int32
		got, err := dedupe.Do(t.Context(), pool, key("a", "1"), writes("a", &runs))
		good := err == nil &&
			got == c.outcome &&
			runs.Load() == c.runs &&
			w.Cuts.Load() == 1 &&
			count(t, base, "effects") == 1
		if !good {
			t.Errorf("%s, cut %d: %v, %v; %d runs, %d effects", c.at, c.cut, got, err, runs.Load(), count(t, base, "effects"))
		}
	}
}

// T4: COMMIT is still on its way when the client gives up. The next claim waits for the
// transaction. If no attempts are left, Do reports that the outcome is unknown, and the next
// delivery finds out.
func TestT4DoWhoseCommitComesLate(t *testing.T) {
	t.Parallel()
	for what, want := range map[pgtest.Cut]dedupe.Outcome{pgtest.Held: dedupe.Duplicate, pgtest.Dropped: dedupe.Fresh} {
		base := effects(t)
		hold := make(chan struct{})
		w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
			if n == 1 {
				return what
			}
			return pgtest.Pass
		}}
		pool := pgtest.Wired(t, base, pgx.QueryExecModeCacheDescribe, w, hold)
		var runs atomic.Int32
		short := dedupe.DoConfig{MaxAttempts: 2, Timeouts: dedupe.Timeouts{Commit: time.Second, Lock: 50 * time.Millisecond}}
		if got, err := short.Do(t.Context(), pool, key("a", "1"), writes("a", &runs)); got != 0 ||
			!errors.Is(err, dedupe.ErrOutcomeUnknown) {
			t.Errorf("cut %d: %v, %v", what, got, err)
		}
		if n := count(t, base, "effects"); n != 0 || runs.Load() != 1 {
			t.Errorf("cut %d: %d effects of %d runs", what, n, runs.Load())
		}
		close(hold)
		patient := dedupe.DoConfig{MaxAttempts: 100, Timeouts: dedupe.Timeouts{Lock: patience}}
		if got, err := patient.Do(t.Context(), pool, key("a", "1"), writes("a", &runs)); err != nil ||
			got != want ||
			count(t, base, "effects") != 1 {
			t.Errorf("cut %d, the next delivery: %v, %v", what, got, err)
		}
	}
}

// If the database asks to run a transaction again, Do runs it again, as a whole and a bounded
// number of times, even if the function swallows the error.
func TestDoRunsAgain(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	cfg := dedupe.DoConfig{MaxAttempts: 3, Backoff: dedupe.Backoff{Min: time.Millisecond}}
	for _, state := range []string{"40001", "40P01"} {
		for fails, want := range map[int32]dedupe.Outcome{2: dedupe.Fresh, 3: 0} {
			id := fmt.Sprint(state, fails)
			var runs atomic.Int32
			got, err := cfg.Do(t.Context(), pool, key(id, "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
				if err := writes(id, &runs)(ctx, tx); err != nil {
					return err
				}
				if runs.Load() <= fails {
					_, _ = tx.Exec(ctx, fmt.Sprintf(`do $$ begin raise exception using errcode = '%s'; end $$`, state))
				}
				return nil
			})
			good := got == want &&
				(err == nil) == (want != 0) &&
				runs.Load() == 3 &&
				(count(t, pool, "effects where id = '"+id+"'") == 1) == (want == dedupe.Fresh)
			if !good {
				t.Errorf("%s, %d times: %v, %v, %d runs", state, fails, got, err, runs.Load())
			}
		}
	}
	// An error that would be the same the next time is not retried.
	for name, sql := range map[string]string{"a constraint": `insert into effects values (null)`, "a COMMIT": `commit`} {
		var runs atomic.Int32
		got, err := cfg.Do(t.Context(), pool, key(name, "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
			if err := writes(name, &runs)(ctx, tx); err != nil {
				return err
			}
			_, _ = tx.Exec(ctx, sql)
			return nil
		})
		good := got == 0 &&
			err != nil &&
			runs.Load() == 1 &&
			count(t, pool, "effects where id = '"+name+"'") == 0
		if !good {
			t.Errorf("%s: %v, %v, %d runs", name, got, err, runs.Load())
		}
	}
}

// Bounds and isolation level hold in the function, and none of them stays on the connection.
func TestDoBounds(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	cfg := dedupe.DoConfig{
		Isolation: pgx.Serializable,
		Timeouts:  dedupe.Timeouts{Lock: 1234 * time.Millisecond, Statement: 5 * time.Minute, Idle: 6 * time.Minute},
	}
	show := func(q dedupe.AnyTx) (s string) {
		err := q.QueryRow(t.Context(), `select concat_ws(' ', current_setting('lock_timeout'), current_setting('statement_timeout'),
			current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_isolation'))`).Scan(&s)
		if err != nil {
			t.Error(err)
		}
		return s
	}
	before := show(pool)
	if _, err := cfg.Do(t.Context(), pool, key("a", "1"), func(_ context.Context, tx dedupe.GuardedTx) error {
		if got := show(tx); got != "1234ms 5min 6min serializable" {
			t.Error(got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if after := show(pool); after != before {
		t.Errorf("%s is left", after)
	}
	func() { // a panic gives the connection back, out of its transaction
		defer func() { _ = recover() }()
		_, _ = dedupe.Do(t.Context(), pool, key("p", "1"), func(context.Context, dedupe.GuardedTx) error { panic("boom") })
	}()
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are out", n)
	}
	if got, err := dedupe.Do(t.Context(), pool, key("p", "1"), func(context.Context, dedupe.GuardedTx) error {
		return nil
	}); got != dedupe.Fresh ||
		err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// A call takes its identity from the message, so it is the same at each run. OnConflict has no such
// message.
func TestDoEnqueues(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	call := func(ctx context.Context, tx dedupe.GuardedTx) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: []byte("1")})
	}
	for range 2 {
		if _, err := dedupe.Do(t.Context(), pool, key("a", "1"), call); err != nil {
			t.Error(err)
		}
	}
	if n := count(t, pool, "onlyonce.outbox_log"); n != 1 {
		t.Errorf("%d calls", n)
	}
	if _, err := (dedupe.DoConfig{OnConflict: call}).Do(t.Context(), pool, key("a", "2"), call); !errors.Is(err, outbox.ErrCall) {
		t.Errorf("a call of a conflict: %v", err)
	}
}

func TestDoFaults(t *testing.T) {
	t.Parallel()
	_, err := (dedupe.DoConfig{Isolation: "chaos", MaxAttempts: 101, Backoff: dedupe.Backoff{Min: time.Minute, Max: time.Second},
		Timeouts: dedupe.Timeouts{Lock: 1, Statement: 1, Idle: -1, Commit: 2 * time.Hour}}).Do(t.Context(), nil, dedupe.Key{}, nil)
	if !errors.Is(err, dedupe.ErrConfig) || !errors.Is(err, dedupe.ErrKey) {
		t.Fatal(err)
	}
	for _, field := range []string{
		"DoConfig.Isolation", "DoConfig.MaxAttempts", "DoConfig.Backoff.Max",
		"DoConfig.Timeouts.Lock", "DoConfig.Timeouts.Statement", "DoConfig.Timeouts.Idle",
		"DoConfig.Timeouts.Commit", "pool", "fn", "Scope", "ID", "Fingerprint",
	} {
		if !strings.Contains(err.Error(), ": "+field+": ") {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
