package gauges

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// valuesOf returns what is served, by the metric's name.
func valuesOf(r *Rounds) map[string]float64 {
	has := map[string]float64{}
	for _, s := range r.Samples() {
		has[s.Metric.Name] = s.Value
	}
	return has
}

// A database that no longer answers: its values are left out when they are three intervals old.
func TestOldValuesAreLeftOut(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	r := &Rounds{Database: "shop", DB: pool, Interval: time.Hour, Timeout: pgtest.Patience(time.Minute)}
	if all := valuesOf(r); len(all) != 0 {
		t.Errorf("before the first round there are the values %v", all)
	}
	if err := r.AskIfDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := valuesOf(r); all["onlyonce.database.up"] != 1 || len(all) < 5 {
		t.Fatalf("a database that answers has the values %v", all)
	}
	pool.Close()
	if err := r.AskIfDue(t.Context()); err != nil {
		t.Errorf("it is asked again within the interval: %v", err)
	}
	r.asked = time.Now().Add(-2 * time.Hour)
	if err := r.AskIfDue(t.Context()); err == nil {
		t.Error("it is not asked again after the interval")
	}
	if all := valuesOf(r); all["onlyonce.database.up"] != 0 || all["onlyonce.observe.failed"] != 1 || len(all) < 5 {
		t.Errorf("after one round without an answer there are the values %v", all)
	}
	r.answered = time.Now().Add(-3 * time.Hour)
	if all := valuesOf(r); len(all) != 2 {
		t.Errorf("after three intervals without an answer there are the values %v", all)
	}
	r.Leave()
	if all := valuesOf(r); len(all) != 0 {
		t.Errorf("while another process asks there are the values %v", all)
	}
}

// A database whose tables are locked does not answer: a round ends after its timeout, and the
// statement ends on the server too.
func TestRoundIsBounded(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `lock table onlyonce.cursors in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	r := &Rounds{Database: "shop", DB: pool, Timeout: 200 * time.Millisecond}
	if err := r.Ask(t.Context()); err == nil {
		t.Error("a database that does not answer has answered")
	}
	if all := valuesOf(r); all["onlyonce.database.up"] != 0 || len(all) != 2 {
		t.Errorf("there are the values %v", all)
	}
	pgtest.Until(t, pgtest.Patience(time.Minute), "the statement has ended on the server", func() bool {
		var waiting int
		err := lock.QueryRow(
			t.Context(),
			`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
		).Scan(&waiting)
		return err == nil && waiting == 0
	})
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Timeout = pgtest.Patience(time.Minute)
	if err := r.Ask(t.Context()); err != nil {
		t.Errorf("a database that answers again: %v", err)
	}
}
