package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

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

// promoteAllEvery bounds how long a row can stay blocked although nothing blocks it.
const promoteAllEvery = 5 * time.Minute

// promotions are the ordering keys of which the first blocked message may be due. The worker and
// the retrier add keys, and the retrier takes them.
type promotions struct {
	mu         sync.Mutex
	keys       map[pgtype.UUID]struct{}
	all        bool      // every key of the partition, because some are not known
	promotedAt time.Time // when all keys were last checked
}

func (p *promotions) add(keys ...pgtype.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil {
		p.keys = map[pgtype.UUID]struct{}{}
	}
	for _, k := range keys {
		p.keys[k] = struct{}{}
	}
}

func (p *promotions) addAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = true
}

// take empties the set. If all is true, every key is to be checked, also those that are not in
// keys.
func (p *promotions) take() (keys map[pgtype.UUID]struct{}, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, all = p.keys, p.all || time.Since(p.promotedAt) > promoteAllEvery
	p.keys, p.all = nil, false
	return keys, all
}

// allPromoted records that all keys were checked.
func (p *promotions) allPromoted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promotedAt = time.Now()
}

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
			bounded, cancel := r.c.bounded(ctx)
			err = r.c.pool.QueryRow(bounded, parked.PromoteSQL, []pgtype.UUID{k}).Scan(&due)
			cancel()
			if err != nil {
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
		bounded, cancel := r.c.bounded(ctx)
		err := r.c.pool.QueryRow(bounded, promoteAllSQL, r.c.cfg.Scope, r.id.Topic, r.id.Partition, last).Scan(&n, &last)
		cancel()
		if promoted += n; err != nil || !last.Valid {
			return promoted, err
		}
	}
}

// noteParked records what a committed transaction of the log has parked.
func (r *retrier) noteParked(a *attempt) {
	switch {
	case a.answerLost:
		r.promoteAllSoon()
	case len(a.parked) > 0:
		r.promotions.add(a.blockedKeys...)
		r.wakeUp()
	}
}

// promoteAllSoon is for transactions of which it is not known what they parked.
func (r *retrier) promoteAllSoon() {
	r.promotions.addAll()
	r.wakeUp()
}
