package consumer

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// pruneRows is how many rows of progress one statement deletes at most.
const pruneRows = 4_096

// openSQL lists the transactions of this database's other sessions. One row: their virtual transaction ids. Every role sees them, those without
// a transaction id too, and those of other roles. Left out are sessions of which the server says that they belong to another database, or to no
// role (autovacuum, which may take hours): neither runs a batch. A prepared transaction has none, and needs none: it sends no
// statement any more, and another one from its position waits for it at the primary key. Takes no lock.
const openSQL = `
select coalesce(array_agg(l.virtualxid), '{}') from pg_locks l
 where l.locktype = 'virtualxid' and l.granted and l.pid <> pg_backend_pid()
   and not exists (select from pg_stat_activity a
                    where a.pid = l.pid and (a.usesysid is null or a.datid <> (select d.oid from pg_database d where d.datname = current_database())))`

// pruneSQL deletes rows of progress. In: cursor, run and offset from which on, run and offset below which, how many at most. One row: how many
// were deleted, and the run and the offset of the last of them. By the primary key. At any isolation level. Nothing is deleted unless a row stands at or
// above the bound: a failover may have lost what this owner remembers, and then the rows below are the position.
const pruneSQL = `
with old as materialized (
  select run, from_offset from onlyonce.progress
   where cursor_id = $1 and (run, from_offset) >= ($2, $3) and (run, from_offset) < ($4, $5)
     and exists (select from onlyonce.progress where cursor_id = $1 and (run, from_offset) >= ($4, $5))
   order by run, from_offset limit $6),
gone as (
  delete from onlyonce.progress p using old where p.cursor_id = $1 and p.run = old.run and p.from_offset = old.from_offset)
select count(*), coalesce(max(run), 0), coalesce(max(from_offset) filter (where run = (select max(run) from old)), 0) from old`

// place of a row of progress within a cursor.
type progressRow struct {
	run  int32
	from int64
}

// pruning deletes rows of progress that no transaction can need any more (T4).
//
// Above READ COMMITTED the fence compares the position as of its snapshot, and what stops an attempt whose snapshot is old is the primary key:
// the row of the batch that has committed meanwhile. So that row has to outlive every transaction that was open when it
// committed; one that begins later sees the position. (At READ COMMITTED the same holds for the moment between the fence's comparison and its
// insert.) The owner lists the transactions that are open after a commit, and deletes the rows below that one when none of
// those is left.
type pruning struct {
	newest    progressRow // the row of the last batch that this owner has committed
	committed int         // batches since the last look

	from   progressRow // below it everything is deleted
	below  progressRow // what may go when
	noted  []string    // these transactions have ended
	asking bool        // whether anything is noted
}

// due reports whether it is time to look. The first look is behind the first batch.
func (p *pruning) due() bool { return p.committed >= pace.Prune }

func startPruning() pruning {
	return pruning{committed: pace.Prune - 1, from: progressRow{run: 0, from: math.MinInt64}}
}

// took notes a batch that has committed.
func (p *pruning) took(run int32, from int64) {
	p.newest = progressRow{run, from}
	p.committed++
}

// prune takes the next step. What it does not get done waits for the next time.
func (w *worker) prune(ctx context.Context) {
	p := &w.pruning
	if !p.due() {
		return
	}
	p.committed = 0
	if err := w.pruneOld(ctx, p); err != nil && ctx.Err() == nil {
		w.c.cfg.Logger.Warn("onlyonce: old rows of progress were not deleted", "scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "error", err)
	}
}

func (w *worker) pruneOld(ctx context.Context, p *pruning) error {
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	var open []string
	if err := w.c.pool.QueryRow(ctx, openSQL).Scan(&open); err != nil {
		return fmt.Errorf("listing open transactions: %w", err)
	}
	if p.asking && slices.ContainsFunc(p.noted, func(t string) bool { return slices.Contains(open, t) }) {
		return nil
	}
	if p.asking {
		var n int
		var last progressRow
		err := w.c.pool.QueryRow(ctx, pruneSQL, w.cur.id, p.from.run, p.from.from, p.below.run, p.below.from, pruneRows).Scan(&n, &last.run, &last.from)
		if err != nil {
			return err
		}
		if n >= pruneRows { // more to come
			p.from = last
			return nil
		}
		p.from = p.below
	}
	p.below, p.noted, p.asking = p.newest, open, true
	return nil
}
