package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// promoteAllSQL makes the first row of each ordering key due, for the keys of a partition that
// have blocked rows. It is for a process that died between a commit and the promote that follows
// it. It handles a number of keys at once, above $4 (null: from the first). Out: one row with how
// many rows became due, and the last of these keys, null if there are no more. It reads one entry
// of the index parked_blocked for each key, however many rows wait.
const promoteAllSQL = `
with recursive keys (order_key) as (
  (select p.order_key from onlyonce.parked p
    where p.scope = $1 and p.topic = $2 and p.partition = $3 and p.kind <> 'call' and p.state = 'blocked'
      and p.order_key > coalesce($4::uuid, '00000000-0000-0000-0000-000000000000')
    order by p.order_key limit 1)
  union all
  select n.order_key from keys cross join lateral (
    select p.order_key from onlyonce.parked p
     where p.scope = $1 and p.topic = $2 and p.partition = $3 and p.kind <> 'call' and p.state = 'blocked' and p.order_key > keys.order_key
     order by p.order_key limit 1) n)
select count(onlyonce.promote(k.order_key)), (array_agg(k.order_key order by k.order_key desc))[1] from (select order_key from keys limit 1000) k`

// promoteBlocked makes rows due that waited for a row which is settled by now.
func (r *retrier) promoteBlocked(ctx context.Context) error {
	keys, all := r.promotions.take()
	if len(keys) == 0 && !all {
		return nil
	}
	var promoted int64
	var err error
	switch {
	case all:
		if promoted, err = r.promoteAll(ctx); err == nil {
			r.promotions.allPromoted()
		}
	default:
		for k := range keys {
			var due int64
			if err = r.c.queryRow(ctx, parked.PromoteSQL, []pgtype.UUID{k}).Scan(&due); err != nil {
				break
			}
			promoted += due
		}
	}
	if err != nil {
		r.promotions.addAll()
		return fmt.Errorf("promoting blocked messages: %w", err)
	}
	if promoted > 0 {
		r.setDue(0)
	}
	return nil
}

// promoteAll checks each key that waits, in bounded statements, for as long as that takes.
func (r *retrier) promoteAll(ctx context.Context) (promoted int64, err error) {
	var last pgtype.UUID
	for {
		var n int64
		err := r.c.queryRow(ctx, promoteAllSQL, r.c.cfg.Scope, r.id.Topic, r.id.Partition, last).Scan(&n, &last)
		if promoted += n; err != nil || !last.Valid {
			return promoted, err
		}
	}
}
