package main

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// lists adds a sink as its first relay does: 16 lanes, each with its lease.
func (f *fixture) lists(sink string) {
	f.t.Helper()
	f.exec(`insert into onlyonce.sinks (name) values ($1) on conflict do nothing`, sink)
	f.exec(
		`with l as (insert into onlyonce.leases (name) select 'relay/' || $1::text || '/' || n from generate_series(0, 15) n
			returning id, name),
		made as (insert into onlyonce.sink_lanes (id, sink, lane)
			select id, $1, substr(name, length('relay/' || $1::text || '/') + 1)::smallint from l returning id)
		insert into onlyonce.lane_cursors (id) select id from made`,
		sink,
	)
}

// enqueues writes calls, one for each name, in a transaction each. An order key may be empty.
func (f *fixture) enqueues(sink, orderKey string, names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.exec(enqueueSQL, sink, orderKey, name)
	}
}

// enqueueSQL enqueues a call whose key derives from its name.
const enqueueSQL = `
select onlyonce.enqueue_calls(array[0::smallint], array[onlyonce.key('', $1, $3)],
array[case when $2::text <> '' then onlyonce.key('', 'order', $2) end],
  array[$1::text], array[''], array['shop'], array[$3::text], array['POST'], array['/charges'], array['Content-Type: text/plain'],
  array[null::text],
  array[convert_to('body of ' || $3, 'UTF8')], array[null::timestamptz], array[null::timestamptz], array[false], array[false],
  array[false])`

// delivers moves the cursors of a sink as relays do if they deliver every call up to an id and have
// not ended the pass.
func (f *fixture) delivers(sink string, upTo int64) {
	f.t.Helper()
	f.exec(`select onlyonce.advance(id, version, 0, true, false) from onlyonce.lanes where sink = $1 order by id`, sink)
	f.exec(`select onlyonce.advance(id, version, $2, false, false) from onlyonce.lanes where sink = $1 order by id`, sink, upTo)
}

// park parks a call of the log, by its name, as a relay does if it could not deliver it. It does
// not move the cursor.
func (f *fixture) park(name, state, reason string) (id int64) {
	f.t.Helper()
	return one[int64](f, `
		insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, partition, "offset", sink, lane, row_id,
		order_key, call_name,
			method, target, header_names, header_values, body, next_attempt_at, first_attempt_at, open, response_headers, response_body)
		select 'call', $2, $3, 'HTTP 422', 3, tenant, scope, key, lane, id, sink, lane, id, order_key, name, method, target,
		array['Content-Type'::bytea],
			array['text/plain'::bytea], body, case when $2 = 'retrying' then clock_timestamp() + interval '1 hour' end,
			case when $3 not in ('behind', 'rejected') then clock_timestamp() - interval '1 hour' end, $3 not in ('behind', 'rejected'),
			'X: y', 'private answer'
		from onlyonce.outbox_log where name = $1 returning id`, name, state, reason)
}

func (f *fixture) logID(name string) int64 {
	f.t.Helper()
	return one[int64](f, `select id from onlyonce.outbox_log where name = $1`, name)
}

// copyTo copies the contents of the schema into another database, as dump and restore do.
func (f *fixture) copyTo(to *fixture) {
	f.t.Helper()
	ctx := f.t.Context()
	tables := []string{"leases", "rings", "segments", "sinks", "sink_lanes", "lane_cursors", "parked", "batches"}
	to.exec(`truncate onlyonce.leases, onlyonce.rings, onlyonce.segments, onlyonce.sinks, onlyonce.sink_lanes, onlyonce.parked, ` +
		`onlyonce.batches cascade`)
	for _, table := range tables {
		rows, err := f.pool.Query(ctx, `select t::text from onlyonce.`+table+` t`)
		if err != nil {
			f.t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			f.t.Fatal(err)
		}
		_, err = to.pool.Exec(
			ctx,
			fmt.Sprintf(
				`insert into onlyonce.%[1]s overriding system value select (t::onlyonce.%[1]s).*
					from unnest($1::text[]) with ordinality as u(t, n) order by n`,
				table,
			),
			texts,
		)
		if err != nil {
			f.t.Fatalf("%s: %v", table, err)
		}
	}
	for _, sequence := range []string{"outbox_id", "outbox_version"} {
		to.exec(`select setval('onlyonce.`+sequence+`', $1)`, one[int64](f, `select last_value from onlyonce.`+sequence))
	}
}

func TestCopyCopies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	to := newFixture(t)
	f.lists("payments")
	f.enqueues("payments", "a", "one", "two")
	f.copyTo(to)
	if n := one[int](to, `select count(*) from onlyonce.calls where state = 'pending' and lane is not null`); n != 2 {
		t.Errorf("%d calls", n)
	}
}
