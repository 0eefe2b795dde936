package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ShiftClock makes clock_timestamp of a database one that a test shifts, for all statements and
// functions but the defaults of columns. The function that it returns sets by how much the clock is
// ahead. Sessions of other pools follow if they begin later.
func ShiftClock(t testing.TB, pool *pgxpool.Pool) (ahead func(interval string)) {
	t.Helper()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create schema fake`)
	exec(`create table fake.offset_of_the_clock as select interval '0' as by`)
	// In its place, because transactions of ours see no other schema (primary.PinSQL).
	exec(`alter function pg_catalog.clock_timestamp() rename to unshifted_clock_timestamp`)
	exec(`
create function pg_catalog.clock_timestamp() returns timestamptz
  language sql as 'select pg_catalog.unshifted_clock_timestamp() + by from fake.offset_of_the_clock'`)
	pool.Reset()
	return func(interval string) {
		t.Helper()
		exec(`update fake.offset_of_the_clock set by = $1::text::interval`, interval)
	}
}
