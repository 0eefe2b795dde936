package outbox

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// sweepEvery is how often a lane looks for blocked calls that no unsettled call precedes.
var sweepEvery = 5 * time.Minute

// sweepSQL makes the next calls of a lane's ordering keys due, in case a process died after it
// committed a settlement and before it promoted them. In: sink, lane. One row: how many.
const sweepSQL = `
select count(onlyonce.promote(k.order_key))
  from (select distinct order_key from onlyonce.parked
         where kind = 'call' and sink = $1 and lane = $2 and settled_at is null and state = 'blocked' and order_key is not null) k`

// keyPromotions makes parked calls of a lane due that are blocked by a call of their ordering key
// which is settled by now.
type keyPromotions struct {
	lane *heldLane
	keys []uuid.UUID // of calls that were settled
	// swept is false if all blocked keys of the lane are to be looked at, because a process may die
	// after it settled a call and before it promoted.
	swept   bool
	sweepAt time.Time
}

func (p *keyPromotions) add(key uuid.UUID) { p.keys = append(p.keys, key) }

// scheduleSweep has all blocked keys looked at if that is due.
func (p *keyPromotions) scheduleSweep(now time.Time) {
	if !now.Before(p.sweepAt) {
		p.swept, p.sweepAt = false, now.Add(sweepEvery)
	}
}

// pending reports whether run has something to do.
func (p *keyPromotions) pending() bool { return len(p.keys) > 0 || !p.swept }

// run makes calls due whose predecessor is settled by now, and returns how many.
func (p *keyPromotions) run() (due int64, err error) {
	s := p.lane.sink
	ctx, cancel := s.detached(p.lane.ctx)
	defer cancel()
	if p.swept {
		err = s.pool.QueryRow(ctx, parked.PromoteSQL, pgUUIDs(p.keys)).Scan(&due)
	} else {
		err = s.pool.QueryRow(ctx, sweepSQL, s.name, p.lane.number).Scan(&due)
	}
	if err != nil {
		p.swept = false
		return 0, fmt.Errorf("promoting blocked calls: %w", err)
	}
	p.keys, p.swept = nil, true
	return due, nil
}
