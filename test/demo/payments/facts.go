package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// effectsSQL returns a row for each effect of some accounts: its reference. $1 text[].
const effectsSQL = `
select reference from onlyonce_payments.charges where account = any($1) union all
select reference from onlyonce_payments.captures where account = any($1) union all
select reference from onlyonce_payments.refunds where account = any($1) union all
select reference from onlyonce_payments.payouts where account = any($1) union all
select reference from onlyonce_payments.settlements where account = any($1)`

// unbalancedSQL returns the charges of some accounts whose sums do not agree with what was captured
// and refunded. $1 text[]. A charge that was captured when it was made has no row of capture.
const unbalancedSQL = `
select c.reference from onlyonce_payments.charges c
 where c.account = any($1)
   and (c.refunded <> coalesce((select sum(amount) from onlyonce_payments.refunds r where r.charge = c.id), 0)
        or c.captured <> case when c.at_once then c.amount
                              else coalesce(
                                (select sum(amount) from onlyonce_payments.captures k where k.charge = c.id),
                                0
                              ) end)`

// effects counts effects by reference, and finds charges that do not add up.
func effects(ctx context.Context, pool *pgxpool.Pool, accounts []string) (found map[string]int, unbalanced []string, err error) {
	found = map[string]int{}
	rows, err := pool.Query(ctx, effectsSQL, accounts)
	if err != nil {
		return nil, nil, err
	}
	var reference string
	if _, err := pgx.ForEachRow(rows, []any{&reference}, func() error { found[reference]++; return nil }); err != nil {
		return nil, nil, err
	}
	if rows, err = pool.Query(ctx, unbalancedSQL, accounts); err != nil {
		return nil, nil, err
	}
	unbalanced, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return found, unbalanced, err
}

// awaitWriters waits until what was being written has ended, for at most 5 seconds. A server that
// was killed may have left a statement behind, whose row would come after the others are removed.
func awaitWriters(ctx context.Context, pool *pgxpool.Pool) {
	var newest string
	if pool.QueryRow(ctx, `select pg_current_xact_id()::text`).Scan(&newest) != nil {
		return // and so the removal fails, which says why
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var ended bool
		if err := pool.QueryRow(ctx, `select pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8`, newest).Scan(&ended); err != nil ||
			ended {
			return
		}
	}
}

// tidySQL removes a run's rows. $1 its accounts, $2 its sink.
var tidySQL = []string{
	`delete from onlyonce_payments.charges where account = any($1) and $2 <> ''`,
	`delete from onlyonce_payments.payouts where account = any($1) and $2 <> ''`,
	`delete from onlyonce_payments.settlements where account = any($1) and $2 <> ''`,
	`delete from onlyonce.operations where tenant = any($1) and $2 <> ''`,
	`
delete from onlyonce.progress p
 using onlyonce.cursors c where c.scope = $2 and p.cursor_id = c.id and $1::text[] is not null`,
	`delete from onlyonce.topics where scope = $2 and $1::text[] is not null`,
	`delete from onlyonce.scopes where scope = $2 and $1::text[] is not null`,
	`
delete from onlyonce.leases
 where (starts_with(name, 'cursor/' || $2 || '/')
        or starts_with(name, 'events/' || $2 || '/')
        or starts_with(name, 'readers/' || $2 || '/'))
   and $1::text[] is not null`,
	`delete from onlyonce.streams where topic = $2 and $1::text[] is not null`,
	`delete from onlyonce.leases where id in (select lease_id from onlyonce.http_records where tenant = any($1)) and $2 <> ''`,
	`delete from onlyonce.http_records where tenant = any($1) and $2 <> ''`,
	`delete from onlyonce.batches where sink = $2 and $1::text[] is not null`,
	`delete from onlyonce.parked where sink = $2 and $1::text[] is not null`,
	`
delete from onlyonce.leases
 where (starts_with(name, 'relay/' || $2 || '/') or starts_with(name, 'relays/' || $2 || '/'))
   and $1::text[] is not null`,
	`delete from onlyonce.sinks where name = $2 and $1::text[] is not null`,
}
