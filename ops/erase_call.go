package ops

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// lockStoredSQL locks what settles a call: its lane, whose cursor says what was delivered, and its
// parked row, which is what is redriven. In: key. A relay that moves the cursor, and an operator
// who redrives, wait.
const (
	lockStoredSQL = `
select p.id from onlyonce.parked p
 where p.kind = 'call'
   and (p.key = $1::uuid
        or p.first_key = $1::uuid
        or p.row_id in (select r.id from onlyonce.outbox_log r where r.key = $1::uuid))
 order by p.id for update`
	lockStoredLaneSQL = `
select l.id
  from onlyonce.sink_lanes l join onlyonce.lane_cursors c on c.id = l.id
 where (l.sink, l.lane) in (select r.sink, r.lane from onlyonce.batches r where $1::uuid = any (r.keys))
 order by l.id for update of c`
)

// eraseLogSQL and eraseParkedSQL erase calls in the log, and parked rows. In: ids; of the log also
// keys. The batch keeps its xid, and the other calls theirs: a relay that has read its place finds
// it at the new one. What a parked row loses is up to onlyonce.erase_parked.
const (
	eraseLogSQL = `
update onlyonce.batches b
   set body = case when b.body is not null then ''::bytea end,
       bodies = case when b.bodies is not null then c.bodies end,
       bytes = case when b.body is not null then 0 else onlyonce.octets(c.bodies) end,
       erased = c.erased
  from onlyonce.batches r
 cross join lateral (
   select array_agg(case when u.gone then ''::bytea else u.body end order by u.i) as bodies,
          array_agg(case when u.gone then coalesce(u.erased, clock_timestamp())
                         else u.erased end order by u.i) as erased
     from (select v.i, v.body, v.erased, r.id + v.i - 1 = any ($1::bigint[]) and v.key = any ($2::uuid[]) as gone
             from unnest(r.keys, r.bodies, r.erased) with ordinality as v(key, body, erased, i)) u) c
 where r.keys && $2::uuid[] and exists (select from unnest($1::bigint[]) i where i between r.id and r.id + r.n - 1)
   and b.slot = r.slot and b.sink = r.sink and b.lane = r.lane and b.xid = r.xid and b.id = r.id`
	eraseParkedSQL = `
update onlyonce.parked
   set erased_at = clock_timestamp() where id = any ($1::bigint[]) and erased_at is null and settled_at is not null`
)

// EraseCallInput is the input of [EraseCall].
type EraseCallInput struct {
	// Key is the call's idempotency key, a UUID, as the remote saw it.
	Key string

	// Shown is the result of a dry run that a person agreed to.
	Shown *Erased
}

// Check returns an error of kind ErrInvalid unless the key is a UUID.
func (in *EraseCallInput) Check() error {
	if _, err := uuid.Parse(in.Key); err != nil {
		return failf(ErrInvalid, "`Key`: %q is no UUID", in.Key)
	}
	return nil
}

// EraseCall erases the body of a settled call, in the log and in its parked row, its error, and the
// remote's answer. The row stays, with target and headers, until its segment of the log is emptied,
// so the call is recognized if it is enqueued again. It cannot be redriven.
//
// Errors are of kind ErrNotFound if no call with that key is stored, ErrRefused if it may still be
// sent, and ErrNothing if it is erased already. It waits for a relay that is settling calls of the
// same lane.
func EraseCall(ctx context.Context, db DB, by By, in EraseCallInput) (*Erased, error) {
	k := kind{action: "outbox erase", subject: "the call", look: "onlyonce outbox erase"}
	if id, err := uuid.Parse(in.Key); err == nil {
		in.Key = id.String()
	}
	return decide(ctx, db, k, by, &erasure{in}, in.Shown)
}

type erasure struct{ EraseCallInput }

func (q *erasure) check() error { return q.Check() }

func (q *erasure) lock(ctx context.Context, tx pgx.Tx) error {
	// The lane first, as a relay does, which settles calls under it.
	for _, sql := range []string{lockStoredLaneSQL, lockStoredSQL} {
		if _, err := tx.Exec(ctx, sql, q.Key); err != nil {
			return err
		}
	}
	return nil
}

func (q *erasure) read(ctx context.Context, tx pgx.Tx) (*Erased, error) {
	rows, err := readStored(ctx, tx, q.Key)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, failf(ErrNotFound, "`Key`: no call with key %s is stored: it was dropped with its "+
			"segment of the log, or never enqueued", q.Key)
	}
	done := true
	for i := range rows {
		r := &rows[i]
		done = done && r.ErasedAt != nil
		switch r.State {
		case "delivered", "discarded":
		case "pending":
			return nil, failf(
				ErrRefused,
				"the call to sink %s is still to be sent, and nothing was done: "+
					"wait until it is delivered; one that fails is parked, and `onlyonce parked discard` gives it up",
				r.Sink,
			)
		default:
			id := ""
			if r.Table == "parked" {
				id = fmt.Sprintf(" -id %d", r.ID)
			}
			return nil, failf(ErrRefused, "the call to sink %s is parked (%s) and may still be sent, and "+
				"nothing was done: give it up first with `onlyonce parked discard%s`", r.Sink, r.State, id)
		}
	}
	if done {
		return nil, failf(ErrNothing, "The call %s was erased already: nothing was changed.", q.Key)
	}
	return &Erased{Key: q.Key, Rows: rows}, nil
}

// differs returns false: a call that was settled once stays settled.
func (q *erasure) differs(_, _ *Erased) bool { return false }

func (q *erasure) do(ctx context.Context, tx pgx.Tx, _ By, now *Erased) (*Erased, error) {
	ids := map[string][]int64{}
	keys := []string{}
	for _, r := range now.Rows {
		if r.Key != nil {
			keys = append(keys, *r.Key)
		}
		ids[r.Table] = append(ids[r.Table], r.ID)
	}
	if _, err := tx.Exec(ctx, eraseLogSQL, ids["log"], keys); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, eraseParkedSQL, ids["parked"])
	return now, err
}
