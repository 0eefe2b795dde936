package ops_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// loops claims ids in scopes that no consumer has, and rotates their rings.
type loops struct {
	*testing.T
	pool     *pgxpool.Pool
	rotators []*ring.Rotator // in the order of ring.Others
}

func newLoops(t *testing.T) *loops {
	l := &loops{T: t, pool: pgtest.DB(t)}
	for _, which := range ring.Others() {
		x, err := ring.New(l.pool, which, ring.Config{MaxBytes: math.MaxInt64, LockTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		l.rotators = append(l.rotators, x)
	}
	return l
}

// claim claims id 1 of each scope in one call, and returns the outcomes.
func (l *loops) claim(scopes ...string) string {
	l.Helper()
	var keys []dedupe.Key
	for _, scope := range scopes {
		keys = append(keys, dedupe.Key{Scope: scope, ID: "1", Fingerprint: dedupe.NoFingerprint})
	}
	var said []string
	err := pgx.BeginFunc(l.Context(), l.pool, func(tx pgx.Tx) error {
		outcomes, err := dedupe.ClaimAll(l.Context(), tx, keys)
		for _, o := range outcomes {
			said = append(said, o.String())
		}
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	return strings.Join(said, " ")
}

// in returns the rings that hold id 1 of a scope.
func (l *loops) in(scope string) string {
	return one[string](
		l.T,
		l.pool,
		`
select coalesce(string_agg(distinct regexp_replace(segment, '_keys_\d$', ''), ' '), '')
  from onlyonce.inbox where key = onlyonce.key('', $1, '1')`,
		scope,
	)
}

func (l *loops) change(scope, class string) error {
	_, err := ops.ChangeClass(l.Context(), l.pool, ops.By{Reason: "OPS-12"}, ops.ClassInput{Scope: scope, Class: class, Others: true})
	return err
}

// rotate rotates all rings until nothing is due.
func (l *loops) rotate() {
	l.Helper()
	for _, x := range l.rotators {
		for again := true; again; {
			did, err := x.Step(l.Context())
			if err != nil {
				l.Fatal(err)
			}
			again = did.Changed() || did.Action == ring.Waiting || did.Action == ring.Busy
		}
	}
}

// passes lets time pass, and the rings rotate.
func (l *loops) passes(d time.Duration) {
	l.Helper()
	for _, sql := range []string{`update onlyonce.segments set opened_at = opened_at - $1::interval, closed_at = closed_at - $1::interval`,
		`update onlyonce.horizons set changed_at = changed_at - $1::interval`} {
		if _, err := l.pool.Exec(l.Context(), sql, d); err != nil {
			l.Fatal(err)
		}
	}
	l.rotate()
}

const day = 24 * time.Hour

// K10: scopes that no consumer claims in have horizons of their own, in one database: a loop of a
// day, an endpoint of 72 hours, and one of 30 days. A copy is a duplicate until then, and new
// after. (What was new is claimed again, and forgotten a horizon after its segment is closed.)
func TestK10ThreeHorizons(t *testing.T) {
	t.Parallel()
	l := newLoops(t)
	if _, err := l.pool.Exec(t.Context(), `update onlyonce.rings set horizon = '72 hours' where name = 'standard_keys'`); err != nil {
		t.Fatal(err)
	}
	all := []string{"imports", "webhook/github", "webhook/stripe"}
	if err := errors.Join(l.change("imports", "short"), l.change("webhook/stripe", "long")); err != nil {
		t.Fatal(err)
	}
	l.claim("other")
	l.passes(4 * day)
	l.passes(4 * day) // the segment of standard_keys that was open at the changes is emptied
	if got := l.claim(all...); got != "fresh fresh fresh" {
		t.Fatal(got)
	}
	l.passes(5 * day) // all segments are closed
	if got := l.claim(all...); got != "duplicate duplicate duplicate" {
		t.Fatalf("before any horizon: %s", got)
	}
	for _, then := range []struct {
		after time.Duration
		want  string
	}{{25 * time.Hour, "fresh duplicate duplicate"}, {48 * time.Hour, "duplicate fresh duplicate"}, {28 * day, "fresh duplicate fresh"}} {
		l.passes(then.after)
		if got := l.claim(all...); got != then.want {
			t.Errorf("%v later: %s, and not %s", then.after, got, then.want)
		}
	}
}

// K10: while such a scope changes, its keys are in both rings, and then in the new one alone.
// Another change has to wait until then.
func TestK10OthersChange(t *testing.T) {
	t.Parallel()
	l := newLoops(t)
	before := dedupe.Key{Scope: "imports", ID: "before", Fingerprint: dedupe.NoFingerprint}
	claim := func(k dedupe.Key) (o dedupe.Outcome) {
		if err := pgx.BeginFunc(t.Context(), l.pool, func(tx pgx.Tx) (err error) {
			o, err = dedupe.Claim(t.Context(), tx, k)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return o
	}
	claim(before)
	if err := l.change("imports", "standard"); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("to the class that it has: %v", err)
	}
	if err := l.change("imports", "long"); err != nil {
		t.Fatal(err)
	}
	if got := claim(before); got != dedupe.Duplicate {
		t.Errorf("a copy of a key from before the change is %v", got)
	}
	if got := l.claim("imports", "other", "imports"); got != "fresh fresh duplicate" {
		t.Error(got)
	}
	a := l.in("imports")
	b := l.in("other")
	if a != "standard standard_long" || b != "standard" {
		t.Errorf("in %s, and %s", a, b)
	}
	if err := l.change("imports", "short"); !errors.Is(err, ops.ErrRefused) ||
		!strings.Contains(err.Error(), "standard_keys still remembers") {
		t.Errorf("a second change: %v", err)
	}
	r, err := ops.ExplainKey(t.Context(), l.pool, ops.ExplainQuestion{Scope: "imports", ID: "before"})
	good := err == nil &&
		len(r.Copies) == 2 &&
		r.Copies[1].Ring == "standard_long_keys" &&
		r.Copies[1].Duplicate
	if !good {
		t.Errorf("explain: %+v, %v", r, err)
	}
	l.passes(8 * day)
	l.passes(8 * day)
	if got := l.claim("imports"); got != "duplicate" || l.in("imports") != "standard_long" {
		t.Errorf("%s, in %s", got, l.in("imports"))
	}
	if err := l.change("imports", "short"); err != nil {
		t.Error(err)
	}
}

// K10: no segment of the ring before is announced between a change's time and its COMMIT, because
// claims still read the former class then.
func TestK10NoSegmentDuringAChange(t *testing.T) {
	t.Parallel()
	l := newLoops(t)
	l.claim("imports")
	if _, err := l.pool.Exec(t.Context(), `update onlyonce.segments set opened_at = opened_at - interval '2 days'`); err != nil {
		t.Fatal(err)
	}
	held, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := held.Exec(t.Context(), `lock table onlyonce.horizons in exclusive mode`); err != nil {
		t.Fatal(err)
	}
	changed := make(chan error, 1)
	go func() { changed <- l.change("imports", "long") }()
	pgtest.Until(t, time.Minute, "the change waits", func() bool {
		return one[bool](
			t,
			l.pool,
			`
select exists (select from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock' and query like '%onlyonce.horizons%')`,
		)
	})
	if did, err := l.rotators[0].Step(t.Context()); err == nil && did.Action == ring.Announced {
		t.Errorf("%v while a change is under way", did)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	for did := (ring.StepResult{}); did.Action != ring.Announced; {
		if did, err = l.rotators[0].Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// K10: a claim that has read the former class and has not committed is waited for by one that has
// read the new class.
func TestK10ClaimOfTheFormerClass(t *testing.T) {
	t.Parallel()
	l := newLoops(t)
	k := dedupe.Key{Scope: "imports", ID: "1", Fingerprint: dedupe.NoFingerprint}
	first, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.WithoutCancel(t.Context())) }()
	if o, err := dedupe.Claim(t.Context(), first, k); err != nil || o != dedupe.Fresh {
		t.Fatal(o, err)
	}
	if err := l.change("imports", "long"); err != nil {
		t.Fatal(err)
	}
	waits := pgx.BeginFunc(t.Context(), l.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local lock_timeout = '100ms'`); err != nil {
			return err
		}
		_, err := dedupe.Claim(t.Context(), tx, k)
		return err
	})
	if guard.SQLState(waits) != "55P03" {
		t.Errorf("a copy beside an uncommitted claim: %v", waits)
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.claim("imports"); got != "duplicate" {
		t.Error(got)
	}
}

// K10: keys that move with a place stay in the ring of their scope's class.
func TestK10ClassesMoveWithAPlace(t *testing.T) {
	t.Parallel()
	a := newLoops(t)
	b := newLoops(t)
	exec(t, a.pool, `insert into onlyonce.places (place, state) values ('acme', 'here')`)
	if err := a.change("imports", "long"); err != nil {
		t.Fatal(err)
	}
	a.claim("imports")
	if _, err := ops.LeavePlace(t.Context(), a.pool, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "acme", To: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := b.change("imports", "short"); err != nil {
		t.Fatal(err)
	}
	if err := adoptFrom(t, a.pool, b.pool, "b", true); !errors.Is(err, ops.ErrRefused) ||
		!strings.Contains(err.Error(), "of class short (standard before) here and of class long (standard before) in") {
		t.Errorf("two classes: %v", err)
	}
	exec(t, b.pool, `delete from onlyonce.horizons`)
	if err := adoptFrom(t, a.pool, b.pool, "b", true); err != nil {
		t.Fatal(err)
	}
	if got := b.claim("imports"); got != "duplicate" || b.in("imports") != "standard standard_long" {
		t.Errorf("a copy in b is %s, in %s", got, b.in("imports"))
	}
}
