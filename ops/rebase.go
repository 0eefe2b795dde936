package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// rebaseTimeout bounds the transaction: it may rewrite a row of each call that the log holds.
const rebaseTimeout = time.Hour

// standSQL takes the snapshot that becomes every lane's cursor. One row: the snapshot, and whether
// the transaction has an xid by now. It must run before any statement that could assign an xid. A
// transaction is not in progress to its own snapshots, so that a later snapshot may count the rows
// that this transaction rewrites as seen, and they would never be sent.
const standSQL = `select pg_current_snapshot()::text, pg_current_xact_id_if_assigned() is not null`

// lockSinksSQL keeps new lanes of listed sinks out (their foreign key shares the lock). In: sink
// (null: any).
const lockSinksSQL = `select name from onlyonce.sinks where $1::text is null or name = $1 order by name for update`

// lockOwnersSQL has the lanes to itself, and lockLanesSQL locks leases and lanes after that, in the
// order in which a relay does. In: sink (null: any). They wait for a completion and for a running
// settle (T14).
const lockOwnersSQL = `
select onlyonce.lock_owner(l.id) from onlyonce.sink_lanes l where $1::text is null or l.sink = $1 order by l.id`

const lockLanesSQL = `
select e.id
  from onlyonce.sink_lanes l join onlyonce.lane_cursors c on c.id = l.id join onlyonce.leases e on e.id = l.id
 where $1::text is null or l.sink = $1 order by e.id for update of e, c`

// lockRingSQL holds up the rotation, whose steps update this row.
const lockRingSQL = `select name from onlyonce.rings where name = 'outbox' for update`

// judgedSQL judges each call of the log, as a table expression. $1: sink (null: any). Columns:
// slot, sink, lane, xid, batch, id; done: it was delivered or parked; called, since: it may have
// been called under its key, and from when on. Reads the whole log.
//
// done follows the old cursor, with two exceptions.
//
// A call that is parked or erased is done whatever the cursor says: otherwise the first would be
// parked a second time, and the second sent without its body.
//
// In a lane of another cluster, a row that this cluster may have written is not done. A restore
// halts relays, but not code that enqueues. The rows of that code have transaction ids of this
// cluster, which mean nothing to a cursor of another one. For example:
//
//	the cursor says: everything below 1,000,000 is done;
//	the dump is restored into a cluster that is at 5,000;
//	a call is enqueued by transaction 5,010: by its number it is done, and would never be sent.
//
// The row version's xmin shows it. For a row of this cluster, xmin is the row's own transaction or
// a later one (a savepoint, an erasure), of which 32 bits are stored. A row that was restored was
// written by a transaction whose number has nothing to do with the row's. Nor can xmin be below the
// transaction that made the schema here.
//
// If the numbers happen to fit, the time decides: what was delivered before the dump is older than
// the cursor's last move, with ten minutes' margin for clocks that differ. A row mistaken for a new
// one is sent again, under the same key.
//
// since: the dump holds the row. So any call under this key was made after the row was written, and
// not before its not_before; or, if it is a redo, after its message was appended, if that is known.
// The pass that the cursor was in adds nothing: started_at is after its rows were written, unless
// the clock was set back; so the earlier one counts. A row of this cluster has not been called yet.
// It is treated as the others are, because it cannot be recognized for certain. That loses nothing,
// because the row is young.
const judgedSQL = `
(select j.slot,
        j.id,
        j.xid,
        j.sink,
        j.lane,
        j.batch,
        j.redo,
        j.origin_time,
        j.parked or j.erased_at is not null or j.seen and not j.ours as done,
        j.redo or j.not_before is null or j.not_before <= clock_timestamp() as called,
        case when j.redo then least(coalesce(j.origin_time, '2000-01-01 00:00:00+00'), j.created_at)
             else greatest(
               least(j.origin_time, j.created_at, case when j.pass and not j.ours then j.started_at end),
               j.not_before
             ) end as since,
        j.created_at
   from (select r.slot,
                r.id,
                r.xid,
                r.sink,
                r.lane,
                r.batch,
                r.redo,
                r.not_before,
                r.origin_time,
                r.created_at,
                r.erased_at,
                l.started_at,
                exists (select 1 from onlyonce.parked p where p.row_id = r.id) as parked,
                l.id is not null and (pg_visible_in_snapshot(r.xid, l.prev)
                  or l.target is not null and pg_visible_in_snapshot(r.xid, l.target) and r.id <= l.last_id) as seen,
                (l.target is not null and pg_visible_in_snapshot(r.xid, l.target)) is true as pass,
                (l.system_id <> c.system_identifier and r.created_at > l.started_at - interval '10 minutes'
                  and r.xid::text::bigint between n.made and n.xid - mod(n.xid - r.writer, 4294967296)) is true as ours
           from (select b.slot,
                        b.sink,
                        b.lane,
                        b.xid,
                        b.id as batch,
                        b.id + u.i - 1 as id,
                        coalesce(u.redo, false) as redo,
                        u.not_before,
                        coalesce(u.origin_time, b.origin_time) as origin_time,
                        b.created_at,
                        u.erased as erased_at,
                        b.xmin::text::bigint as writer
                   from onlyonce.batches b
                  cross join lateral unnest(
                    b.keys,
                    b.redo,
                    b.not_before,
                    b.origin_times,
                    b.erased
                  )
                        with ordinality as u(key, redo, not_before, origin_time, erased, i)) r
           left join onlyonce.lanes l on l.sink = r.sink and l.lane = r.lane,
                pg_control_system() c,
                (select x.xid, min(x.xid - mod(x.xid - v.xmin::text::bigint, 4294967296)) as made
                   from onlyonce.schema_version v,
                 (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xid) x
                  group by x.xid) n
          where $1::text is null or r.sink = $1) j)`

// rebaseLanesSQL counts what is to be sent. In: sink (null: any). One row for each lane that has
// something, including lanes without a cursor.
const rebaseLanesSQL = `
select coalesce(l.sink, j.sink) as sink,
       coalesce(l.lane, j.lane) as lane,
       l.id is not null as listed,
       coalesce(j.pending, 0) as pending,
       j.oldest,
       (e.until > clock_timestamp()
        and e.until <= clock_timestamp() + interval '1 hour'
        and e.nonce is not null) is true as held,
       coalesce(e.epoch, 0) as epoch,
       e.until,
       coalesce(l.version, 0) as version
  from (select * from onlyonce.lanes where $1::text is null or sink = $1) l
  join onlyonce.leases e on e.id = l.id
  full join (select sink, lane, count(*) as pending, min(created_at) as oldest
               from ` + judgedSQL + ` d where not done group by sink, lane) j
    on j.sink = l.sink and j.lane = l.lane
 order by 1, 2`

// rebaseRowsSQL moves each call to its side of the new cursor. In: sink (null: any), the new
// cursor. Calls that are to be sent get this transaction's xid, which the new cursor has not seen:
// relays find them by it, and send them in the order of their ids, as in any pass. Calls that are
// done get an xid that is older than every snapshot, unless theirs is below the cursor already. One
// row: how many are to be sent.
//
// A batch is divided where calls that are done and calls that are not meet: each run of calls
// becomes a batch, and keeps its ids. Without that, calls that are parked or erased would go out
// again with the others of their batch.
const rebaseRowsSQL = `
with judged as materialized (select * from ` + judgedSQL + ` d),
marked as (
  select d.*, d.done is distinct from lag(d.done) over (partition by d.slot, d.batch order by d.id) as first
    from judged d
   where (d.slot, d.batch) in (select j.slot, j.batch
                                 from judged j where not (j.done and j.xid < pg_snapshot_xmin($2::text::pg_snapshot)))),
numbered as (
  select m.*, count(*) filter (where m.first) over (partition by m.slot, m.batch order by m.id) as run from marked m),
runs as (
  select r.slot,
         r.sink,
         r.lane,
         r.xid,
         r.batch,
         r.done,
         (min(r.id) - r.batch + 1)::integer as lo,
         (max(r.id) - r.batch + 1)::integer as hi,
         array_agg(r.redo or r.called and not r.done order by r.id) as redo,
         array_agg(case when r.called and not r.done then r.since else r.origin_time end order by r.id) as origin_times
    from numbered r group by r.slot, r.sink, r.lane, r.xid, r.batch, r.run, r.done),
gone as (
  delete from onlyonce.batches b
   using (select distinct slot,
                          sink,
                          lane,
                          xid,
                          batch
            from runs) r
   where b.slot = r.slot and b.sink = r.sink and b.lane = r.lane and b.xid = r.xid and b.id = r.batch
  returning b.*),
moved as (
  insert into onlyonce.batches (
    slot,
    lane,
    id,
    n,
    bytes,
    xid,
    sink,
    created_at,
    keys,
    order_key,
    order_keys,
    order_prefix,
    order_prefixes,
    tenant,
    tenants,
    scope,
    scopes,
    name,
    names,
    method,
    methods,
    target,
    targets,
    header,
    headers,
    trace,
    traces,
    body,
    bodies,
    origin_times,
    not_before,
    redo,
    capture,
    sealed,
    erased
  )
  select b.slot,
         b.lane,
         b.id + r.lo - 1,
         r.hi - r.lo + 1,
         case when b.body is null then onlyonce.octets(b.bodies[r.lo:r.hi]) else b.bytes end,
         case when r.done then '3'::xid8 else pg_current_xact_id() end,
         b.sink,
         b.created_at,
         b.keys[r.lo:r.hi],
         b.order_key,
         b.order_keys[r.lo:r.hi],
         b.order_prefix,
         b.order_prefixes[r.lo:r.hi],
         b.tenant,
         b.tenants[r.lo:r.hi],
         b.scope,
         b.scopes[r.lo:r.hi],
         b.name,
         b.names[r.lo:r.hi],
         b.method,
         b.methods[r.lo:r.hi],
         b.target,
         b.targets[r.lo:r.hi],
         b.header,
         b.headers[r.lo:r.hi],
         b.trace,
         b.traces[r.lo:r.hi],
         b.body,
         b.bodies[r.lo:r.hi],
         r.origin_times,
         b.not_before[r.lo:r.hi],
         r.redo,
         b.capture[r.lo:r.hi],
         b.sealed[r.lo:r.hi],
         b.erased[r.lo:r.hi]
    from gone b
    join runs r on r.slot = b.slot and r.sink = b.sink and r.lane = b.lane and r.xid = b.xid and r.batch = b.id
  returning n, xid)
select coalesce(sum(n) filter (where xid <> '3'::xid8), 0)::bigint from moved`

// rebaseKeysSQL forgets which keys of calls were noted: their batches have other transaction ids
// now. The next replay that looks for a call notes them anew.
const rebaseKeysSQL = `
with forgotten as (delete from onlyonce.call_keys)
update onlyonce.call_index set snapshot = '1:1:', target = null`

// rebaseRequestsSQL has records of requests look for their calls by lane and time: their batches
// have other transaction ids now (H31). Reads the records that may have unsettled calls.
const rebaseRequestsSQL = `
update onlyonce.http_records
   set calls_xid = null
 where look_at is not null and calls is not null`

// rebaseParkedSQL sets, for each parked call without a record of a call, since when its key counts:
// the earliest moment at which a relay can have called under it. The record itself may be what was
// lost. In: sink (null: any).
const rebaseParkedSQL = `
update onlyonce.parked p
   set first_attempt_at = least(
     p.first_attempt_at,
     case when p.reason = 'scheduled' then greatest(p.parked_at, p.next_attempt_at, p.waits_since)
          else p.parked_at end
   ),
       open = true
 where p.id > 0
   and p.kind = 'call'
   and p.settled_at is null
   and not p.open
   and p.row_id is not null
   and ($1::text is null or p.sink = $1)
   and not (p.reason = 'scheduled' and p.next_attempt_at > clock_timestamp())`

// fenceLanesSQL fences out the relays that work on the lanes: their running work fails. In: sink
// (null: any). Under the locks.
const fenceLanesSQL = `
update onlyonce.leases e set epoch = e.epoch + 1, nonce = null, until = null, freed_at = clock_timestamp()
  from onlyonce.sink_lanes l where l.id = e.id and ($1::text is null or l.sink = $1)`

// moveLanesSQL sets the cursors, and records the cluster they belong to. If the data move once more
// before the next pass, and the numbers fit, only that record shows it. In: sink (null: any), the
// snapshot. Under the locks.
const moveLanesSQL = `
update onlyonce.lane_cursors c
   set prev = $2::text::pg_snapshot,
       target = null,
       last_id = 0,
       started_at = clock_timestamp(),
       version = c.version + 1,
       system_id = (select s.system_identifier from pg_control_system() s),
       timeline = null,
       history_at = clock_timestamp(),
       written = pg_current_xact_id()
  from onlyonce.sink_lanes l where l.id = c.id and ($1::text is null or l.sink = $1)`

// rebaseRingSQL records in the ring that this transaction wrote into its segments. The bound of a
// closed segment must be above every transaction that wrote into it, because a segment is emptied
// once all cursors are beyond its bound. With the old bound:
//
//	the segment was closed with bound 900;
//	its undelivered calls now have xid 5,000;
//	the cursors are at 4,990, beyond 900: it is emptied, and the calls are gone.
//
// The version shows a rotator that is between two steps that what it read before is old. The
// sequence moves with it, which also repairs one that the restore left too low. In: none. Under the
// lock on the ring.
const (
	rebaseBoundsSQL = `
update onlyonce.segments
   set bound = (pg_current_xact_id()::text::numeric + 1)::text::xid8 where ring = 'outbox' and bound is not null`
	rebaseRingSQL = `
update onlyonce.rings set version = greatest(version + 1, nextval('onlyonce.outbox_version')) where name = 'outbox'`
	rebaseSequenceSQL = `select setval('onlyonce.outbox_version', version) from onlyonce.rings where name = 'outbox'`
)

// RebaseInput is the input of [Rebase].
type RebaseInput struct {
	// Sink is the only sink that is rebased. Defaults to all.
	Sink string

	// Force takes over lanes that relays hold. Defaults to false.
	Force bool

	// Shown is the result of a dry run with the same input that a person agreed to. If a lane has
	// moved since, the error is of kind ErrChanged; calls enqueued since are included.
	Shown *Rebased
}

// Rebased is the result of [Rebase].
type Rebased struct {
	Audited

	Sink      *string          `json:"sink" doc:"nil: all"`
	Force     bool             `json:"force"`
	Snapshot  string           `json:"snapshot" doc:"the new cursor of each lane; empty in a dry run"`
	Pending   int64            `json:"pending" doc:"calls that are to be sent"`
	Parked    int64            `json:"parked" doc:"parked calls whose keys count from when they were parked"`
	Lanes     []RebasedLane    `json:"lanes" doc:"as they were"`
	Sequences []SequenceBehind `json:"sequences" doc:"those that were behind, and are raised"`
}

// RebasedLane is a lane of a sink, and what its relay is to send.
type RebasedLane struct {
	Sink    string     `json:"sink"`
	Lane    int16      `json:"lane"`
	Listed  bool       `json:"-"` // a relay has listed the sink
	Pending int64      `json:"pending"`
	Oldest  *time.Time `json:"oldest"`
	Held    bool       `json:"-"`
	Epoch   int64      `json:"epoch"`
	Until   *time.Time `json:"-"`
	Version int64      `json:"-"`
}

// Rebase lets relays find pending calls after a restore from a dump, or after a move to another
// cluster: it gives cursors and calls this cluster's transaction ids. It keeps every pending call,
// and the order within an ordering key. Each such call may have been sent since it was enqueued. So
// it is sent again under its key, or parked as reconcile if the remote may have forgotten the key.
// It raises sequences that logical replication has left behind, also if there is no sink.
//
// Stop the relays first, including those of the old cluster. Errors are of kind ErrRefused while a
// relay holds a lane, unless Force is set, ErrNotFound for a sink without lanes and calls,
// ErrNothing if no sink has any, and ErrChanged. It reads the whole log in one transaction of at
// most an hour. Applications may continue to enqueue (O3).
func Rebase(ctx context.Context, db DB, by By, in RebaseInput) (*Rebased, error) {
	k := kind{action: "outbox rebase", subject: "the lanes", look: "onlyonce outbox status", within: rebaseTimeout}
	return decide(ctx, db, k, by, &rebase{sink: reports.OrNull(in.Sink), force: in.Force}, in.Shown)
}

type rebase struct {
	sink  *string
	force bool

	snapshot string // taken before the transaction has an xid
}

func (q *rebase) check() error {
	if q.sink == nil {
		return nil
	}
	return checkText("`Sink`", *q.sink)
}

func (q *rebase) lock(ctx context.Context, tx pgx.Tx) error {
	var late bool
	if err := tx.QueryRow(ctx, standSQL).Scan(&q.snapshot, &late); err != nil {
		return err
	}
	if late {
		return errors.New("the transaction had an xid before its snapshot was taken")
	}
	for _, sql := range []string{lockSinksSQL, lockOwnersSQL, lockLanesSQL} {
		if _, err := tx.Exec(ctx, sql, q.sink); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, lockRingSQL)
	return err
}

func (q *rebase) read(ctx context.Context, tx pgx.Tx) (*Rebased, error) {
	d := &Rebased{Sink: q.sink, Force: q.force, Snapshot: q.snapshot}
	if err := reports.Into(ctx, tx, &d.Lanes, rebaseLanesSQL, q.sink); err != nil {
		return nil, err
	}
	var err error
	if d.Sequences, err = sequencesBehind(ctx, tx); err != nil {
		return nil, err
	}
	switch {
	case len(d.Lanes) == 0 && q.sink != nil:
		return nil, failf(ErrNotFound, "`Sink`: no relay has listed a sink %q, and no call is for it: "+
			"`onlyonce outbox status` lists those there are", *q.sink)
	case len(d.Lanes) == 0 && len(d.Sequences) == 0:
		return nil, failf(ErrNothing, "There are no lanes and no calls, and no sequence is behind: nothing "+
			"was changed.")
	}
	var held []string
	for i := range d.Lanes {
		l := &d.Lanes[i]
		d.Pending += l.Pending
		if l.Held {
			held = append(held, fmt.Sprintf("%s/%d until %s", l.Sink, l.Lane, show.Instant(*l.Until)))
		}
	}
	if len(held) > 0 && !q.force {
		return nil, failf(ErrRefused, "relays hold %d lanes (%s), and nothing was done: stop them, or take "+
			"the lanes over with `Force`",
			len(held), strings.Join(held[:min(3, len(held))], ", "))
	}
	return d, nil
}

// differs reports whether a lane was moved since it was shown. Calls that were enqueued meanwhile
// do not count: they are to be sent too.
func (q *rebase) differs(shown, now *Rebased) bool {
	stands := func(r *Rebased) string {
		var b strings.Builder
		for _, l := range r.Lanes {
			if l.Listed {
				_, _ = fmt.Fprintln(&b, l.Sink, l.Lane, l.Epoch, l.Version)
			}
		}
		return b.String()
	}
	return stands(shown) != stands(now)
}

func (q *rebase) do(ctx context.Context, tx pgx.Tx, _ By, now *Rebased) (*Rebased, error) {
	// First, because everything that is written here may need an id.
	if err := raiseIDs(ctx, tx, now.Sequences); err != nil {
		return nil, err
	}
	if err := tx.QueryRow(ctx, rebaseRowsSQL, q.sink, q.snapshot).Scan(&now.Pending); err != nil {
		return nil, err
	}
	tag, err := tx.Exec(ctx, rebaseParkedSQL, q.sink)
	if err != nil {
		return nil, err
	}
	now.Parked = tag.RowsAffected()
	if _, err := tx.Exec(ctx, fenceLanesSQL, q.sink); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, moveLanesSQL, q.sink, q.snapshot); err != nil {
		return nil, err
	}
	// Last, because the sequence is ahead of the version until COMMIT. Until then, transactions
	// that enqueue above READ COMMITTED fail.
	for _, sql := range []string{rebaseKeysSQL, rebaseRequestsSQL, rebaseBoundsSQL, rebaseRingSQL, rebaseSequenceSQL} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if err := raiseRings(ctx, tx); err != nil {
		return nil, err
	}
	return now, nil
}
