package ops

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// found fails the test unless there is a finding of a check and level that contains each text, in
// its text or its remedy.
func found(t *testing.T, all []Finding, check, level string, texts ...string) {
	t.Helper()
	if !slices.ContainsFunc(all, func(f Finding) bool {
		return f.Check == check &&
			f.Level == level &&
			!slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(f.Text+"\n"+f.Remedy, s) })
	}) {
		t.Errorf("there is no finding %s %s %q in %+v", check, level, texts, all)
	}
}

// A test cannot make a ring that no login may rotate, so it gives the rule what would be read.
func TestExamineRingWithoutRotator(t *testing.T) {
	t.Parallel()
	week := (7 * 24 * time.Hour).Seconds()
	opened := float64(10)
	name := ring.ConsumerKeys().Name
	full := reports.KeyRing{Ring: name, Horizon: &week}
	for i := range reports.MostClosed + 2 {
		s := reports.KeySegment{Table: fmt.Sprint("onlyonce_segments.", name, "_", i), State: "free"}
		if i == 0 {
			s = reports.KeySegment{Table: s.Table, State: "current", Bytes: 1, Keys: 1, Opened: &opened}
		}
		full.Segments = append(full.Segments, s)
	}
	d := &examiner{ask: &ExamineQuestion{}}
	d.ring(&full, true, nil)
	found(t, d.findings, name, levelFail, "no login has the rights", "grant onlyonce_rotator", "onlyonce inbox rotate (")
}

// A machine whose clock differs from the database's.
func TestExamineClocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for skew, level := range map[time.Duration]string{-time.Hour: levelWarn, time.Hour: levelWarn, 0: levelOK} {
		r, err := Examine(t.Context(), pool, ExamineQuestion{clock: func() time.Time { return time.Now().Add(skew) }})
		if err != nil {
			t.Fatal(err)
		}
		found(t, r.Findings, "clocks", level)
	}
}

// An open transaction, and one that only reads, as rotation and vacuum see them. The server is the
// test's own: of other sessions' transactions only the oldest are named.
func TestExamineTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Server(t, map[string]string{"fsync": "off"}))
	for sql, what := range map[string]string{"select pg_current_xact_id()": "rotation and vacuum", "select 1": "vacuum"} {
		open, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		d := &examiner{ask: &ExamineQuestion{}}
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return d.transactions(t.Context(), tx, 0) }); err != nil {
			t.Fatal(err)
		}
		found(t, d.findings, "transactions", levelWarn, "it holds up "+what, "pg_terminate_backend")
		if err := open.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
