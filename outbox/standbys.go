package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/primary"
)

// replicasSQL reads which standbys stream from this server, and whether this role may see how far
// they are. One row.
const replicasSQL = `
select array(select coalesce(application_name, '') from pg_stat_replication),
       pg_has_role(current_user, 'pg_read_all_stats', 'usage')`

// walPositionSQL reads the server's timeline and how far its log has been written, which includes
// the commits that its session has seen.
const walPositionSQL = `
select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || ' ' || pg_current_wal_lsn()`

// standbysSQL counts the named standbys that have flushed the log up to a position, and reads
// whether the position is of the server's timeline. In: names, position. One row.
const standbysSQL = `
select count(distinct application_name),
       substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) = split_part($2, ' ', 1)
  from pg_stat_replication where application_name = any ($1) and flush_lsn >= split_part($2, ' ', 2)::pg_lsn`

// checkStandbys returns an error if the relay would wait for ever, and warns of standbys that it
// does not wait for (O9).
func checkStandbys(ctx context.Context, pool *primary.Pool, cfg *RelayConfig) error {
	var names []string
	var sees bool
	if err := pool.QueryRow(ctx, replicasSQL).Scan(&names, &sees); err != nil {
		return fmt.Errorf("reading which standbys stream: %w", err)
	}
	switch {
	case len(cfg.WaitFor) == 0 && len(names) > 0:
		cfg.Logger.Warn("onlyonce: the server has standbys, and calls go out without waiting for them: a "+
			"failover may leave calls for work that was undone; see RelayConfig.WaitFor",
			"standbys", len(names))
	case len(cfg.WaitFor) > 0 && !sees:
		return fmt.Errorf("RelayConfig.WaitFor: the relay's role may not see how far standbys have flushed: " +
			"grant it pg_monitor")
	}
	for _, want := range cfg.WaitFor {
		if !slices.Contains(names, want) {
			cfg.Logger.Warn("onlyonce: a standby of RelayConfig.WaitFor does not stream: no call is sent until it does",
				"application_name", want)
		}
	}
	return nil
}

// queueWALPosition queues the statement that awaitStandbys needs, if the relay waits for standbys.
func (s *relaySink) queueWALPosition(b *pgx.Batch, position *string) {
	if len(s.cfg.WaitFor) > 0 {
		b.Queue(walPositionSQL).QueryRow(func(r pgx.Row) error { return r.Scan(position) })
	}
}

// awaitStandbys returns true after every standby that RelayConfig.WaitFor names has flushed the log
// up to a position, which is empty if the relay waits for none. It returns false if the lane is to
// be given back or the lease ends before, or if a standby was promoted meanwhile: what was
// committed at the position may be undone, and positions of the new timeline pass it (O9).
func (h *heldLane) awaitStandbys(position string) bool {
	if position == "" {
		return true
	}
	pause := 2 * time.Millisecond
	for {
		var n int
		var sameTimeline bool
		ctx, cancel := context.WithTimeout(h.ctx, h.sink.dbTimeout)
		err := h.sink.pool.QueryRow(ctx, standbysSQL, h.sink.cfg.WaitFor, position).Scan(&n, &sameTimeline)
		cancel()
		switch {
		case err == nil && !sameTimeline:
			return false
		case err == nil && n == len(h.sink.cfg.WaitFor):
			return true
		case err != nil && h.ctx.Err() == nil:
			h.sink.emit.failed(fmt.Errorf("reading how far the standbys have flushed: %w", err), pause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-h.releaseRequested:
			timer.Stop()
			return false
		case <-h.ctx.Done():
			timer.Stop()
			return false
		}
		pause = min(2*pause, 250*time.Millisecond)
	}
}
