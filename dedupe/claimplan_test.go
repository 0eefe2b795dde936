package dedupe_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const (
	parkMessagesSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, topic, partition, "offset", record_time, header_names, header_values, body)
select 'message', 'waiting', $2, 'x', 1, '', 'stock', gen_random_uuid(), 'orders', i % 16, i, now(), '{}', '{}', 'x'
  from generate_series(1, $1::integer) i`
	settleSQL    = `update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where kind = 'message'`
	parkCallsSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, sink, lane, row_id, call_name, method, target, body, next_attempt_at)
select 'call', 'retrying', 'failed', 'x', 1, '', 'stock', gen_random_uuid(), 'payments', i % 16, i, 'charge', 'POST', '/c', 'x', now() + interval '1 hour'
  from generate_series(1, $1::integer) i`
)

// shapes are distributions of onlyonce.parked that an outage leaves.
var shapes = map[string]func(t *testing.T, pool *pgxpool.Pool){
	"empty": func(*testing.T, *pgxpool.Pool) {},
	"settled messages and open calls": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 5000, "failed")
		pgtest.Exec(t, pool, settleSQL)
		pgtest.Exec(t, pool, parkCallsSQL, 5000)
	},
	"conflicts": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 10000, "conflict")
	},
	"open messages": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 10000, "failed")
	},
	"settled under an old snapshot": func(t *testing.T, pool *pgxpool.Pool) {
		pgtest.Exec(t, pool, parkMessagesSQL, 10000, "failed")
		old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = old.Rollback(t.Context()) })
		if _, err := old.Exec(t.Context(), `select`); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, pool, settleSQL)
	},
}

// T13: a claim reads its own keys, however many messages are parked and settled, and however many
// calls wait. So does one in a session that has planned its statements while nothing was parked,
// and one that knows what ANALYZE has found.
func TestT13ClaimBesideParkedRows(t *testing.T) {
	t.Parallel()
	for name, fill := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			early, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer early.Release()
			for range 7 { // a session keeps a plan after some runs
				claims(t, early.Conn())
			}
			fill(t, pool)
			for when, pages := range claims(t, early.Conn()) {
				t.Errorf("%s, planned while nothing was parked: %d pages", when, pages)
			}
			pgtest.Exec(t, pool, `analyze onlyonce.parked`)
			late, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer late.Release()
			for range 7 {
				claims(t, late.Conn())
			}
			for when, pages := range claims(t, late.Conn()) {
				t.Errorf("%s, planned after ANALYZE: %d pages", when, pages)
			}
		})
	}
}

// claims claims new keys in each way, and returns the pages that those claims have read that were
// to read fewer: 50, and 8 for each key.
func claims(t *testing.T, conn *pgx.Conn) (tooMany map[string]int) {
	t.Helper()
	tooMany = map[string]int{}
	for _, function := range []string{"claim_standard", "claim_consumer", "claim_consumer_fresh"} {
		for _, n := range []int{1, 100} {
			sql := fmt.Sprintf(`select onlyonce.%s(array_agg(gen_random_uuid()), array_agg(1::bigint)) from generate_series(1, $1)`, function)
			if pages := pgtest.Pages(t, conn, sql, n); pages > 50+8*n {
				tooMany[fmt.Sprintf("%s of %d keys", function, n)] = pages
			}
		}
	}
	return tooMany
}
