package ring

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// carriedAtOnce is how many calls a step of a carry-over reads at most, in batches: up to 1,023
// more. A step takes some 50 ms then, so that neither Config.Timeout nor the lease ends one,
// however many calls wait.
const carriedAtOnce = 10_000

// outboxLanes is how many lanes the outbox has for each sink.
const outboxLanes = 16

// carryWalk is how far the carry-over of a segment has come: through the lanes of the outbox in the
// order of their sinks, and in a lane by transaction and id. It outlasts other steps of the ring,
// for example a new current segment: what was carried before is in a younger segment too, and no
// call whose key is in a closed segment is written any more.
//
// It does not outlast the lease. Nor does it outlast the server: one that was promoted may lack
// what was carried, and in another cluster transaction ids mean something else. The carry-over
// begins anew then.
type carryWalk struct {
	slot   int16
	server time.Time // when it started
	sink   string
	lane   int16
	xid    string
	id     int64
}

// next returns the walk at the beginning of a lane.
func (w carryWalk) next(sink string, lane int16) carryWalk {
	return carryWalk{slot: w.slot, server: w.server, sink: sink, lane: lane, xid: "0", id: math.MinInt64}
}

// carrySinkSQL finds the sink that a carry-over goes on with. In: sink. Out: the first one after
// it; no row if there is none.
const carrySinkSQL = `select sink from onlyonce.batches where sink > $1 order by sink limit 1`

// carryOver copies rows that must outlast a closed segment into the current one, a portion of them,
// and reports whether that was all.
func (r *Rotator) carryOver(ctx context.Context, st *ringState, slot int16) (done bool, err error) {
	if r.ring.Carry == "" {
		return true, nil
	}
	left, err := r.carried.Run(func(most int) (int, error) {
		walk, err := r.carryPortion(ctx, st, slot, most)
		if err != nil {
			return 0, err
		}
		r.carry = walk
		if walk == nil {
			return 0, nil
		}
		return most, nil
	})
	if err != nil {
		return false, fmt.Errorf("carrying rows of segment %s over: %w", r.ring.Tables[slot], err)
	}
	return !left, nil
}

// carryPortion is carryOver of up to most calls. It returns where the next portion begins: nil if
// no call is left. The segment is still asked by claims when this commits, and the current one is
// the ring's: its row is locked, and has not moved since it was read (K6).
func (r *Rotator) carryPortion(ctx context.Context, st *ringState, slot int16, most int) (walk *carryWalk, err error) {
	err = r.inTransaction(ctx, r.cfg.Timeout, func(ctx context.Context, tx pgx.Tx) error {
		var version int64
		var retired *int16
		if err := tx.QueryRow(ctx, lockRowSQL, r.ring.Name).Scan(&version, &retired); err != nil {
			return fmt.Errorf("locking ring %s: %w", r.ring.Name, err)
		}
		if version != st.version {
			return ErrMoved
		}
		var server time.Time
		if err := tx.QueryRow(ctx, `select pg_postmaster_start_time()`).Scan(&server); err != nil {
			return err
		}
		from := carryWalk{slot: slot, server: server}.next("", outboxLanes)
		if r.carry != nil && r.carry.slot == slot && r.carry.server.Equal(server) {
			from = *r.carry
		}
		walk, err = r.carryLanes(ctx, tx, from, r.ring.Tables[st.cur], int64(most))
		return err
	})
	return walk, err
}

// carryLanes carries over what the lanes have to send from a place on, until left calls were read,
// and returns where the next portion begins: nil if no call is left.
func (r *Rotator) carryLanes(
	ctx context.Context,
	tx pgx.Tx,
	at carryWalk,
	current string,
	left int64,
) (*carryWalk, error) {
	sql := strings.ReplaceAll(r.segmentSQL(r.ring.Carry, at.slot), "CURRENT", current)
	for left > 0 {
		if at.lane == outboxLanes {
			var sink string
			switch err := tx.QueryRow(ctx, carrySinkSQL, at.sink).Scan(&sink); {
			case errors.Is(err, pgx.ErrNoRows):
				return nil, nil
			case err != nil:
				return nil, err
			}
			at = at.next(sink, 0)
		}
		var n, id *int64
		var xid *string
		if err := tx.QueryRow(ctx, sql, at.sink, at.lane, at.xid, at.id, left).Scan(&n, &xid, &id); err != nil {
			return nil, err
		}
		if n == nil {
			at = at.next(at.sink, at.lane+1)
			continue
		}
		at.xid = *xid
		at.id = *id
		left -= *n
	}
	return &at, nil
}
