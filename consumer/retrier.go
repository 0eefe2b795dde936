package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// promoteAllSQL makes the first row of each ordering key due, for the keys of a partition that
// have blocked rows. It is for a process that died between a commit and the promote that follows
// it. It handles up to $5 keys at once, above $4 (null: from the first). Out: one row with how
// many rows became due, and the last of these keys, null if there are no more. It reads one entry
// of the index parked_blocked for each key, however many rows wait (T13).
const promoteAllSQL = `
with recursive keys (order_key) as (
  (select p.order_key from onlyonce.parked p
    where p.scope = $1 and p.topic = $2 and p.partition = $3 and p.kind <> 'call' and p.state = 'blocked'
      and p.order_key > coalesce($4::uuid, '00000000-0000-0000-0000-000000000000')
    order by p.order_key limit 1)
  union all
  select n.order_key from keys cross join lateral (
    select p.order_key from onlyonce.parked p
     where p.scope = $1
       and p.topic = $2
       and p.partition = $3
       and p.kind <> 'call'
       and p.state = 'blocked'
       and p.order_key > keys.order_key
     order by p.order_key limit 1) n)
select count(onlyonce.promote(k.order_key)), (array_agg(k.order_key order by k.order_key desc))[1]
  from (select order_key from keys limit $5) k`

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

// promoteAll checks each key that waits, a portion at a time, for as long as that takes.
func (r *retrier) promoteAll(ctx context.Context) (promoted int64, err error) {
	var last pgtype.UUID
	err = r.promoted.All(ctx, func(most int) (int, error) {
		var n int64
		row := r.c.queryRow(ctx, promoteAllSQL, r.c.cfg.Scope, r.id.Topic, r.id.Partition, last, most)
		if err := row.Scan(&n, &last); err != nil {
			return 0, err
		}
		promoted += n
		if !last.Valid {
			return 0, nil
		}
		return most, nil
	})
	return promoted, err
}

// retrier reads the parked messages of one owned partition, and tries them again through the
// engine, beside the worker and under the same lease. It never holds up the worker: if a key's
// messages fail, only messages of that key wait (D4).
type retrier struct {
	engine
	promotions promotions
	promoted   *pace.Portion // of the keys that promoteAllSQL handles
	wake       chan struct{}

	owed map[int64]int // by row: attempts that count in the database and are to be taken back

	polled *polledPartition
	sample frontierSample
	dueAt  time.Time // when the next row is due; zero: none is known

	// retryAlone makes it run attempts alone: which ones were under way when the previous owner
	// died is not known.
	retryAlone bool
	ownedSince time.Time // when this process took over
}

// newRetrier returns the retrier of a partition. The caller ends what it begins here: the poller
// asks about the partition until polled leaves, and a handler's goroutine runs until stopHandlers.
func newRetrier(own ownership, unclean bool) *retrier {
	return &retrier{
		engine:     engine{ownership: own},
		promotions: promotions{all: true},
		promoted:   pace.NewPortion(parked.PromotedAtOnce),
		wake:       make(chan struct{}, 1),
		owed:       map[int64]int{},
		polled:     own.c.poller.join(own.id, own.cur, own.state),
		retryAlone: unclean,
		ownedSince: time.Now(),
	}
}

func (r *retrier) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
	r.c.poller.pollSoon() // another row may be due next now
}

// setDue records that a row is due in a time, unless an earlier one is.
func (r *retrier) setDue(d time.Duration) {
	if at := time.Now().Add(d); r.dueAt.IsZero() || at.Before(r.dueAt) {
		r.dueAt = at
	}
}

func (r *retrier) isDue() bool { return !r.dueAt.IsZero() && !time.Now().Before(r.dueAt) }

// countsForBrake reports whether rows count for the brake. They do if failed messages are retried
// here; otherwise an operator has redriven them.
func (r *retrier) countsForBrake() bool { return r.c.cfg.OnFailure == ParkOrderingKey }

// promotions are the ordering keys whose first blocked message may be due. The worker and the
// retrier add keys, and the retrier takes them.
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
	keys = p.keys
	all = p.all || time.Since(p.promotedAt) > promoteAllEvery
	p.keys = nil
	p.all = false
	return keys, all
}

// allPromoted records that all keys were checked.
func (p *promotions) allPromoted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promotedAt = time.Now()
}

// promoteAllSoon is for transactions that may have parked anything.
func (r *retrier) promoteAllSoon() {
	r.promotions.addAll()
	r.wakeUp()
}

// promoteAllEvery bounds how long a row can stay blocked although nothing blocks it.
const promoteAllEvery = 5 * time.Minute

// frontierSample is one reading of the database's clock, followed by one of the log's end. In this
// order, records that were appended before the clock was read are below the end. (Records that were
// appended but are not replicated yet are above the high watermark. Replication is late by seconds,
// while the horizon is days.) When the position has passed that end, the frontier is the sample's
// time (K6).
type frontierSample struct {
	at    time.Time // by the database's clock, from a poll's answer
	asked time.Time // when that answer arrived; zero: there is no sample
	end   int64     // -1: no fetch that began after asked has returned yet
	last  time.Time // when the latest frontier was written
}

// sampleEvery is how often the owner of a partition samples how far it is in the time of its log.
// Horizons are hours and days.
const sampleEvery = 30 * time.Second
