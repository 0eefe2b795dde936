package eventsource

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Every statement is one that the real server understands.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		appendSQL, makeStreamSQL, streamsSQL, endsSQL, streamSQL, boundsSQL, offsetAtSQL, pageSQL,
		committedSQL, groupMetadataSQL, commitSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// greatestSQL is how onlyonce.append_events and onlyonce.stream_bounds find the end of a partition.
const greatestSQL = `select l."offset" from onlyonce.event_log l where l.stream = $1 and l.partition = $2 order by l."offset" desc limit 1`

// What runs for each append and each fetch finds its rows by the index of each segment, planned
// while they are empty and while they are not.
func TestPlans(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, full := range []bool{false, true} {
		if full {
			if _, err := pool.Exec(t.Context(), `
				insert into onlyonce.event_log (slot, stream, partition, "offset", tenant, id, header_names, header_values)
				  select n % 6, 1, n % 4, n, '', n::text, '{}', '{}' from generate_series(0, 20000) n`); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), `analyze onlyonce.event_log`); err != nil {
				t.Fatal(err)
			}
		}
		for sql, args := range map[string]string{greatestSQL: "1, 2::smallint", pageSQL: "1, 2::smallint, 0, 1048576"} {
			plan := pgtest.GenericPlan(t, pool, sql, args, "enable_seqscan = off", "enable_sort = off")
			for slot := range 6 {
				if !strings.Contains(plan, fmt.Sprintf("event_log_%d_position", slot)) {
					t.Errorf("full %t: segment %d is not read by its index:\n%s", full, slot, plan)
				}
			}
			if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort  ") {
				t.Errorf("full %t:\n%s", full, plan)
			}
		}
	}
}
