package reports

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Counting the calls that are not delivered reads their index, and none of the other rows, however
// many are parked and settled.
func TestUnsentReadsItsIndexAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, sql := range []string{
		`insert into onlyonce.sinks (name) values ('payments'), ('mail')`,
		`insert into onlyonce.parked (
  kind,
  state,
  reason,
  scope,
  sink,
  lane,
  record_time,
  settled_at
)
   select 'call',
          case when n % 10 = 0 then 'retrying' when n % 10 = 1 then 'blocked' else 'resolved' end,
          'failed',
          's',
          'payments',
          n % 16,
          clock_timestamp() - n * interval '1 s',
          case when n % 10 > 1 then clock_timestamp() end
     from generate_series(1, 20000) n`,
		`vacuum analyze onlyonce.parked`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := pool.Query(t.Context(), `explain (analyze, costs off, timing off, summary off) `+unsentSQL, nil, mostUnsent)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if !strings.Contains(plan, "parked_unsent") || strings.Contains(plan, "Seq Scan on parked") {
		t.Errorf("%s", plan)
	}
}
