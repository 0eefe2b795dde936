package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/process"
)

// sweepSQL makes the next calls of a lane's ordering keys due, in case a process died after it
// committed a settlement and before it promoted them. It handles a number of keys at once, above
// $3 (null: from the first). In: sink, lane, that key, how many keys at most. One row: how many
// calls became due, and the last of these keys; null if there are no more. It reads one entry of
// the index parked_calls_blocked for each key, however many calls wait (T13).
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
  from (select order_key from keys limit $4) k`

// mostPromotions is how many keys are kept that are to be promoted. If there are more, all blocked
// keys are looked at instead.
const mostPromotions = 10 * parked.PromotedAtOnce

// keyPromotions makes parked calls of a lane due that are blocked by a call of their ordering key
// which is settled by now.
type keyPromotions struct {
	lane *heldLane
	keys []uuid.UUID // of calls that were settled, each once
	// swept is false if all blocked keys of the lane are to be looked at, because a process may die
	// after it settled a call and before it promoted. Those up to sweptTo were.
	swept   bool
	sweptTo pgtype.UUID
	sweepAt time.Time
	again   bool // another sweep follows this one
	turn    bool // the sweep is next, although there are keys

	added, found *pace.Portion // of keys: those that were added, and those that a sweep finds
}

func newKeyPromotions(lane *heldLane) *keyPromotions {
	return &keyPromotions{
		lane:  lane,
		added: pace.NewPortion(parked.PromotedAtOnce),
		found: pace.NewPortion(parked.PromotedAtOnce),
	}
}

// add has the next call of an ordering key made due.
func (p *keyPromotions) add(key uuid.UUID) {
	switch {
	case slices.Contains(p.keys, key):
	case len(p.keys) < mostPromotions:
		p.keys = append(p.keys, key)
	case p.swept:
		p.sweep()
	default:
		p.again = true // this sweep may be past the key
	}
}

// sweep has all blocked keys looked at, from the first.
func (p *keyPromotions) sweep() {
	p.swept = false
	p.sweptTo = pgtype.UUID{}
	p.again = false
}

// due is at once if a call was settled or keys are left to be looked at, or else at the next sweep.
func (p *keyPromotions) due(time.Time) time.Time {
	if len(p.keys) > 0 || !p.swept {
		return time.Time{}
	}
	return p.sweepAt
}

// run makes calls due whose predecessor is settled by now, and returns how many. Some time after a
// sweep has ended (process.Pace.Promote) the next one begins. A sweep and the keys that were added
// take turns: neither waits for the other to end.
func (p *keyPromotions) run() (due int64, err error) {
	ctx, cancel := p.lane.sink.detached(p.lane.ctx)
	defer cancel()
	if p.swept && !time.Now().Before(p.sweepAt) {
		p.sweep()
	}
	p.turn = len(p.keys) > 0 && (p.swept || !p.turn)
	if p.turn {
		due, err = p.promoteKeys(ctx)
	} else {
		due, err = p.promoteSwept(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("promoting blocked calls: %w", err)
	}
	return due, nil
}

// promoteKeys handles keys that were added.
func (p *keyPromotions) promoteKeys(ctx context.Context) (due int64, err error) {
	_, err = p.added.Run(func(most int) (int, error) {
		now := p.keys[:min(len(p.keys), most)]
		if err := p.lane.sink.pool.QueryRow(ctx, parked.PromoteSQL, pgUUIDs(now)).Scan(&due); err != nil {
			return 0, err
		}
		p.keys = p.keys[len(now):]
		return len(now), nil
	})
	return due, err
}

// promoteSwept handles the next keys of the sweep.
func (p *keyPromotions) promoteSwept(ctx context.Context) (due int64, err error) {
	s := p.lane.sink
	_, err = p.found.Run(func(most int) (int, error) {
		err := s.pool.QueryRow(ctx, sweepSQL, s.name, p.lane.number, p.sweptTo, most).Scan(&due, &p.sweptTo)
		if err != nil || !p.sweptTo.Valid {
			return 0, err
		}
		return most, nil
	})
	p.noteSwept(err)
	return due, err
}

// noteSwept notes how a portion of a sweep has ended.
func (p *keyPromotions) noteSwept(err error) {
	p.swept = err == nil && !p.sweptTo.Valid
	switch {
	case !p.swept:
	case p.again:
		p.sweep()
	default:
		p.sweepAt = time.Now().Add(process.PaceOf(p.lane.ctx).Promote)
	}
}
