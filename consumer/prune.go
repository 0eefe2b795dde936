package consumer

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// pruneRows is the most rows of progress that one statement deletes.
const pruneRows = 4_096

// openTransactionsSQL lists the transactions of this database's other sessions. Out: one row with
// their virtual transaction ids. Every role sees them, also those without a transaction id and
// those of other roles.
//
// It leaves out sessions that by the server belong to another database, or to no role (autovacuum,
// which may take hours): neither runs a batch. A prepared transaction has no such id, and needs
// none. It sends no further statement, and another transaction from its position waits for it at
// the primary key. The query takes no lock.
const openTransactionsSQL = `
select coalesce(array_agg(l.virtualxid), '{}') from pg_locks l
 where l.locktype = 'virtualxid' and l.granted and l.pid <> pg_backend_pid()
   and not exists (select from pg_stat_activity a
                    where a.pid = l.pid and (a.usesysid is null or a.datid <> (select d.oid from pg_database d where d.datname = current_database())))`

// pruneSQL deletes rows of progress. In: cursor, run and offset of the lower bound, run and offset
// of the upper bound, most rows to delete. Out: one row with how many were deleted, and the run and
// the offset of the last of them. By the primary key, at any isolation level. It deletes nothing
// unless there is a row at or above the upper bound: a failover may have lost what this owner
// remembers, and then the rows below are the position.
const pruneSQL = `
with old as materialized (
  select run, from_offset from onlyonce.progress
   where cursor_id = $1 and (run, from_offset) >= ($2, $3) and (run, from_offset) < ($4, $5)
     and exists (select from onlyonce.progress where cursor_id = $1 and (run, from_offset) >= ($4, $5))
   order by run, from_offset limit $6),
gone as (
  delete from onlyonce.progress p using old where p.cursor_id = $1 and p.run = old.run and p.from_offset = old.from_offset)
select count(*), coalesce(max(run), 0), coalesce(max(from_offset) filter (where run = (select max(run) from old)), 0) from old`

// progressRow is the place of a row of progress, or of done, within a cursor.
type progressRow struct {
	run  int32
	from int64
}

// pruning deletes rows of progress that no transaction can need any more (T4).
//
// Above READ COMMITTED the fence compares the position as of its snapshot. If an attempt's snapshot
// is old, only the primary key stops it: the row of the batch that has committed meanwhile. So that
// row must outlive every transaction that was open when it committed; a transaction that begins
// later sees the position. (At READ COMMITTED the same holds for the moment between the fence's
// comparison and its insert.) After a commit the owner lists the open transactions. When none of
// them is left, it deletes the rows below that of the commit.
type pruning struct {
	newest    progressRow // of the last batch that this owner has committed
	committed int         // batches since the last check

	from  progressRow // below it everything is deleted
	below progressRow // below it is what openAtNote was noted for
	openAtNote
}

// openAtNote are the transactions that were open when rows were noted as old. The rows may be
// deleted when all of these have ended.
type openAtNote struct {
	waitFor []string
	waiting bool // rows are noted
}

// step lists the open transactions. If none of those of the note is left, it has the noted rows
// removed, which reports whether that was all. Then it has the rows noted that are old by now.
// Otherwise the next call goes on.
func (o *openAtNote) step(ctx context.Context, c *Consumer, remove func() (all bool, err error), note func()) error {
	var open []string
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	if err := c.pool.QueryRow(bounded, openTransactionsSQL).Scan(&open); err != nil {
		return fmt.Errorf("listing open transactions: %w", err)
	}
	if o.waiting && slices.ContainsFunc(o.waitFor, func(t string) bool { return slices.Contains(open, t) }) {
		return nil
	}
	if o.waiting {
		if all, err := remove(); err != nil || !all {
			return err
		}
	}
	note()
	o.waitFor, o.waiting = open, true
	return nil
}

// due reports whether it is time for a check. The first one is after the first batch.
func (p *pruning) due() bool { return p.committed >= pace.Prune }

func startPruning() pruning {
	return pruning{committed: pace.Prune - 1, from: progressRow{run: 0, from: math.MinInt64}}
}

// batchCommitted records a batch that has committed.
func (p *pruning) batchCommitted(run int32, from int64) {
	p.newest = progressRow{run, from}
	p.committed++
}

// pruneStep takes the next step. What it cannot finish waits for the next call.
func (w *worker) pruneStep(ctx context.Context) {
	p := &w.pruning
	if !p.due() {
		return
	}
	p.committed = 0
	w.notPruned(ctx, "progress", w.pruneProgress(ctx, p))
}

// notPruned logs that old rows of a table were not deleted, unless the work has ended.
func (w *worker) notPruned(ctx context.Context, table string, err error) {
	if err != nil && ctx.Err() == nil {
		w.c.cfg.Logger.Warn("onlyonce: old rows of "+table+" were not deleted", "scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "error", err)
	}
}

func (w *worker) pruneProgress(ctx context.Context, p *pruning) error {
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	return p.step(ctx, w.c, func() (all bool, err error) {
		var n int
		var last progressRow
		err = w.c.pool.QueryRow(ctx, pruneSQL, w.cur.id, p.from.run, p.from.from, p.below.run, p.below.from, pruneRows).Scan(&n, &last.run, &last.from)
		switch {
		case err != nil:
			return false, err
		case n >= pruneRows: // more rows to delete
			p.from = last
			return false, nil
		}
		p.from = p.below
		return true, nil
	}, func() { p.below = p.newest })
}
