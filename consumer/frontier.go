package consumer

import (
	"context"
	"fmt"
	"time"
)

// sampleEvery is how often the owner of a partition asks how far it is in the time of its log. Horizons are of hours and days.
const sampleEvery = 30 * time.Second

// sampleSQL reads the database's clock.
const sampleSQL = `select clock_timestamp()`

// frontierSQL notes that everything that was appended before a time is handled. In: cursor, epoch, nonce, run, the time. A row, unless the
// cursor has another owner, or the clock went back behind that time. In a run that an operator has begun elsewhere what was noted before means nothing, nor does what lies ahead of the clock.
// By primary keys.
const frontierSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
insert into onlyonce.frontiers as f (cursor_id, run, frontier) select id, $4, $5::timestamptz from held where $5::timestamptz <= clock_timestamp()
on conflict (cursor_id) do update set run = excluded.run,
  frontier = case when f.run = excluded.run and f.frontier <= clock_timestamp() then greatest(f.frontier, excluded.frontier) else excluded.frontier end`

// seen is what a fetch that has returned tells of the log's end.
type seen struct {
	began time.Time // before it was sent
	end   int64     // high watermark
}

// sample is one look at the database's clock, and then at the end of the log. In this order: what was appended before the first lies below the second.
// (Records that were appended and are not replicated yet lie above the high watermark, for as long as replication is behind: seconds, where
// the horizon is days.) When the position has passed that end, the frontier is the sample's time (K6).
type sample struct {
	at    time.Time // by the database's clock
	asked time.Time // when that answer was here; zero: there is no sample
	end   int64     // -1: no fetch that began behind asked has returned yet
	last  time.Time // when the latest frontier was written
}

// mark takes the next step of a sample, if it is there to be taken. None of the steps waits.
func (r *retrier) mark(ctx context.Context) error {
	s := &r.sample
	if r.c.events {
		return nil // keys of events are claimed when they are appended
	}
	ctx, cancel := r.c.bounded(ctx)
	defer cancel()
	if s.asked.IsZero() {
		if !s.last.IsZero() && time.Since(s.last) < sampleEvery {
			return nil
		}
		if err := r.c.pool.QueryRow(ctx, sampleSQL).Scan(&s.at); err != nil {
			return fmt.Errorf("reading the database's clock: %w", err)
		}
		s.asked, s.end = time.Now(), -1
		return nil
	}
	if s.end < 0 {
		latest := r.state.seen.Load()
		if latest == nil || !latest.began.After(s.asked) {
			return nil
		}
		s.end = latest.end
	}
	if r.state.position.Load() < s.end {
		return nil
	}
	if _, err := r.c.pool.Exec(ctx, frontierSQL, r.cur.id, r.cur.epoch, r.cur.nonce, r.cur.run, s.at); err != nil {
		return fmt.Errorf("noting how far the log is handled: %w", err)
	}
	s.asked, s.last = time.Time{}, time.Now()
	return nil
}
