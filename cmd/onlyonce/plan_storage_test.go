package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// The plan asks no database, refuses what makes no sense, and adds up.
func TestPlanStorage(t *testing.T) {
	t.Parallel()
	s := session{t: t}
	s.run("plan",
		"storage",
		"-ids",
		"1e6/d",
		"-ids-keep",
		"7d",
		"-requests",
		"10/s",
		"-requests-bytes",
		"100",
		"-requests-keep",
		"36h").want(
		t,
		statusGood,
		"ids ",
		"requests ",
		"864000",
		"1d12h",
		"together ",
	)
	s.run("plan", "storage").want(t, statusEnvironment, "say what comes")
	s.run("plan", "storage", "-calls", "many").want(t, statusEnvironment, "-calls", "must be a number of keys")
	s.run("plan", "storage", "-calls", "1/s", "-calls-bytes", "-1").want(t, statusEnvironment, "must be a number of bytes")
	s.run("plan", "storage", "-calls", "1/s", "-calls-keep", "0").want(t, statusEnvironment, "must be a duration")
	s.run("plan", "storage", "-ids", "1/s", "-json").want(t, statusGood, `"kind":"ids"`, `"disk_bytes":`)
}

// measured is what one more row of a kind takes in a database, with all indexes.
type measured struct {
	tables string // a pattern of the names of its tables
	rows   string // makes rows $n..$m, with bodies of so many bytes
	after  string // what becomes of them, and a vacuum
}

const someRows = 4000

// The figures of the plan are those of real tables: within a third of what one more row takes.
func TestPlanStorageAsMeasured(t *testing.T) {
	t.Parallel()
	parked := func(columns, values string) string {
		return `insert into onlyonce.parked (kind, state, reason, attempts, scope, key, body, ` + columns + `)
			select 'call', 'retrying', 'cut', 1, 'orders', gen_random_uuid(),
			decode(BODY, 'hex'), ` + values + ` from generate_series(FROM, UNTIL) i`
	}
	// A relay writes the row when the call is parked, when the remote has accepted it, and at last.
	const ends = `update onlyonce.parked
		set next_attempt_at = clock_timestamp() + interval '30 s', picks = picks + 1, state = 'retrying', reason = 'completion',
		response_status = 200
		where settled_at is null;
		update onlyonce.parked set state = 'resolved', settled_at = clock_timestamp(), next_attempt_at = null where settled_at is null;
		vacuum onlyonce.parked;`
	for kind, m := range map[string]measured{
		"ids": {
			"%keys%",
			`select onlyonce.claim_standard(array_agg(gen_random_uuid()), array_agg(0::bigint)) from generate_series(FROM, UNTIL) i`,
			``,
		},
		"calls": {
			"batches%",
			`select onlyonce.enqueue_calls(array[0::smallint], array[gen_random_uuid()], array[null::uuid], array['payments'], array[''],
				array['orders'], array['charge'],
			array['POST'], array['/charges'], array['Content-Type: application/json'], array[null::text], array[decode(BODY, 'hex')],
			array[null::timestamptz], array[null::timestamptz], array[false], array[false], array[false])
			from generate_series(FROM, UNTIL) i`,
			``,
		},
		"captured": {
			"parked",
			parked(
				`sink, lane, partition, row_id, "offset", call_name, method, target, capture, next_attempt_at, record_time, `+
					`response_headers`,
				`'payments', i % 16, i % 16, i, i, 'charge', 'POST', '/charges', true, clock_timestamp(), clock_timestamp(), `+
					`'Content-Type: application/json'`,
			),
			ends,
		},
		"events": {
			"event%",
			`select onlyonce.append_events(array['webhook.gh'], array[null::smallint], array[''], array[i::text], array[null::bytea],
				array[1], array['Content-Type'], array['application/json'::bytea], array[decode(BODY, 'hex')])
			from generate_series(FROM, UNTIL) i`,
			``,
		},
		"parked": {
			"parked",
			parked(`topic, partition, "offset", order_key, record_time, error`,
				`'orders', i % 16, i, gen_random_uuid(), clock_timestamp(), 'no such customer'`),
			`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where settled_at is null;
				vacuum onlyonce.parked;`,
		},
		// As onlyonce.http_complete writes it, which only the layer may call.
		"requests": {
			"http_records",
			`do $$ begin set local session_replication_role = replica;
			insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, response, keep, completed_at, expires_at,
			watched_at)
			select gen_random_uuid(), '', 'http POST /v1/charges', sha256(i::text::bytea), gen_random_uuid(), 'completed',
			decode(BODY, 'hex'), '48 h',
			       clock_timestamp(), clock_timestamp() + interval '48 h', clock_timestamp() from generate_series(FROM, UNTIL) i; end $$`,
			``,
		},
	} {
		for _, bytes := range []int64{200, 1000} {
			t.Run(fmt.Sprint(kind, " of ", bytes), func(t *testing.T) {
				t.Parallel()
				measureStorage(t, kind, m, bytes)
			})
		}
	}
}

func measureStorage(t *testing.T, kind string, m measured, bytes int64) {
	f := newFixture(t)
	f.exec(`insert into onlyonce.streams (topic, partitions) values ('webhook.gh', 16) on conflict do nothing`)
	size := func() float64 {
		return float64(one[int64](f, `select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
			where c.relkind = 'r' and c.relnamespace::regnamespace::text like 'onlyonce%' and c.relname like $1`, m.tables))
	}
	grow := func(from int) {
		// Bodies of random bytes: what can be compressed takes less.
		body := fmt.Sprintf("(select substr(string_agg(md5(random()::text || i || j), ''), 1, %d) from generate_series(1, %d) j)",
			2*bytes, bytes/16+1)
		text := strings.NewReplacer("BODY", body, "FROM", fmt.Sprint(from), "UNTIL", fmt.Sprint(from+someRows-1)).Replace(m.rows)
		f.exec(text)
		for statement := range strings.SplitSeq(m.after, ";") {
			if strings.TrimSpace(statement) != "" {
				f.exec(statement)
			}
		}
	}
	grow(1)
	before := size()
	for i := 1; i <= 3; i++ {
		grow(1 + i*someRows)
	}
	each := (size() - before) / (3 * someRows)
	kinds := reports.StorageKinds()
	for i := range kinds {
		if kinds[i].Name != kind {
			continue
		}
		stored := bytes
		if kind == "ids" {
			stored = 0
		}
		planned := kinds[i].Plan(reports.StorageQuestion{Rate: 1, Bytes: stored, Keep: time.Second}).RowBytes
		t.Logf("%s with %d bytes: %.0f measured, %.0f planned", kind, stored, each, planned)
		if planned < each*0.75 || planned > each*1.33 {
			t.Errorf("%s with %d bytes: a row takes %.0f, and the plan says %.0f", kind, stored, each, planned)
		}
		return
	}
	t.Fatalf("no plan of %s", kind)
}
