package migrations_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const (
	parkMessagesSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, topic, partition, "offset", record_time,
header_names, header_values, body)
select 'message', 'waiting', $2, 'x', 1, '', 'stock', gen_random_uuid(), 'orders', i % 16, i, now(), '{}', '{}', 'x'
  from generate_series(1, $1::integer) i`
	settleSQL = `update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp(), next_attempt_at = null
		where $1 or kind = 'message'`
	parkCallsSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, sink, lane, row_id, call_name, method, target, body,
next_attempt_at)
select 'call', 'retrying', 'failed', 'x', 1, '', 'stock', gen_random_uuid(), 'payments', i % 16, i, 'charge', 'POST', '/c', 'x',
now() + interval '1 hour'
  from generate_series(1, $1::integer) i`
)

// shapes are distributions of onlyonce.parked that an outage leaves.
var shapes = map[string]func(t *testing.T, pool *pgxpool.Pool){
	"empty": func(*testing.T, *pgxpool.Pool) {},
	"settled messages and open calls": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 5000, "failed")
		pgtest.Exec(t, pool, settleSQL, false)
		pgtest.Exec(t, pool, parkCallsSQL, 5000)
	},
	"conflicts": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 10000, "conflict")
	},
	"calls under new keys": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkCallsSQL, 10000)
		pgtest.Exec(t, pool, `update onlyonce.parked set first_key = key, key = gen_random_uuid()`)
	},
	"one ordering key": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 10000, "failed")
		pgtest.Exec(t, pool, `update onlyonce.parked set order_key = '00000000-0000-4000-8000-000000000007'`)
	},
	"open messages": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 10000, "failed")
	},
	"settled under an old snapshot": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 5000, "failed")
		pgtest.Exec(t, pool, parkCallsSQL, 5000)
		old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = old.Rollback(t.Context()) })
		if _, err := old.Exec(t.Context(), `select`); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, pool, settleSQL, true)
	},
}

// T13: a claim, an enqueue, and a look for what blocks an ordering key, read rows of its own keys,
// however many messages are parked and settled, and however many calls wait. So does one in a
// session that has planned its statements while nothing was parked, and one that knows what ANALYZE
// has found.
func TestT13LooksAmongParkedRows(t *testing.T) {
	t.Parallel()
	for name, fill := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			early := planned(t, pool)
			fill(t, pool)
			for what, pages := range looks(t, early) {
				t.Errorf("%s, planned while nothing was parked: %d pages", what, pages)
			}
			pgtest.Exec(t, pool, `analyze onlyonce.parked`)
			for what, pages := range looks(t, planned(t, pool)) {
				t.Errorf("%s, planned after ANALYZE: %d pages", what, pages)
			}
		})
	}
}

// planned returns a connection whose session keeps the plans of the looks, as it does after some
// runs.
func planned(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	for range 7 {
		looks(t, c.Conn())
	}
	return c.Conn()
}

// looks claims and enqueues under new keys in each way, asks whether ordering keys are blocked, and
// returns the pages that those have read which were to read fewer: 50, and 8 for each key.
func looks(t *testing.T, conn *pgx.Conn) (tooMany map[string]int) {
	t.Helper()
	tooMany = map[string]int{}
	for what, sql := range map[string]string{
		"claim_standard": `select onlyonce.claim_standard(array_agg(gen_random_uuid()), array_agg(1::bigint))
			from generate_series(1, $1)`,
		"claim_consumer": `select onlyonce.claim_consumer(array_agg(gen_random_uuid()), array_agg(1::bigint))
			from generate_series(1, $1)`,
		"claim_consumer_fresh": `select onlyonce.claim_consumer_fresh(array_agg(gen_random_uuid()), array_agg(1::bigint))
			from generate_series(1, $1)`,
		"blocked": `select onlyonce.blocked(array_agg(gen_random_uuid())) from generate_series(1, $1)`,
		"pass":    `select onlyonce.pass(array_agg(gen_random_uuid())) from generate_series(1, $1)`,
		"enqueued_before": `
select onlyonce.enqueued_before(null, null, 'payments', array_agg(gen_random_uuid()), '', null, 'shop', null, 'charge', null, 'POST', null,
'/c', null, '', null, 'x', null, null)
  from generate_series(1, $1)`,
	} {
		for _, n := range []int{1, 100} {
			// The lower of two: autovacuum may have run ANALYZE in between. A plan is then made
			// anew, from many pages of the catalog.
			pages := min(pgtest.Pages(t, conn, sql, n), pgtest.Pages(t, conn, sql, n))
			if pages > 50+8*n {
				tooMany[fmt.Sprintf("%s of %d keys", what, n)] = pages
			}
		}
	}
	return tooMany
}
