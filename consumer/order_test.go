package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// keyed appends a message with an ordering key.
func (r *rig) keyed(partition int32, key, value string) {
	r.log.AppendMessage(partition, &consumer.Message{Key: []byte(key), Value: []byte(value), Headers: []consumer.Header{id(value)}})
}

func orderConfig() consumer.Config {
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	return cfg
}

// keyInOrder fails the test unless the effects whose value begins with prefix were written in the
// order of their numbers.
func (r *rig) keyInOrder(prefix string, n int) {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `select value from effects where value like $1 || '-%' order by n`, prefix)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			r.t.Fatal(err)
		}
		got = append(got, strings.TrimPrefix(v, prefix+"-"))
	}
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Errorf("effects of %s: %v, want %v", prefix, got, want)
	}
}

// failing fails for the given values as often as given, or always if that is negative.
type failing struct {
	mu    sync.Mutex
	times map[string]int
}

func (f *failing) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	f.mu.Lock()
	n := f.times[string(m.Value)]
	if n > 0 && m.Attempt > 0 {
		f.times[string(m.Value)] = n - 1
	}
	f.mu.Unlock()
	if n != 0 {
		return errBoom
	}
	return queued(ctx, tx, m)
}

func (f *failing) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.times)
}

// D4: a message that fails is retried from the database, and later ones of its ordering key wait
// for it, in order. No other message waits.
func TestD4SickKeyIsRetriedFromTheDatabaseInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for i := range 5 {
		for _, k := range []string{"a", "b", "c"} {
			r.keyed(0, k, fmt.Sprintf("%s-%d", k, i))
		}
	}
	h := &failing{times: map[string]int{"b-1": 2, "b-3": 1, "c-0": 1}}
	stop := r.start(h.handle, orderConfig())
	r.reaches(0, 15)
	until(t, "all applied", func() bool { return r.count(`select count(*) from effects`) == 15 })
	stop()
	for _, k := range []string{"a", "b", "c"} {
		r.keyInOrder(k, 5)
	}
	if n := r.count(`select count(*) from onlyonce.parked where settled_at is null`); n != 0 {
		t.Errorf("%d parked messages are left", n)
	}
	if n := r.count(`select count(*) from onlyonce.parked where state = 'resolved'`); n < 4 {
		t.Errorf("%d messages went through the database, want those of b from 1 on at least", n)
	}
}

// D2: the server refuses a parked message, again and again, and is away when that is to be written.
// None of these attempts is the message's fault: it is not parked as crashed.
func TestD2OutageWhileAParkedMessageIsTried(t *testing.T) {
	t.Parallel()
	const outages = 6 // more than the limit allows
	r := newRig(t, 1)
	r.keyed(0, "a", "a-0")
	w := &pgtest.Wire{Statement: consumer.FailParkedSQL, At: func(n int32) pgtest.Cut {
		if n > outages {
			return pgtest.Pass
		}
		return pgtest.Unsent
	}}
	pool := pgtest.Wired(t, r.pool, pgx.QueryExecModeCacheStatement, w, make(chan struct{}))
	var runs atomic.Int32
	stop := r.startOn(r.src, pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		switch n := runs.Add(1); {
		case n <= 2: // in a batch and alone: it is parked
			return errBoom
		case n <= 2+outages:
			_, err := tx.Exec(ctx, `do $$ begin raise exception using errcode = '53200'; end $$`)
			return err
		}
		return effect(ctx, tx, m)
	}, orderConfig())
	until(t, "it is applied", func() bool { return r.count(`select count(*) from effects`) == 1 })
	stop()
	if n := w.Cuts.Load(); n != outages {
		t.Errorf("%d outages, want %d", n, outages)
	}
	if n := r.count(`select count(*) from onlyonce.parked where state = 'resolved'`); n != 1 {
		t.Errorf("%d rows are resolved, want 1", n)
	}
}

// D4: a message whose attempts are used up waits for an operator, and later ones of its key wait
// for it. A later owner keeps to that.
func TestD4DeadHeadKeepsItsKeyBlocked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	h := &failing{times: map[string]int{"a-1": -1}}
	for i := range 4 {
		r.keyed(0, "a", fmt.Sprintf("a-%d", i))
		r.keyed(0, "b", fmt.Sprintf("b-%d", i))
	}
	stop := r.start(h.handle, orderConfig())
	r.reaches(0, 8)
	until(t, "a dead head", func() bool {
		return r.count(`select count(*) from onlyonce.parked where state = 'waiting' and reason = 'exhausted' and attempts = 3`) == 1
	})
	stop()
	r.keyed(0, "a", "a-4")
	stop = r.start(h.handle, orderConfig())
	r.reaches(0, 9)
	r.keyInOrder("b", 4)
	r.keyInOrder("a", 1)
	if n := r.count(`select count(*) from onlyonce.parked where state = 'blocked'`); n != 3 {
		t.Errorf("%d blocked messages, want 3", n)
	}
	h.heal()
	// As `parked redrive` does.
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp() where state = 'waiting'`)
	until(t, "all applied", func() bool { return r.count(`select count(*) from effects`) == 9 })
	stop()
	r.keyInOrder("a", 5)
}

// D4: once the database has said that a key is blocked, its batches ask before their handlers run.
// A batch that the server refuses runs twice, and there is at most one.
func TestD4BlockedKeyIsRemembered(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	h := &failing{times: map[string]int{"a-0": -1}}
	const each = 8
	for i := range each {
		r.keyed(0, "a", fmt.Sprintf("a-%d", i))
		r.keyed(0, "b", fmt.Sprintf("b-%d", i))
	}
	var twice atomic.Int32
	cfg := orderConfig()
	cfg.BatchSize = 2
	cfg.Hooks.AttemptEnd = func(_ context.Context, d consumer.BatchResult, _ error) {
		if d.Fallback {
			twice.Add(1)
		}
	}
	stop := r.start(h.handle, cfg)
	r.reaches(0, 2*each)
	stop()
	r.keyInOrder("b", each)
	if n := twice.Load(); n > 1 {
		t.Errorf("%d batches ran twice", n)
	}
	if n := r.count(`select count(*) from onlyonce.parked where state = 'blocked'`); n != each-1 {
		t.Errorf("%d blocked messages, want %d", n, each-1)
	}
}

// D4, I6: whatever fails, however often, and however often the partition changes hands, each key's
// effects are in order and single.
func TestD4OrderHoldsThroughFailuresAndTakeOvers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	const keys, each = 6, 25
	h := &failing{times: map[string]int{}}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range each {
		for k := range keys {
			v := fmt.Sprintf("k%d-%d", k, i)
			r.keyed(int32(k%2), fmt.Sprintf("k%d", k), v)
			if rng.IntN(8) == 0 {
				h.times[v] = 1 + rng.IntN(2)
			}
			if rng.IntN(20) == 0 {
				// A copy: a duplicate even while the first one is parked.
				r.keyed(int32(k%2), fmt.Sprintf("k%d", k), v)
			}
		}
	}
	stop := r.start(h.handle, orderConfig())
	for n := range 8 {
		want := min(keys*each, 15*(n+1))
		until(t, "progress", func() bool { return r.count(`select count(*) from effects`) >= want })
		if n%3 == 2 {
			stop()
			stop = r.start(h.handle, orderConfig())
		} else {
			r.src.Rebalance()
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.dump(`
select id,
       state,
       reason,
       attempts,
       "offset",
       order_key,
       next_attempt_at,
       clock_timestamp(),
       left(error, 80)
  from onlyonce.parked where settled_at is null`)
		}
	})
	until(t, "all applied", func() bool { return r.count(`select count(*) from effects`) >= keys*each })
	stop()
	for k := range keys {
		r.keyInOrder(fmt.Sprintf("k%d", k), each)
	}
	if n := r.count(`select count(*) from onlyonce.parked where settled_at is null`); n != 0 {
		t.Errorf("%d parked messages are left", n)
	}
}

// D4: whichever transaction commits later makes a waiting row due: the one that settles the earlier
// row, or the one that parks the later one. If the process dies in between, the next owner does it.
func TestD4BlockedRowIsFoundByTheNextOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.keyed(0, "a", "a-0")
	h := &failing{times: map[string]int{"a-0": -1}}
	cfg := orderConfig()
	cfg.MaxAttempts = 1
	stop := r.start(h.handle, cfg)
	r.reaches(0, 1)
	r.keyed(0, "a", "a-1")
	r.reaches(0, 2)
	stop()
	// The row is settled, but the process died before it promoted the next one.
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where state = 'waiting'`)
	stop = r.start(h.handle, cfg)
	until(t, "a-1 applied", func() bool { return r.count(`select count(*) from effects where value = 'a-1'`) == 1 })
	stop()
}

// T6: a retried handler's COMMIT is refused like any other's: its first statement settles the row,
// and needs the seal (D4).
func TestT6CommitInARetriedHandlerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.keyed(0, "a", "a-0")
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Attempt < 2 {
			return errBoom
		}
		_ = effect(ctx, tx, m)
		_, err := tx.Exec(ctx, `do $$ begin commit; end $$`)
		return err
	}, orderConfig())
	until(t, "parked", func() bool { return r.count(`select count(*) from onlyonce.parked where state = 'waiting'`) == 1 })
	stop()
	if n := r.count(`select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
	// If a COMMIT reaches the server nevertheless, the trigger on the row refuses it.
	r.exec(`update onlyonce.parked set state = 'retrying'`)
	if _, err := r.pool.Exec(
		t.Context(),
		`update onlyonce.parked set state = 'resolved', settled_at = clock_timestamp()`,
	); guard.SQLState(err) != "OO002" {
		t.Errorf("settled without the seal: %v", err)
	}
}

// F1: an attempt at a parked row by an owner that was replaced commits nothing (D4).
func TestF1RetryOfAReplacedOwnerIsFenced(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.keyed(0, "a", "a-0")
	in := make(chan struct{})
	out := make(chan struct{})
	var once sync.Once
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Attempt < 2 {
			return errBoom
		}
		once.Do(func() {
			close(in)
			<-out
		})
		return queued(ctx, tx, m)
	}, orderConfig())
	pgtest.Receive(t, patience, "in", in)
	// The raise waits for the transaction: the row's settlement has taken the lease. So this one is
	// made to look as if it came before.
	r.exec(`
select pg_terminate_backend(pid)
  from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`)
	until(t, "a new epoch", func() bool {
		_, err := r.pool.Exec(t.Context(), `select onlyonce.raise_epoch(id, epoch, gen_random_uuid()) from onlyonce.leases`)
		return err == nil
	})
	close(out)
	until(t, "applied by the next owner", func() bool { return r.count(`select count(*) from effects`) == 1 })
	stop()
	r.once("a-0")
}

// O3: an attempt settles the row of its own message only. A failover may lose the row between the
// moment at which the attempt is counted and the transaction, and the server then gives the row's
// id to another message.
func TestO3RetryOfAMessageThatAFailoverLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.keyed(0, "a", "a-0")
	var lost atomic.Bool
	cfg := orderConfig()
	cfg.Hooks.AttemptStart = func(ctx context.Context, _ consumer.Batch) context.Context {
		if !lost.Load() && r.count(`select count(*) from onlyonce.parked`) == 1 { // the attempt at the row is counted
			r.exec(`update onlyonce.parked set "offset" = 77`)
			lost.Store(true)
		}
		return ctx
	}
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !lost.Load() {
			return errBoom
		}
		return effect(ctx, tx, m)
	}, cfg)
	until(t, "the row is settled", func() bool { return r.count(`select count(*) from onlyonce.parked where settled_at is not null`) == 1 })
	stop()
	if n := r.count(`select count(*) from effects where off = 77`); n != 1 || r.count(`select count(*) from effects`) != 1 {
		t.Errorf("%d effects of the message whose row it is now, want that one and no other", n)
	}
}

// F1, T6: a parked row is settled only by its cursor's owner, in the attempt that was counted, and
// with the seal, whichever program runs the SQL.
func TestF1SettlingNeedsOwnerAttemptAndSeal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.keyed(0, "a", "a-0")
	stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error {
		return consumer.RetryAfter(errBoom, time.Hour)
	}, orderConfig())
	until(t, "parked", func() bool { return r.count(`select count(*) from onlyonce.parked where state = 'retrying'`) == 1 })
	stop()
	const settle = `
select onlyonce.settle(
  l.id,
  l.epoch,
  l.nonce,
  p.id,
  p.attempts,
  null,
  null,
  '1s',
  '1s',
  '1s'
) from onlyonce.leases l, onlyonce.parked p`
	for _, c := range []struct {
		name, sql, seal, code string
	}{
		{"another epoch", strings.Replace(settle, "l.epoch", "l.epoch - 1", 1), "", "OO001"},
		{"another nonce", strings.Replace(settle, "l.nonce", "gen_random_uuid()", 1), "", "OO001"},
		{"another attempt", strings.Replace(settle, "p.attempts", "p.attempts - 1", 1), "", "OO001"},
		{"no seal", settle, "", "OO002"},
		{"all in order", settle, "select onlyonce.seal()", ""},
		{"settled", settle, "select onlyonce.seal()", "OO001"},
	} {
		err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), c.sql)
			if err == nil && c.seal != "" {
				_, err = tx.Exec(t.Context(), c.seal)
			}
			return err
		})
		if guard.SQLState(err) != c.code || (err == nil) != (c.code == "") {
			t.Errorf("%s: %v, want %q", c.name, err, c.code)
		}
	}
}

// K7: a copy of a parked message is a duplicate even when retention has removed its key, on both
// paths of the claim.
func TestK7CopyOfAParkedMessageWithoutItsKeyIsADuplicate(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{false, true} {
		r := newRig(t, 1)
		r.log.Append(0, "v", id("v"))
		h := &failing{times: map[string]int{"v": -1}}
		cfg := testConfig()
		cfg.ClaimFirst = first
		stop := r.start(h.handle, cfg)
		r.reaches(0, 1)
		stop()
		r.exec(`delete from onlyonce.inbox`)
		h.heal()
		r.log.Append(0, "v", id("v"))
		r.log.Append(0, "w", id("w"))
		stop = r.start(h.handle, cfg)
		r.reaches(0, 3)
		r.once("w")
		// D4: the parked one itself is applied, although a copy has put its key back.
		r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
		until(t, "applied", func() bool { return r.count(`select count(*) from effects`) == 2 })
		stop()
		r.once("v", "w")
	}
}

// K7: a replay does not handle a copy of a parked message, whose first handling is still to come.
func TestK7ReplayLeavesACopyOfAParkedMessageAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "v", id("v"))
	r.log.Append(0, "w", id("w"))
	r.log.Append(0, "v", id("v"))
	h := &failing{times: map[string]int{"v": -1}}
	stop := r.start(h.handle, testConfig())
	r.reaches(0, 3)
	stop()
	h.heal()
	// As `onlyonce replay -from 1` does.
	r.exec(`with c as (update onlyonce.cursors set run = run + 1,
                                                   run_start = 1,
                                                   replay_no = 1,
                                                   replay_until = 3,
                                                   replay_resume = 3
                                                 returning id)
  update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`)
	stop = r.start(h.handle, testConfig())
	r.reaches(0, 3)
	until(t, "w again", func() bool { return r.count(`select count(*) from effects where value = 'w'`) == 2 })
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
	until(t, "v", func() bool { return r.count(`select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
	stop()
	if n := r.count(`select count(*) from effects where value = 'v'`); n != 1 {
		t.Errorf("the parked message has %d effects, want 1", n)
	}
}

// D5: a message whose id is found to be another one than when it was parked is not applied: its
// calls would go out under other keys.
func TestD5RedriveUnderAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "v", id("v"), consumer.Header{Name: "other", Value: []byte("x")})
	h := &failing{times: map[string]int{"v": -1}}
	stop := r.start(h.handle, testConfig())
	r.reaches(0, 1)
	stop()
	h.heal()
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
	cfg := testConfig()
	cfg.Key = consumer.HeaderKey("other")
	stop = r.start(h.handle, cfg)
	until(t, "refused", func() bool {
		return r.count(`select count(*) from onlyonce.parked where state = 'waiting' and error like '%another id%'`) == 1
	})
	stop()
	r.once()
}

// T9: a due time that was written while the clock was ahead is over: the message, and its ordering
// key, do not wait for it.
func TestT9DueTimeOfTheFuture(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.Backoff.Min = time.Hour
	cfg.Backoff.Max = time.Hour
	cfg.MaxAttempts = 10
	r.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("a-1"), Headers: []consumer.Header{id("a-1")}})
	r.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("a-2"), Headers: []consumer.Header{id("a-2")}})
	var well atomic.Bool
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !well.Load() {
			return errBoom
		}
		return effect(ctx, tx, m)
	}, cfg)
	r.reaches(0, 2)
	until(t, "its next attempt is in an hour or so", func() bool {
		return r.count(`
select count(*)
  from onlyonce.parked where state = 'retrying' and next_attempt_at > clock_timestamp() + interval '20 minutes'`) == 1
	})
	well.Store(true)
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() + interval '6 days' where state = 'retrying'`)
	until(t, "both are applied", func() bool { return r.count(`select count(*) from effects`) == 2 })
	stop()
	r.once("a-1", "a-2")
}

// T9: the clock was a day ahead when a message failed. It is right again: the message waits its own
// wait, and its ordering key with it.
func TestT9WaitCountedWhileTheClockWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.MaxAttempts = 1000
	cfg.Backoff.Min = time.Second
	cfg.Backoff.Max = time.Second
	r.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("a-1"), Headers: []consumer.Header{id("a-1")}})
	r.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("a-2"), Headers: []consumer.Header{id("a-2")}})
	stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error { return errBoom }, cfg)
	r.reaches(0, 2)
	stop()
	n := r.count(`select count(*) from onlyonce.parked where timed_at between next_attempt_at - interval '1 minute' and clock_timestamp()`)
	if n != 1 {
		t.Errorf("%d rows have the time at which they were given their due time", n)
	}
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() + interval '1 day 1 second' where state = 'retrying'`)
	r.exec(`update onlyonce.parked set timed_at = clock_timestamp() + interval '1 day' where state = 'retrying'`)
	report, err := ops.Status(t.Context(), r.pool, ops.StatusQuestion{})
	if err != nil ||
		!slices.ContainsFunc(report.Needs, func(n ops.Need) bool { return n.Kind == "clock" && strings.Contains(n.Text, "1 parked row") }) {
		t.Errorf("status: %+v, %v", report.Needs, err)
	}
	stop = r.start(effect, cfg)
	until(t, "both are applied", func() bool { return r.count(`select count(*) from effects`) == 2 })
	stop()
	r.once("a-1", "a-2")
}

// A halt is logged when it begins and when it changes, but not each time the partition checks
// again. It says what to do about two services before it gives the command that moves the cursor.
func TestHaltIsLoggedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	stop := r.start(effect, testConfig())
	r.reaches(0, 1)
	stop()
	r.src.GroupID = "other"
	var mu sync.Mutex
	var log strings.Builder
	cfg := testConfig()
	cfg.Logger = slog.New(slog.NewTextHandler(&locked{mu: &mu, w: &log}, nil))
	stop = r.start(effect, cfg)
	until(t, "three looks", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.halts) >= 3
	})
	stop()
	mu.Lock()
	defer mu.Unlock()
	text := log.String()
	if n := strings.Count(text, "partition halted"); n != 1 {
		t.Fatalf("%d lines", n)
	}
	// The other lines are about the test's server, for example that its fsync is off.
	for line := range strings.Lines(text) {
		if strings.Contains(line, "partition halted") {
			text = line
		}
	}
	for _, none := range []string{"retained_until=0001", "shard="} {
		if strings.Contains(text, none) {
			t.Errorf("%s is in %s", none, text)
		}
	}
	services := strings.Index(text, "if these are two services, change Config.Scope")
	command := strings.Index(text, "onlyonce cursor adopt")
	if services < 0 || command < services {
		t.Errorf("%s", text)
	}
}

// K1: a message that still has no key when it is redriven is parked for that reason again. The hook
// and the row agree.
func TestK1RedrivenMessageWithoutKeyKeepsItsReason(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "nameless")
	stop := r.start(effect, testConfig())
	r.reaches(0, 1)
	r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp(), attempts = 0`)
	until(t, "parked again", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.parked) == 2
	})
	stop()
	told := r.parked[1].Reason
	kept := r.count(`select count(*) from onlyonce.parked where reason = 'no-key' and state = 'waiting'`)
	if told != "no-key" ||
		kept != 1 {
		t.Errorf("told as %s, %d rows of reason no-key", told, kept)
	}
}
