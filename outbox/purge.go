package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/watch"
)

// purgeSQL deletes settled calls whose retention has passed. In: sink, retention, how many, for how
// long the remote remembers a key (null: for ever). A call that was redriven under a new key is
// kept for that long too: until then its message, handled again, would find nothing and send it
// under its first key, which the remote does not know (O1). By the
// index parked_settled. It deletes a call only after the log has dropped it too: the log's row
// alone would look delivered. The call was in the log when it was parked, so that is certain if
// each segment of the log was opened later. It looks at no more rows than it deletes: if the log is
// not emptied, none of millions may be deleted. Those behind them wait until it is (T11, T13).
const purgeSQL = `
delete from onlyonce.parked
 where id = any (array(
         select p.id
           from (values (true, $2::interval),
                        (false, case when $4::interval is not null then greatest($2::interval, $4) end))
                  as kept (same, retention)
          cross join lateral (
            select p.id, p.parked_at from onlyonce.parked p
             where p.kind = 'call' and p.sink = $1 and (p.first_key is null) = kept.same
               and p.settled_at <= (select least(clock_timestamp(), w.at) from onlyonce.watched w) - kept.retention
             order by p.settled_at limit $3) p
          where p.parked_at < (select min(s.opened_at) from onlyonce.segments s where s.ring = 'outbox')
          limit $3))
   and settled_at is not null`

// purgeEvery is how often a relay looks for settled calls whose retention has passed.
const purgeEvery = time.Minute

// purgeAgain is how long it waits after a portion that was not deleted.
const purgeAgain = time.Second

// purgeLimit is how many rows one transaction deletes at most.
const purgeLimit = 1000

// upkeep returns the clocks that set due times right and delete settled calls. One relay of a sink
// runs them: the one that holds the first lane.
func (s *sender) upkeep(ctx context.Context, held *heldLanes) pace.Clocks {
	ofFirstLane := func(at time.Time) time.Time {
		if held.owners[0] == nil {
			return never
		}
		return at
	}
	righting := parked.NewRighting(s.cfg.Logger.With("sink", s.name))
	purger := &purger{sink: s.relaySink, deleted: pace.NewPortion(purgeLimit), watched: watch.New(s.pool, watch.Often)}
	return pace.Clocks{
		{
			Due: func(time.Time) time.Time { return ofFirstLane(righting.Due()) },
			Run: func() error {
				bounded, cancel := s.detached(ctx)
				defer cancel()
				return righting.Run(bounded, s.pool)
			},
		},
		{
			Due: func(time.Time) time.Time { return ofFirstLane(purger.at) },
			Run: func() error { return purger.purge(ctx) },
		},
	}
}

// purger is the clock that deletes a sink's settled calls whose retention has passed.
type purger struct {
	sink    *relaySink
	at      time.Time
	deleted *pace.Portion
	watched *watch.Clock
}

// purge deletes a portion of them.
func (p *purger) purge(ctx context.Context) error {
	s := p.sink
	bounded, cancel := s.detached(ctx)
	defer cancel()
	if err := p.watched.Look(bounded); err != nil {
		return fmt.Errorf("deleting settled calls: %w", err)
	}
	deleted := 0
	more, err := p.deleted.Run(func(most int) (int, error) {
		tag, err := s.pool.Exec(bounded, purgeSQL, s.name, s.cfg.Retention, most, windowBound(s.limits.KeyWindow))
		deleted = int(tag.RowsAffected())
		return deleted, err
	})
	switch {
	case guard.SQLState(err) == codeDenied:
		ring.LogNotRotating(ctx, s.cfg.Logger)
		p.at = time.Now().Add(24 * time.Hour)
		return nil
	case err != nil:
		p.at = time.Now().Add(purgeAgain)
		return fmt.Errorf("deleting settled calls: %w", err)
	}
	if _, err := s.pool.Exec(bounded, forgetRatesSQL, s.name); err != nil {
		return fmt.Errorf("forgetting rates: %w", err)
	}
	if !more {
		p.at = time.Now().Add(purgeEvery)
	}
	if deleted > 0 {
		s.emit.purged(int64(deleted))
	}
	return nil
}
