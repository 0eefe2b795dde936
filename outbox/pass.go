package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
)

const (
	// maxChunk is how many rows of a pass may be called before the cursor is written again. From
	// onlyonce.lanes.started_at on, that many rows above last_id may have been called. It is part
	// of the stored format.
	maxChunk = 1024
	// firstRows is how many rows are read whole together with the pass that begins. If the pass
	// before had more than that, the ids of the next one are read first.
	firstRows = 64
	// maxRefs bounds the ids that are held in memory, maxChunkBytes the bodies.
	maxRefs       = 100_000
	maxChunkBytes = 4 << 20
)

// loadCursorSQL reads a lane's cursor. In: lane id. One row: version, last id, whether there is a
// pass, whether rows above may have been called, whether the cursor is of another database cluster.
// onlyonce.advance checks the last for each pass that begins; it is read here because a pass that
// was begun in another cluster must not go on either.
const loadCursorSQL = `
select a.version, a.last_id, a.target is not null, isfinite(a.started_at),
       coalesce(a.system_id <> (select c.system_identifier from pg_control_system() c), false)
       or pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(coalesce(a.target, a.prev))
       or exists (select 1 from onlyonce.outbox_log r where r.sink = a.sink and r.lane = a.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot()))
  from onlyonce.lanes a where a.id = $1`

// fenceSQL is the first statement of every write of a lane's owner. In: lease, epoch, nonce;
// lock_timeout, statement_timeout and idle_in_transaction_session_timeout in milliseconds. Out: one
// row.
//
// It raises OO001 if another relay owns the lease, and keeps the lease from being taken over until
// the transaction ends, which the timeouts bound. It needs READ COMMITTED, so that later statements
// see what a previous owner has committed.
//
// synchronous_commit = off is not accepted from the session: a crash would lose a commit that is
// not flushed, although the call was made. The journal's flush also covers the rows that it is
// about, because they were written to the log before it.
const fenceSQL = `
select set_config('lock_timeout', $4, true), set_config('statement_timeout', $5, true),
       set_config('idle_in_transaction_session_timeout', $6, true), set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('synchronous_commit',
         case current_setting('synchronous_commit') when 'off' then 'local' else current_setting('synchronous_commit') end, true),
       onlyonce.hold($1, $2, $3::uuid)`

// advanceSQL moves the cursor; see the function's comment in the migration. In: lane id, version,
// last id, freeze, keep started_at, quiet.
const advanceSQL = `select onlyonce.advance($1, $2, $3, $4, $5, $6)`

// passRowRefs reads the places (slot, ctid) of the rows of a lane's pass above last_id: those that
// became visible between prev and target (O2). At prev their transactions were in progress or had
// not begun. By the index outbox_log_new. "offset 0" keeps the planner from making the second half
// a join, for which it would read all of a lane.
const passRowRefs = `(
  select r.id, r.slot, r.ctid, octet_length(r.body) as size from onlyonce.outbox_log r
   where r.sink = a.sink and r.lane = a.lane and r.id > a.last_id
     and r.xid >= pg_snapshot_xmax(a.prev) and r.xid < pg_snapshot_xmax(a.target) and pg_visible_in_snapshot(r.xid, a.target)
  union all
  select r.* from pg_snapshot_xip(a.prev) x cross join lateral (
    select r.id, r.slot, r.ctid, octet_length(r.body) from onlyonce.outbox_log r
     where r.sink = a.sink and r.lane = a.lane and r.xid = x and r.id > a.last_id offset 0) r
   where pg_visible_in_snapshot(x, a.target))`

// firstCallTime is when a call under a row's key can first have been made: at the pass's start. The
// database may have lost a history since, in which the message may have been handled or the row
// read. Then it is the time of the message or of the row (O6). Of r in the log and its lane a.
const (
	historyLost   = `(r.redo or coalesce(r.origin_time < a.history_at, false) or coalesce(r.created_at < a.history_at, false))`
	firstCallTime = `case when ` + historyLost + ` then least(r.origin_time, greatest(r.created_at, r.not_before), a.started_at) else a.started_at end`
)

// callColumns lists the columns that a callAttempt is made of. The clock is read at least once
// after the row was. It uses date_part because the numeric of extract costs several times as much
// for each row.
const callColumns = `
       r.id, r.key, r.order_key, r.tenant, r.scope, r.name, r.method, r.target, r.headers, coalesce(r.trace, ''), r.body, r.capture, r.sealed,
       (date_part('epoch', clock_timestamp() - ` + firstCallTime + `) * 1000000)::bigint,
       ` + historyLost + `,
       coalesce((date_part('epoch', r.not_before - clock_timestamp()) * 1000000)::bigint, 0),
       r.order_key is not null and exists (select 1 from onlyonce.parked p where p.order_key = r.order_key and p.settled_at is null)`

// firstRowsSQL reads the first rows of a pass. In: lane id, version, how many. READ COMMITTED; no
// row if the lane has moved. It sorts the rows' places, and not the rows.
const firstRowsSQL = `
select` + callColumns + `
  from onlyonce.lanes a
 cross join lateral (
   select p.id, p.slot, p.ctid, sum(p.size) over (order by p.id) - p.size as before from (
     select * from ` + passRowRefs + ` p order by p.id limit $3) p) p
 cross join lateral (select * from onlyonce.outbox_log r where r.slot = p.slot and r.ctid = p.ctid offset 0) r
 where a.id = $1 and a.version = $2 and p.before < 4194304 -- maxChunkBytes
 order by r.id`

// collectRefsSQL reads the places of the rows of a pass. In: lane id, version, how many. Out: id,
// slot, ctid, bytes of the body.
const collectRefsSQL = `
select p.id, p.slot, p.ctid, p.size
  from onlyonce.lanes a cross join lateral ` + passRowRefs + ` p
 where a.id = $1 and a.version = $2
 order by p.id limit $3`

// fetchRowsSQL reads rows by their places. In: lane id, slot, ctids. By a TID scan: any further
// condition would let the planner read by an index instead. A segment that was emptied and filled
// again has other rows at the same place, so the reader compares the ids.
const fetchRowsSQL = `
select` + callColumns + `
  from onlyonce.lanes a, onlyonce.outbox_log r
 where a.id = $1 and r.slot = $2 and r.ctid = any ($3::tid[])`

// parkSQL copies rows of the log, whole, to onlyonce.parked, from which they are tried again. In:
// sink, lane; arrays of one length: ids, keys, states, reasons, errors, attempts, microseconds
// until they are due (null: never by themselves), whether a call can have been made, status,
// headers and body of an answer that was captured; whether given-up calls release their ordering
// keys. By the index outbox_log_key.
//
// A call's first time is what it was at the read, because the lane's version is the same, or
// onlyonce.advance raises. A row that is parked already stays as it is. So does one whose key is
// parked under another row, because it is the same call.
const parkSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, order_key, sink, lane, partition, row_id, "offset", call_name, method,
                             target, header_names, header_values, body, trace, capture, sealed, next_attempt_at, first_attempt_at,
                             response_status, response_headers, response_body)
select 'call', d.state, d.reason, d.error, d.attempts, r.tenant, r.scope, r.key,
       case when $14 and d.state in ('waiting', 'reconcile') then null else r.order_key end, r.sink, r.lane, r.lane, r.id, r.id, r.name, r.method, r.target,
       array(select convert_to(split_part(l, ': ', 1), 'UTF8') from regexp_split_to_table(r.headers, E'\n') with ordinality h(l, n) where l <> '' order by n),
       array(select convert_to(substr(l, strpos(l, ': ') + 2), 'UTF8') from regexp_split_to_table(r.headers, E'\n') with ordinality h(l, n) where l <> '' order by n),
       r.body, r.trace, r.capture, r.sealed, clock_timestamp() + d.delay * interval '1 microsecond', case when d.called then ` + firstCallTime + ` end,
       d.status, d.response_headers, d.response_body
  from unnest($3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::int[], $9::bigint[], $10::boolean[], $11::int[], $12::text[], $13::bytea[])
       as d(id, key, state, reason, error, attempts, delay, called, status, response_headers, response_body)
  join onlyonce.outbox_log r on r.key = d.key and r.id = d.id and r.sink = $1 and r.lane = $2
  join onlyonce.lanes a on a.sink = $1 and a.lane = $2
 order by r.id
on conflict do nothing`

// errRowsGone means that the log has lost a row that was not sent. Only an operator can repair
// that.
var errRowsGone = errors.New("outbox: rows of the log that were not sent are gone: was a segment emptied by hand?")

// cursor is what a lane's owner knows of its row in onlyonce.lanes.
type cursor struct {
	version, last int64
	unread        bool // the pass may hold rows above last
	// How many rows above last a previous owner may have called: their age counts from its journal.
	mayBeCalled int
}

// readKind says what a turn reads after its commit.
type readKind int

const (
	readNothing readKind = iota
	readFirstRows
	readRefList
	readRows
)

// loadCursor reads the cursor, after a take-over or if it is unknown what has committed.
func (o *laneOwner) loadCursor() error {
	ctx, cancel := o.sender.detached(o.ctx)
	defer cancel()
	if err := fault.Point(fault.RelayLoading); err != nil {
		return err
	}
	c := cursor{mayBeCalled: maxChunk}
	var called, foreign bool
	if err := readCommitted(ctx, o.sender.pool, func(b *pgx.Batch) {
		b.Queue(loadCursorSQL, o.lease.ID).QueryRow(func(r pgx.Row) error { return r.Scan(&c.version, &c.last, &c.unread, &called, &foreign) })
	}); err != nil {
		return fmt.Errorf("reading the cursor of lane %d: %w", o.lane, err)
	}
	if foreign {
		return fmt.Errorf("%w: lane %d of sink %s", ErrRebase, o.lane, o.sender.name)
	}
	if !c.unread || !called {
		c.mayBeCalled = 0
	}
	o.cursor, o.cursorKnown, o.chunk, o.refs, o.moreRefs = c, true, nil, nil, false
	o.versionSeen.Store(c.version)
	o.newRows = true
	return nil
}

// readPass continues the pass that is there, or begins the next one.
func (o *laneOwner) readPass() error {
	if o.cursor.unread {
		return o.advance(nil, o.cursor.last, false, o.passRead())
	}
	return o.advance(nil, 0, true, o.passRead())
}

// passRead says how to begin reading the next pass: whole rows, unless there may be many.
func (o *laneOwner) passRead() readKind {
	if o.expectMany {
		return readRefList
	}
	return readFirstRows
}

// finishChunk writes what became of the chunk and reads the next one.
func (o *laneOwner) finishChunk() error {
	c := o.chunk
	c.committing = true
	toPark := c.rowsToPark(o)
	last := o.cursor.last
	if c.next > 0 {
		last = c.rows[c.next-1].ID
	}
	whole := c.next == len(c.rows)
	open := o.mayStartCalls()
	switch {
	case whole && len(o.refs) == 0 && !o.moreRefs: // the pass is done
		if open {
			return o.advance(toPark, 0, true, o.passRead())
		}
		err := o.advance(toPark, last, false, readNothing)
		o.cursor.unread, o.newRows = o.cursor.unread && err != nil, true
		return err
	case !whole || !open:
		err := o.advance(toPark, last, false, readNothing)
		o.cursor.unread, o.newRows, o.refs, o.moreRefs = true, true, nil, false
		return err
	case len(o.refs) == 0:
		return o.advance(toPark, last, false, readRefList)
	}
	return o.advance(toPark, last, false, readRows)
}

// advance moves the cursor in a transaction of its own, and in the same round trip reads what comes
// next (O2, O3). No call that it reads is made before its COMMIT is known.
func (o *laneOwner) advance(toPark []*callAttempt, last int64, freeze bool, next readKind) error {
	var (
		rows       []*callAttempt
		refs       []rowRef
		fetching   []rowRef // of refs, what is fetched
		flushedLSN string
	)
	if next == readRows {
		fetching = o.nextRefs()
	}
	readAt := time.Now() // the database measures ages after this moment
	mayBeCalled := 0
	if !freeze {
		mayBeCalled = o.cursor.mayBeCalled
		if o.chunk != nil {
			mayBeCalled = max(mayBeCalled-o.chunk.next, 0)
		}
	}
	if err := fault.Point(fault.RelayTurning); err != nil {
		return err
	}
	err := o.fenced(func(b *pgx.Batch) {
		queueParking(b, o, toPark)
		b.Queue(advanceSQL, o.lease.ID, o.cursor.version, last, freeze, mayBeCalled > 0, next == readNothing).Exec(ignoreTag)
	}, func(b *pgx.Batch) {
		switch next {
		case readFirstRows:
			b.Queue(firstRowsSQL, o.lease.ID, o.cursor.version+1, firstRows).Query(collect(&rows, newRowReader().readRow))
		case readRefList:
			b.Queue(collectRefsSQL, o.lease.ID, o.cursor.version+1, maxRefs).Query(collect(&refs, newRefReader()))
		case readRows:
			o.queueFetch(b, fetching, &rows)
		}
		if len(o.sender.cfg.WaitFor) > 0 {
			b.Queue(lsnSQL).QueryRow(func(r pgx.Row) error { return r.Scan(&flushedLSN) })
		}
	})
	if err == nil {
		err = fault.Point(fault.RelayTurned) // as if the answer were lost
	}
	switch {
	case guard.SQLState(err) == codeMoved:
		o.cursorKnown = false // an earlier attempt, whose answer was lost, has done it
	case err != nil:
		return err
	default:
		o.cursor.version++
		o.versionSeen.Store(o.cursor.version)
		o.cursor.last, o.cursor.mayBeCalled = last, mayBeCalled
	}
	o.chunkCommitted(toPark)
	o.chunk = nil
	if !o.cursorKnown {
		return nil
	}
	switch next {
	case readFirstRows:
		size := 0
		for _, a := range rows {
			size += len(a.Body)
		}
		o.moreRefs = len(rows) == firstRows || size >= maxChunkBytes
		o.expectMany = o.moreRefs
		o.cursor.unread, o.newRows = len(rows) > 0, len(rows) > 0
	case readRefList:
		o.refs, o.moreRefs = refs, len(refs) == maxRefs
		o.expectMany = len(refs) > firstRows
		o.cursor.unread, o.newRows = len(refs) > 0, len(refs) > 0 || !freeze
		if len(refs) == 0 {
			return nil
		}
		fetching = o.nextRefs()
		if err := o.fetch(fetching, &rows); err != nil {
			o.cursor.unread = true
			o.refs, o.moreRefs = nil, false
			return err
		}
	case readRows:
	default:
		return nil
	}
	if next != readFirstRows {
		slices.SortFunc(rows, func(a, b *callAttempt) int { return cmp.Compare(a.ID, b.ID) })
		if !slices.EqualFunc(rows, fetching, func(a *callAttempt, r rowRef) bool { return a.ID == r.id }) {
			return fmt.Errorf("%w: lane %d of sink %s, from call %d on", errRowsGone, o.lane, o.sender.name, fetching[0].id)
		}
		o.refs = o.refs[len(fetching):]
	}
	if len(rows) == 0 {
		return nil
	}
	if flushedLSN != "" && !o.awaitStandbys(flushedLSN) {
		o.cursor.unread = true
		return nil
	}
	o.beginChunk(rows, readAt)
	return nil
}

// nextRefs returns the rows of the next chunk.
func (o *laneOwner) nextRefs() []rowRef {
	size := int64(0)
	for i, r := range o.refs {
		if size += r.size; i > 0 && (i == maxChunk || size > maxChunkBytes) {
			return o.refs[:i]
		}
	}
	return o.refs
}

// queueFetch reads rows by their places, with one statement for each segment.
func (o *laneOwner) queueFetch(b *pgx.Batch, refs []rowRef, rows *[]*callAttempt) {
	bySlot := map[int16][]rowRef{}
	for _, r := range refs {
		bySlot[r.slot] = append(bySlot[r.slot], r)
	}
	for slot, there := range bySlot {
		tids := make([]pgtype.TID, len(there))
		for i, r := range there {
			tids[i] = r.tid
		}
		b.Queue(fetchRowsSQL, o.lease.ID, slot, tids).Query(collect(rows, newRowReader().readRow))
	}
}

func (o *laneOwner) fetch(refs []rowRef, rows *[]*callAttempt) error {
	ctx, cancel := o.sender.detached(o.ctx)
	defer cancel()
	return readCommitted(ctx, o.sender.pool, func(b *pgx.Batch) { o.queueFetch(b, refs, rows) })
}

// fenced runs statements in a transaction that commits only while the lease is ours, followed by
// reads in the same pipeline. It returns nil if and only if the transaction has committed. A check
// that fails raises an error, so the COMMIT and all later statements are skipped (T2). fenced
// checks COMMIT's own tag, and the pipeline's end (T3).
func (o *laneOwner) fenced(write, read func(b *pgx.Batch)) error {
	ctx, cancel := o.sender.detached(o.ctx)
	defer cancel()
	ms := guard.Millis(o.sender.dbTimeout)
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed read write`)
	b.Queue(fenceSQL, o.lease.ID, o.lease.Epoch, o.lease.Nonce, ms, ms, ms).Exec(ignoreTag)
	write(b)
	b.Queue(`commit`).Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return fmt.Errorf("COMMIT was answered with %q: %w", tag, pgx.ErrTxCommitRollback)
		}
		return nil
	})
	queueReads(b, read)
	conn, err := o.sender.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
			clean, cancel := o.sender.detached(o.ctx)
			defer cancel()
			_, _ = conn.Exec(clean, `rollback`) // otherwise the pool throws the connection away
		}
		if guard.SQLState(err) == codeFenceLost {
			return errReplaced
		}
		return err
	}
	return nil
}

// ignoreTag is for statements whose number of rows does not matter. An error ends the batch before
// it is called.
func ignoreTag(pgconn.CommandTag) error { return nil }

// lsnSQL reads how far the server's log has been written, which includes the commits that its
// session has seen.
const lsnSQL = `select pg_current_wal_lsn()::text`

// standbysSQL counts the named standbys that have flushed the log up to a position. In: names,
// position.
const standbysSQL = `
select count(distinct application_name) from pg_stat_replication where application_name = any ($1) and flush_lsn >= $2::pg_lsn`

// awaitStandbys returns true after every standby that RelayConfig.WaitFor names has flushed what
// was committed. It returns false if the lane is to be given back or the lease ends before (O9).
func (o *laneOwner) awaitStandbys(lsn string) bool {
	pause := 2 * time.Millisecond
	for {
		var n int
		ctx, cancel := context.WithTimeout(o.ctx, o.sender.dbTimeout)
		err := o.sender.pool.QueryRow(ctx, standbysSQL, o.sender.cfg.WaitFor, lsn).Scan(&n)
		cancel()
		switch {
		case err == nil && n == len(o.sender.cfg.WaitFor):
			return true
		case err != nil && o.ctx.Err() == nil:
			o.sender.emit.failed(fmt.Errorf("asking how far the standbys are: %w", err), pause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-o.releaseRequested:
			timer.Stop()
			return false
		case <-o.ctx.Done():
			timer.Stop()
			return false
		}
		pause = min(2*pause, 250*time.Millisecond)
	}
}
