package consumer

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// pruneRows is the most rows of progress, or of done, that one statement deletes.
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
                    where a.pid = l.pid
                      and (a.usesysid is null
                           or a.datid <> (select d.oid from pg_database d where d.datname = current_database())))`

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
  delete from onlyonce.progress p
   using old where p.cursor_id = $1 and p.run = old.run and p.from_offset = old.from_offset)
select count(*), coalesce(max(run), 0), coalesce(max(from_offset) filter (where run = (select max(run) from old)), 0)
  from old`

// progressRow is the place of a row of progress, or of done, within a cursor.
type progressRow struct {
	run  int32
	from int64
}

// pruning deletes rows of one of the two tables that no transaction can need any more: of progress
// (T4) or of done (C5).
//
// Above READ COMMITTED the fence compares the position as of its snapshot. If an attempt's snapshot
// is old, only the primary key stops it: the row of the batch that has committed meanwhile, or of
// the offset that is below the position by now. So that row must outlive every transaction that was
// open when it committed; a transaction that begins later sees the position. Transactions count
// from their begin, also those that have no transaction id yet. (At READ COMMITTED the same holds
// for the moment between the fence's comparison and its insert.) After a commit the owner lists the
// open transactions. When none of them is left, it deletes the rows below that of the commit.
type pruning struct {
	own    *ownership
	table  string
	remove func(ctx context.Context, from, below progressRow) (reached progressRow, err error)

	from    progressRow // below it everything is deleted
	below   progressRow // below it the rows are noted as old; zero: none are
	waitFor []string    // transactions that were open then: the rows may be deleted when all have ended
	waiting bool        // rows are noted
}

func (own *ownership) progressPruning() pruning {
	return pruning{
		own:    own,
		table:  "progress",
		remove: own.pruneProgress,
		from:   progressRow{run: 0, from: math.MinInt64},
	}
}

func (own *ownership) donePruning() pruning {
	return pruning{own: own, table: "done", remove: own.pruneDone, from: own.cur.oldestDone()}
}

// step deletes the rows that were noted, if none of the transactions is left that were open then,
// and notes those that are old by now: below a position that was reached. What it cannot finish
// waits for the next call (T4, C5).
func (p *pruning) step(ctx context.Context, position progressRow) {
	var open []string
	err := p.own.c.queryRow(ctx, openTransactionsSQL).Scan(&open)
	switch {
	case err != nil:
		err = fmt.Errorf("listing open transactions: %w", err)
	case p.waiting && slices.ContainsFunc(p.waitFor, func(t string) bool { return slices.Contains(open, t) }):
		return
	case p.waiting:
		p.from, err = p.remove(ctx, p.from, p.below)
	}
	if err == nil && (!p.waiting || p.from == p.below) {
		p.below = position
		p.waitFor = open
		p.waiting = true
	}
	p.own.notPruned(ctx, p.table, err)
}

// notPruned logs that old rows of a table were not deleted, unless the work has ended.
func (own *ownership) notPruned(ctx context.Context, table string, err error) {
	if err != nil && ctx.Err() == nil {
		own.c.cfg.Logger.Warn("onlyonce: old rows of "+table+" were not deleted",
			"scope", own.c.cfg.Scope, "topic", own.id.Topic, "partition", own.id.Partition, "error", err)
	}
}

// deleteOld returns a statement that deletes old rows from a place on, which it moves.
func (own *ownership) deleteOld(
	ctx context.Context,
	sql string,
	from *progressRow,
	below progressRow,
	args ...any,
) pace.Statement {
	return func(most int) (n int, err error) {
		var last progressRow
		row := own.c.queryRow(ctx, sql, append(slices.Clip(args), from.run, from.from, below.run, below.from, most)...)
		err = row.Scan(&n, &last.run, &last.from)
		switch {
		case err != nil:
		case n < most:
			*from = below
		default:
			*from = last
		}
		return n, err
	}
}

// pruneProgress deletes a portion of rows of progress.
func (own *ownership) pruneProgress(ctx context.Context, from, below progressRow) (progressRow, error) {
	_, err := own.progress.Run(own.deleteOld(ctx, pruneSQL, &from, below, own.cur.id))
	return from, err
}

// pruneDone deletes rows of done, in as many portions as that takes (C5).
func (own *ownership) pruneDone(ctx context.Context, from, below progressRow) (progressRow, error) {
	if from == below {
		return from, nil
	}
	old := own.deleteOld(ctx, pruneDoneSQL, &from, below, own.cur.id, own.cur.epoch, own.cur.nonce)
	err := own.done.All(ctx, old)
	return from, err
}

// pruneOldDone deletes what an owner with slots has left below the position. The raise has ended or
// fenced out every transaction that could need it.
func (own *ownership) pruneOldDone(ctx context.Context, below progressRow) {
	_, err := own.pruneDone(ctx, own.cur.oldestDone(), below)
	own.notPruned(ctx, "done", err)
}

// pruneDoneSQL deletes rows of onlyonce.done. In: cursor, epoch, nonce, run and offset of the lower
// bound, run and offset of the upper bound, most rows to delete. Out: one row with how many were
// deleted, and the run and the offset of the last of them. The lower bound keeps it from walking
// over entries that are deleted already while an old snapshot prevents vacuum. It deletes nothing
// that is not below the position: a failover may have set that back since the owner noted the upper
// bound. By the primary keys (C5).
const pruneDoneSQL = `
with held as (
  select p.id from onlyonce.leases l join onlyonce.positions p on p.id = l.id
   where l.id = $1 and l.epoch = $2 and l.nonce = $3 and p.run = $6 and p.next_offset >= $7),
old as materialized (
  select run, "offset" from onlyonce.done
   where cursor_id = $1 and (run, "offset") >= ($4, $5) and (run, "offset") < ($6, $7) and exists (select from held)
   order by run, "offset" limit $8),
gone as (
  delete from onlyonce.done d using old where d.cursor_id = $1 and d.run = old.run and d."offset" = old."offset")
select count(*), coalesce(max(run), 0), coalesce(max("offset") filter (where run = (select max(run) from old)), 0)
  from old`

// oldestDone is where the rows of onlyonce.done begin that may be pruned. During a replay those of
// the run that it interrupts are needed when it ends.
func (c *cursor) oldestDone() progressRow {
	if c.replayUntil != nil {
		return progressRow{c.run, math.MinInt64}
	}
	return progressRow{math.MinInt32, math.MinInt64}
}
