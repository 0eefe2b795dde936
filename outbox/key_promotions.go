package outbox

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/process"
)

// promotedAtOnce is how many keys one statement promotes. A statement that does not end in time
// promotes none, so the number is small: a database that needs 10 ms for each promotes them too.
const promotedAtOnce = 100

// sweepSQL makes the next calls of a lane's ordering keys due, in case a process died after it
// committed a settlement and before it promoted them. It handles a number of keys at once, above
// $3 (null: from the first). In: sink, lane, that key. One row: how many calls became due, and the
// last of these keys; null if there are no more. It reads one entry of the index
// parked_calls_blocked for each key, however many calls wait (T13).
const sweepSQL = `
with recursive keys (order_key) as (
  (select p.order_key from onlyonce.parked p
    where p.kind = 'call'
      and p.sink = $1
      and p.lane = $2
      and p.state = 'blocked'
      and p.order_key > coalesce($3::uuid, '00000000-0000-0000-0000-000000000000')
    order by p.order_key limit 1)
  union all
  select n.order_key from keys cross join lateral (
    select p.order_key from onlyonce.parked p
     where p.kind = 'call' and p.sink = $1 and p.lane = $2 and p.state = 'blocked' and p.order_key > keys.order_key
     order by p.order_key limit 1) n)
select count(onlyonce.promote(k.order_key)), (array_agg(k.order_key order by k.order_key desc))[1]
  from (select order_key from keys limit 100) k`

// keyPromotions makes parked calls of a lane due that are blocked by a call of their ordering key
// which is settled by now.
type keyPromotions struct {
	lane *heldLane
	keys []uuid.UUID // of calls that were settled
	// swept is false if all blocked keys of the lane are to be looked at, because a process may die
	// after it settled a call and before it promoted. Those up to sweptTo were.
	swept   bool
	sweptTo pgtype.UUID
	sweepAt time.Time
}

func (p *keyPromotions) add(key uuid.UUID) { p.keys = append(p.keys, key) }

// sweep has all blocked keys looked at, from the first.
func (p *keyPromotions) sweep() {
	p.swept = false
	p.sweptTo = pgtype.UUID{}
}

// due is at once if a call was settled or keys are left to be looked at, or else at the next sweep.
func (p *keyPromotions) due(time.Time) time.Time {
	if len(p.keys) > 0 || !p.swept {
		return time.Time{}
	}
	return p.sweepAt
}

// run makes calls due whose predecessor is settled by now, and returns how many. Now and then
// (process.Pace.Promote) it has all blocked keys looked at.
func (p *keyPromotions) run() (due int64, err error) {
	s := p.lane.sink
	ctx, cancel := s.detached(p.lane.ctx)
	defer cancel()
	if now := time.Now(); !now.Before(p.sweepAt) {
		p.sweep()
		p.sweepAt = now.Add(process.PaceOf(p.lane.ctx).Promote)
	}
	now := p.keys[:min(len(p.keys), promotedAtOnce)]
	if len(now) > 0 {
		err = s.pool.QueryRow(ctx, parked.PromoteSQL, pgUUIDs(now)).Scan(&due)
	} else {
		err = s.pool.QueryRow(ctx, sweepSQL, s.name, p.lane.number, p.sweptTo).Scan(&due, &p.sweptTo)
		p.swept = err == nil && !p.sweptTo.Valid
	}
	if err != nil {
		return 0, fmt.Errorf("promoting blocked calls: %w", err)
	}
	p.keys = p.keys[len(now):]
	return due, nil
}
