package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// changes changes the class of horizon of the rig's scope.
func (r *rig) changes(class string) error {
	_, err := ops.ChangeClass(r.t.Context(), r.pool, ops.By{Reason: "a test"}, ops.ClassInput{Scope: "stock", Class: class})
	return err
}

// held lists the segments of the consumers' rings that hold an id, without their slots.
func (r *rig) held(id string) string {
	r.t.Helper()
	var all string
	err := r.pool.QueryRow(
		r.t.Context(),
		`select coalesce(string_agg(regexp_replace(segment, '_keys_\d$', ''), ' ' order by segment), '') from onlyonce.inbox
		where key = onlyonce.key('', 'stock', $1)`,
		id,
	).Scan(&all)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func classConfig(h consumer.Horizon) consumer.Config {
	cfg := testConfig()
	cfg.Horizon = h
	return cfg
}

// K10: a scope claims in the ring of its class alone, and finds copies there, on both paths.
func TestK10KeysAreInTheRingOfTheirClass(t *testing.T) {
	t.Parallel()
	for class, want := range map[consumer.Horizon]string{
		consumer.HorizonStandard: "consumer",
		consumer.HorizonShort:    "consumer_short",
		consumer.HorizonLong:     "consumer_long",
	} {
		for _, first := range []bool{false, true} {
			r := newRig(t, 1)
			values := r.numbered(0, 3)
			cfg := classConfig(class)
			cfg.ClaimFirst = first
			stop := r.start(queued, cfg)
			r.reaches(0, 3)
			r.numbered(0, 3)
			r.reaches(0, 6)
			stop()
			r.once(values...)
			if got := r.held("p0-1"); got != want {
				t.Errorf("class %v: the key is in %q", class, got)
			}
		}
	}
}

// K10: a parked message that is tried again has its key in the ring of its scope's class, and so
// has one that an operator gives up.
func TestK10ParkedMessagesClaimInTheirClass(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		r := newRig(t, 1)
		r.log.Append(0, "v", id("v"))
		h := &failing{times: map[string]int{"v": -1}}
		stop := r.start(h.handle, classConfig(consumer.HorizonLong))
		r.reaches(0, 1)
		r.exec(`delete from onlyonce.inbox`)
		h.heal()
		if discard {
			if _, err := ops.Discard(
				t.Context(),
				r.pool,
				ops.By{Reason: "a test"},
				ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock"}},
			); err != nil {
				t.Fatal(err)
			}
		} else {
			r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
		}
		until(t, "the row to be settled", func() bool {
			return r.count(`select count(*) from onlyonce.parked where settled_at is null`) == 0
		})
		if got := r.held("v"); got != "consumer_long" {
			t.Errorf("discard %t: the key is in %q", discard, got)
		}
		r.log.Append(0, "v", id("v"))
		r.reaches(0, 2)
		stop()
		if n := r.count(`select count(*) from effects`); n > 1 || discard && n > 0 {
			t.Errorf("discard %t: %d effects", discard, n)
		}
	}
}

// K10: a consumer whose Config.Horizon is not the class of its scope halts, and names the command.
// With that it goes on, and copies of what was claimed before are duplicates.
func TestK10TwoConsumersOfAScope(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	stop := r.start(queued, testConfig())
	r.reaches(0, 3)
	stop()
	stop = r.start(queued, classConfig(consumer.HorizonLong))
	h := r.halted()
	if h.Reason != consumer.HaltClass || !strings.Contains(h.Error(), "onlyonce inbox class -scope stock -class long -reason WHY") {
		t.Errorf("halt: %v", h)
	}
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	r.numbered(0, 3)
	r.log.Append(0, "new", id("new"))
	r.reaches(0, 7)
	stop()
	r.once(append(values, "new")...)
	was := r.held("p0-1")
	is := r.held("new")
	if was != "consumer" || is != "consumer consumer_long" {
		t.Errorf("a key from before is in %q, a new one in %q", was, is)
	}
}

// K10: while two processes work on a topic, one with the old class and one with the new one, the
// class is changed. Copies in the other partition find what was claimed before, meanwhile and
// after.
func TestK10ChangeUnderWork(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{false, true} {
		r := newRig(t, 2)
		var values []string
		var ends [2]int64
		put := func(from, n int) {
			for i := from; i < from+n; i++ {
				v := fmt.Sprintf("m%d", i)
				values = append(values, v)
				for p := range int32(2) { // a copy in each partition
					r.log.Append(p, v, id(v))
					ends[p]++
				}
			}
		}
		caught := func() {
			t.Helper()
			for p := range int32(2) {
				r.reaches(p, ends[p])
			}
		}
		cfg := testConfig()
		cfg.ClaimFirst = first
		put(0, 20)
		stop := r.start(queued, cfg)
		caught()
		put(20, 40)
		until(t, "the change", func() bool { return r.changes("short") == nil })
		put(60, 40)
		caught()
		stop()
		cfg.Horizon = consumer.HorizonShort
		stop = r.start(queued, cfg)
		put(100, 20)
		for i := range 60 { // copies of what was claimed in the old ring
			v := fmt.Sprintf("m%d", i)
			r.log.Append(1, v, id(v))
			ends[1]++
		}
		caught()
		stop()
		r.once(values...)
		if len(r.reasons()) > 0 {
			t.Errorf("parked: %v", r.reasons())
		}
	}
}

// K10: an owner that read the old class before the change, and is stopped until the change is over,
// commits nothing: it would have claimed in the old ring alone, and the next owner asks the new one
// alone.
func TestK10OwnerFromBeforeIsFencedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("first"))
	entered := make(chan struct{})
	resume := make(chan struct{})
	var once sync.Once
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "v" {
			once.Do(func() { close(entered); <-resume })
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 1)
	r.log.Append(0, "v", id("v"))
	pgtest.Receive(t, patience, "the handler is entered", entered) // all is queued, and nothing sent
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	close(resume)
	r.reaches(0, 2)
	stop()
	r.once("first", "v")
	if got := r.held("v"); got != "consumer consumer_long" {
		t.Errorf("the key is in %q", got)
	}
}

// K10: the change happens between the first read of the cursor and the raise of its epoch. The
// raise fails, and the owner that reads again claims in both rings.
func TestK10ChangeDuringATakeOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	stop := r.start(queued, testConfig())
	r.numbered(0, 1)
	r.reaches(0, 1)
	stop()
	var once sync.Once
	pool := pgtest.Wired(
		t,
		r.pool,
		pgx.QueryExecModeCacheStatement,
		&pgtest.Wire{Statement: consumer.TakeCursorSQL, At: func(int32) pgtest.Cut {
			once.Do(func() {
				if err := r.changes("long"); err != nil {
					t.Error(err)
				}
			})
			return pgtest.Pass
		}},
		nil,
	)
	r.log.Append(0, "v", id("v"))
	stop = r.startOn(r.src, pool, queued, testConfig())
	r.reaches(0, 2)
	stop()
	if got := r.held("v"); got != "consumer consumer_long" {
		t.Errorf("the key is in %q", got)
	}
}

// claimer is a session that claims a key in a transaction of its own.
type claimer struct {
	t    *testing.T
	conn *pgx.Conn
}

func newClaimer(t *testing.T, pool *pgxpool.Pool) *claimer {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &claimer{t, conn}
}

func (c *claimer) exec(sql string, args ...any) {
	c.t.Helper()
	if _, err := c.conn.Exec(c.t.Context(), sql, args...); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
}

func (c *claimer) claim(sql string, args ...any) (outcomes []int16, err error) {
	err = c.conn.QueryRow(c.t.Context(), sql, args...).Scan(&outcomes)
	return outcomes, err
}

const (
	oneClass = `select onlyonce.claim_class($1, array[onlyonce.key('', 'stock', $2)], array[$3::bigint])`
	bothSQL  = `select onlyonce.claim_both($1, $2, array[onlyonce.key('', 'stock', $3)], array[$4::bigint])`
)

// K10: a claim in both rings waits for an uncommitted claim in either, and is a duplicate if that
// commits and fresh if not. Whichever rings two claims ask, they meet in one.
func TestK10ClaimsMeetInEitherRing(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for i, c := range []struct {
		first  string
		commit bool
		want   int16
	}{{"standard", true, 1}, {"standard", false, 0}, {"long", true, 1}, {"long", false, 0}} {
		key := fmt.Sprintf("k%d", i)
		a := newClaimer(t, pool)
		b := newClaimer(t, pool)
		a.exec(`begin`)
		if got, err := a.claim(oneClass, c.first, key, 0); err != nil || got[0] != 0 {
			t.Fatal(got, err)
		}
		got := make(chan int16, 1)
		go func() {
			out, err := b.claim(bothSQL, "long", "standard", key, 0)
			if err != nil {
				t.Error(err)
				out = []int16{-1}
			}
			got <- out[0]
		}()
		waits(t, pool, b)
		if c.commit {
			a.exec(`commit`)
		} else {
			a.exec(`rollback`)
		}
		if o := <-got; o != c.want {
			t.Errorf("%+v: outcome %d", c, o)
		}
	}
}

// waits waits until a session waits for a lock.
func waits(t *testing.T, pool *pgxpool.Pool, c *claimer) {
	t.Helper()
	until(t, "the claim to wait", func() bool {
		var waiting bool
		err := pool.QueryRow(t.Context(), `select exists (select from pg_locks where pid = $1 and not granted)`,
			int32(c.conn.PgConn().PID())).Scan(&waiting)
		if err != nil { //nolint:gosec // a process id
			t.Fatal(err)
		}
		return waiting
	})
}

// K10: a key that one ring remembers for another payload leaves nothing in the other one, so that a
// later copy of the first message is no conflict.
func TestK10ConflictLeavesNoOtherFingerprint(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	c := newClaimer(t, pool)
	for _, in := range []string{"standard", "short"} {
		for _, claim := range []struct {
			of   int64
			want int16
		}{{1, 0}, {2, 2}, {1, 1}, {0, 1}} {
			sql := bothSQL
			args := []any{"short", "standard", in, claim.of}
			if claim.want == 0 {
				sql = oneClass
				args = []any{in, in, claim.of}
			}
			if got, err := c.claim(sql, args...); err != nil || got[0] != claim.want {
				t.Errorf("key in %s, payload %d: %v, %v; want %d", in, claim.of, got, err, claim.want)
			}
		}
		var n int
		if err := pool.QueryRow(t.Context(), `select count(*) from onlyonce.inbox where key = onlyonce.key('', 'stock', $1)`,
			in).Scan(&n); err != nil ||
			n != 1 {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	// Several keys at once, one of them twice: each result is at its place.
	got, err := c.claim(`
select onlyonce.claim_both('standard', 'short', array_agg(onlyonce.key('', 'stock', k)), array_agg(1::bigint))
  from unnest('{new,short,new,standard,other}'::text[]) k`)
	if err != nil || fmt.Sprint(got) != "[0 1 1 1 0]" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := c.claim(`select onlyonce.claim_both('standard', 'short', '{}', '{}')`); err != nil || len(got) != 0 {
		t.Errorf("no keys: %v, %v", got, err)
	}
}

// K10: claims in both rings of keys in any order, by scopes that change in either direction, do not
// deadlock.
func TestK10ClaimsInBothRingsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var all sync.WaitGroup
	var deadlocks sync.Map
	for worker := range 6 {
		c := newClaimer(t, pool)
		all.Go(func() {
			for i := range 40 {
				classes := [2]string{"standard", "long"}
				if worker%2 == 1 {
					classes = [2]string{"long", "standard"}
				}
				_, err := c.claim(
					`
select onlyonce.claim_both(
  $1,
  $2,
  array_agg(onlyonce.key('', 'stock', $3 || '-' || k) order by random()),
  array_agg(0::bigint)
)
  from generate_series(1, 20) k`,
					classes[0],
					classes[1],
					fmt.Sprint(i),
				)
				var pg *pgconn.PgError
				if errors.As(err, &pg) && pg.Code == "40P01" {
					deadlocks.Store(err.Error(), true)
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	deadlocks.Range(func(err, _ any) bool { t.Error(err); return true })
}

// K10: a change is over when the old ring has forgotten what was claimed until then. Until then
// both rings are asked and no other change is possible; afterwards the new ring alone, and a
// process of the old class halts. A cursor keeps no segment of the old ring longer than that.
//
// Not parallel: rotation waits for all transactions of the server.
func TestK10ChangePasses(t *testing.T) {
	r := newRig(t, 1)
	rotator, err := ring.New(r.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	o := &outage{rig: r}
	const horizon = 7 * time.Hour
	r.exec(`update onlyonce.rings set horizon = '7 hours' where name = 'consumer_keys'`)
	passes := func(d time.Duration) {
		t.Helper()
		o.passes(d)
		r.exec(`update onlyonce.scopes set class_changed_at = class_changed_at - make_interval(secs => $1)`, d.Seconds())
		until(t, "rotation comes to rest", func() bool {
			out, err := rotator.Step(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return out.Action == ring.Idle || out.Action == ring.Needed
		})
	}
	r.log.Append(0, "old", id("old"))
	stop := r.start(queued, testConfig())
	r.reaches(0, 1)
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	r.log.Append(0, "meanwhile", id("meanwhile"))
	r.reaches(0, 2)
	o.says(1)
	passes(2 * time.Hour) // the segment is closed
	if got := r.held("meanwhile"); got != "consumer consumer_long" {
		t.Errorf("a key of meanwhile is in %q", got)
	}
	if err := r.changes("short"); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("another change meanwhile: %v", err)
	}
	r.log.Append(0, "old", id("old"))
	r.log.Append(0, "later", id("later"))
	r.reaches(0, 4)
	r.once("old", "meanwhile", "later")
	stop()
	// The consumer is down. Its frontier keeps the segment in which "old" is, whatever the class.
	r.exec(`update onlyonce.frontiers set frontier = clock_timestamp()`)
	passes(horizon / 2)
	if n := r.count(`select count(*) from onlyonce.inbox where key = onlyonce.key('', 'stock', 'old')`); n != 1 {
		t.Fatalf("the key is forgotten: %d", n)
	}
	passes(horizon)
	if n := r.count(`select count(*) from onlyonce.inbox where key = onlyonce.key('', 'stock', 'old')`); n != 1 {
		t.Fatalf("the key is forgotten while its consumer is down: %d", n)
	}
	r.exec(`update onlyonce.frontiers set frontier = clock_timestamp()`)
	passes(0)
	passes(0)
	if n := r.count(`select count(*) from onlyonce.scopes where onlyonce.class_before(scope) is null`); n != 1 {
		t.Fatal("the change is not over")
	}
	// The segment of the old ring that was opened later has keys of the scope, and is not kept for
	// it.
	r.exec(`update onlyonce.frontiers set frontier = clock_timestamp() - interval '10 days'`)
	r.exec(`
update onlyonce.segments s
   set closed_at = clock_timestamp()
  from onlyonce.rings r where r.name = 'consumer_keys' and s.ring = r.name and s.slot = r.cur`)
	var why *string
	sql := strings.NewReplacer("SLOT", "(select cur from onlyonce.rings where name = 'consumer_keys')").Replace(ring.ConsumerKeys().Needed)
	if err := r.pool.QueryRow(t.Context(), sql).Scan(&why); err != nil || why != nil {
		t.Errorf("the old ring is kept: %v, %v", why, err)
	}
	r.exec(`
update onlyonce.segments s
   set closed_at = null from onlyonce.rings r where r.name = 'consumer_keys' and s.ring = r.name and s.slot = r.cur`)
	stop = r.start(queued, testConfig())
	if h := r.halted(); h.Reason != consumer.HaltClass {
		t.Errorf("a process of the old class: %v", h)
	}
	stop()
	r.log.Append(0, "meanwhile", id("meanwhile"))
	r.log.Append(0, "new", id("new"))
	stop = r.start(queued, classConfig(consumer.HorizonLong))
	r.reaches(0, 6)
	stop()
	r.once("old", "meanwhile", "later", "new")
	if got := r.held("new"); got != "consumer_long" {
		t.Errorf("a new key is in %q", got)
	}
	if err := r.changes("short"); err != nil {
		t.Errorf("a second change, after the first: %v", err)
	}
}

// K10: a cursor that is made while the class changes is not passed over. If its maker comes first,
// the change is refused, because that owner has not read the class yet; if the change comes first,
// the maker waits.
func TestK10CursorMadeDuringAChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	stop := r.start(queued, testConfig())
	r.reaches(0, 0)
	stop()
	create := func(c *claimer, topic string) error {
		_, err := c.conn.Exec(t.Context(), cursor.CreateSQL, "stock",
			topic, 0, nil, nil, nil, 0, "earliest", nil, names.Cursor("stock", topic, 0).String())
		return err
	}
	maker := newClaimer(t, r.pool)
	change := newClaimer(t, r.pool)
	maker.exec(`begin`)
	if err := create(maker, "made"); err != nil {
		t.Fatal(err)
	}
	changed := make(chan error, 1)
	go func() { changed <- r.changes("long") }()
	until(t, "the change to wait", func() bool {
		return r.count(`
select count(*)
  from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database()`) > 0
	})
	maker.exec(`commit`)
	if err := pgtest.Receive(t, patience, "changed", changed); !errors.Is(err, ops.ErrChanged) {
		t.Errorf("a change beside the maker of a cursor: %v", err)
	}
	change.exec(`begin`)
	change.exec(cursor.LockScopeRowSQL, "stock")
	made := make(chan error, 1)
	go func() { made <- create(maker, "made later") }()
	waits(t, r.pool, maker)
	change.exec(`commit`)
	if err := pgtest.Receive(t, patience, "made", made); err != nil {
		t.Error(err)
	}
}

// K9, K10: what is too old follows from the ring of the scope's class since it is in it, and from
// the ring before up to the change.
func TestK10TooOldFollowsTheClass(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`
insert into onlyonce.scopes (scope, topics, first_topic, created_at)
  values ('stock', '{orders}', 'orders', clock_timestamp() - interval '100 hours')`)
	forgets := func(name string, hours float64) {
		r.exec(
			`
update onlyonce.rings
   set forgotten = clock_timestamp() - make_interval(secs => 3600 * $2), horizon = '1 second' where name = $1`,
			name,
			hours,
		)
	}
	until := func(want string) {
		t.Helper()
		for _, function := range []string{"too_old", "forgotten"} {
			var got string
			err := r.pool.QueryRow(
				t.Context(),
				`select coalesce(round(extract(epoch from clock_timestamp() - onlyonce.`+function+`('stock')) / 3600)::text, 'none')`,
			).Scan(&got)
			if err != nil ||
				got != want {
				t.Errorf("%s is %s hours ago, want %s; %v", function, got, want, err)
			}
		}
	}
	forgets("consumer_long_keys", 30)
	forgets("consumer_short_keys", 1)
	until("none") // both are other scopes'
	forgets("consumer_keys", 50)
	until("50")
	r.exec(`
update onlyonce.scopes
   set class = 'short', class_before = 'standard', class_changed_at = clock_timestamp() - interval '20 hours'`)
	until("1")
	r.exec(`update onlyonce.scopes set class = 'long'`)
	until("50") // what long has forgotten until 30 hours ago was not of this scope
	forgets("consumer_keys", 10)
	until("20") // later keys are in the other ring too
	r.exec(`update onlyonce.rings set closed = '{}' where name = 'consumer_keys'`)
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() where ring = 'consumer_keys'`)
	if err := r.changes("short"); err != nil {
		t.Fatal(err)
	}
	forgets("consumer_long_keys", 30)
	until("20") // noted by the change, although the first ring is none of the two any more
}

// K10: what has no keys in the consumers' rings has no class.
func TestK10WhatHasNoClass(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	if err := r.changes("long"); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("an unknown scope: %v", err)
	}
	if err := r.changes("forever"); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("an unknown class: %v", err)
	}
	stop := r.start(queued, testConfig())
	r.reaches(0, 0)
	stop()
	if err := r.changes("standard"); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("the same class: %v", err)
	}
	for name, change := range map[string]func(*consumer.Config){
		"must be HorizonStandard": func(c *consumer.Config) { c.Horizon = 7 },
		"is set, and Key is not": func(c *consumer.Config) {
			c.Horizon = consumer.HorizonLong
			c.Key = nil
			c.PositionsOnly = true
		},
	} {
		cfg := testConfig()
		change(&cfg)
		if _, err := consumer.New(r.pool, &memlog.Source{Log: r.log, GroupID: "stock"}, consumer.HandlerFunc(queued), cfg); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// K10: the class changes when the database's clock has gone back to before the old ring's segment
// was opened. The change is not over for that: keys in that segment are found.
func TestK10ChangeAfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "v", id("v"))
	stop := r.start(queued, testConfig())
	r.reaches(0, 1)
	stop()
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() + interval '1 hour' where ring = 'consumer_keys' and slot = 0`)
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	r.log.Append(0, "v", id("v"))
	stop = r.start(queued, classConfig(consumer.HorizonLong))
	r.reaches(0, 2)
	stop()
	r.once("v")
}

// K7, K10: a copy of a parked message, whose key is forgotten, comes while the class changes. It
// leaves the key in both rings, so that a later copy is found when the change is over.
func TestK10CopyOfAParkedMessageMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	h := &failing{times: map[string]int{"v": -1}}
	r.log.Append(0, "v", id("v"))
	stop := r.start(h.handle, testConfig())
	r.reaches(0, 1)
	r.exec(`delete from onlyonce.inbox`) // the horizon has passed
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	r.log.Append(0, "v", id("v"))
	r.reaches(0, 2)
	if got := r.held("v"); got != "consumer consumer_long" {
		t.Errorf("the key is in %q", got)
	}
	h.heal()
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
	until(t, "the row to be settled", func() bool { return r.count(`select count(*) from onlyonce.parked where settled_at is null`) == 0 })
	stop()
	// The segment that was open at the change is forgotten. The key is in a later one.
	r.exec(`
update onlyonce.segments
   set opened_at = clock_timestamp() + interval '2 minutes' where ring = 'consumer_keys' and slot = 0`)
	r.log.Append(0, "v", id("v"))
	stop = r.start(h.handle, classConfig(consumer.HorizonLong))
	r.reaches(0, 3)
	stop()
	if n := r.count(`select count(*) from effects`); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// F10, K10: a replay that handles a message for the first time claims its key in the ring of the
// scope's class, and in both rings while the class changes. So a copy that comes afterwards is
// found.
func TestK10ReplayClaimsInTheClass(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]bool{"consumer_short": false, "consumer_long consumer_short": true} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.log.Append(0, "v", id("v"))
			cfg := classConfig(consumer.HorizonShort)
			cfg.Start = consumer.Latest()
			stop := r.start(queued, cfg)
			until(t, "the partition is taken over", func() bool {
				return r.count(`select count(*) from onlyonce.positions where next_offset = 1`) == 1
			})
			r.log.Append(0, "w", id("w"))
			r.reaches(0, 2)
			if change {
				if err := r.changes("long"); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := ops.Replay(
				t.Context(),
				r.pool,
				ops.By{Reason: "a test"},
				ops.ReplayInput{CursorName: place, From: 0, To: 1},
			); err != nil {
				t.Fatal(err)
			}
			until(t, "the replay", func() bool { return r.count(`select count(*) from effects where value = 'v'`) == 1 })
			if got := r.held("v"); got != want {
				t.Errorf("the key is in %q", got)
			}
			r.log.Append(0, "v", id("v"))
			r.reaches(0, 3)
			stop()
			r.once("v", "w")
		})
	}
}
