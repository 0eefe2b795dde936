package ops

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// pickErasedSQL finds parked rows to erase. In: id, key, ordering keys as stored, ordering key
// (each may be null: any), how many. By the primary key or by the indexes of keys; by an ordering
// key it reads onlyonce.parked as a whole, without bodies.
const pickErasedSQL = `
select p.id,
       p.kind,
       p.state,
       p.topic,
       p.event_id as event,
       coalesce(p.key, p.first_key)::text as key,
       coalesce(p.sink, '') as sink,
       p.partition::bigint as partition,
       p.erased_at,
       (coalesce(octet_length(p.body), 0) + coalesce(octet_length(p.response_body), 0))::bigint as bytes
  from onlyonce.parked p
 where ($1::bigint is null or p.id = $1) and ($2::uuid is null or p.key = $2 or p.first_key = $2)
   and ($4::text is null
        or p.order_key = any ($3::uuid[])
        or p.kind <> 'call' and p.record_key = convert_to($4, 'UTF8'))
 order by p.id limit $5`

// orderedSQL lists what the stored forms of ordering keys are made of. Reads onlyonce.parked as a
// whole, without bodies.
const orderedSQL = `
select distinct p.kind = 'call' as call,
                p.tenant,
                p.scope,
                coalesce(case when p.kind = 'call' then p.sink else p.topic end, '') as "to"
  from onlyonce.parked p where p.order_key is not null`

// mostErased is how many parked rows one decision erases. The log is searched for each call and
// event among them.
const mostErased = 1000

// eraseParkedTimeout bounds EraseParked.
const eraseParkedTimeout = 5 * time.Minute

// EraseParkedInput is the input of [EraseParked]. One of the fields is required.
type EraseParkedInput struct {
	// ID is the id of one row, as ParkedRow.ID.
	ID int64

	// Key is a key as it is stored, ParkedRow.Key: of a message or event its dedupe key, of a call
	// its idempotency key.
	Key string

	// OrderingKey picks all rows about one thing: messages and events of that ordering key or
	// record key, and calls of that ordering key. At most 1,000 rows are erased at once.
	OrderingKey string

	// Shown is the result of a dry run with the same input that a person agreed to. If there are
	// more or fewer such rows by now, the error is of kind ErrChanged.
	Shown *Erased
}

// Check returns an error of kind ErrInvalid unless one field is set.
func (in *EraseParkedInput) Check() error {
	set := 0
	for _, is := range []bool{in.ID != 0, in.Key != "", in.OrderingKey != ""} {
		if is {
			set++
		}
	}
	switch _, err := uuid.Parse(in.Key); {
	case set != 1:
		return failf(ErrInvalid, "one of `ID`, `Key` and `OrderingKey` must be given, and no two")
	case in.ID < 0:
		return failf(ErrInvalid, "`ID`: must not be negative")
	case in.Key != "" && err != nil:
		return failf(ErrInvalid, "`Key`: %q is no UUID", in.Key)
	case in.OrderingKey != "":
		return checkText("`OrderingKey`", in.OrderingKey)
	}
	return nil
}

// EraseParked erases what settled parked rows hold: body, headers of messages and events, error,
// and a remote's answer. Of calls and events it also erases the body in their log, as [EraseCall]
// and [EraseEvents] do. Keys and positions stay, so that copies stay duplicates (D8).
//
// Errors are of kind ErrInvalid, ErrNotFound if there is no such row, ErrRefused if one of them is
// not settled or not handled everywhere, ErrNothing if all are erased already, and ErrChanged.
func EraseParked(ctx context.Context, db DB, by By, in EraseParkedInput) (*Erased, error) {
	k := kind{
		action:  "parked erase",
		subject: "one of the rows",
		look:    "onlyonce parked erase",
		within:  eraseParkedTimeout,
	}
	return decide(ctx, db, k, by, &parkedErasure{EraseParkedInput: in}, in.Shown)
}

// erasedRow is a parked row that is to be erased.
type erasedRow struct {
	ID         int64
	Kind       string
	State      string
	Topic      *string
	Event      *string
	Key        *string
	Sink       string
	Partition  *int64
	ErasedAt   *time.Time
	Bytes      int64
	decision   decision[Erased] // of a call or event; nil: the row is all that is stored
	alsoStored *Erased          // by the decision; nil: that is erased already
}

type parkedErasure struct {
	EraseParkedInput
	rows []erasedRow
}

func (q *parkedErasure) check() error { return q.Check() }

// pick reads the rows.
func (q *parkedErasure) pick(ctx context.Context, tx pgx.Tx) (rows []erasedRow, err error) {
	var stored []string
	if q.OrderingKey != "" {
		if stored, err = q.ordered(ctx, tx); err != nil {
			return nil, err
		}
	}
	rows, err = reports.Collect[erasedRow](
		ctx,
		tx,
		pickErasedSQL,
		reports.OrNull(q.ID),
		reports.OrNull(q.Key),
		stored,
		reports.OrNull(q.OrderingKey),
		mostErased+1,
	)
	if err != nil {
		return nil, err
	}
	seen := map[EraseEventsInput]bool{} // two rows may be of one event
	for i := range rows {
		r := &rows[i]
		switch {
		case r.Kind == parked.Call && r.Key != nil:
			r.decision = &erasure{EraseCallInput{Key: *r.Key}}
		case r.Kind == parked.Event && r.Topic != nil && r.Event != nil:
			in := EraseEventsInput{Topic: *r.Topic, ID: *r.Event}
			if !seen[in] {
				r.decision = &eventErasure{in, r.Event, nil}
			}
			seen[in] = true
		}
	}
	return rows, nil
}

// ordered returns the stored forms of the ordering key.
func (q *parkedErasure) ordered(ctx context.Context, tx pgx.Tx) (keys []string, err error) {
	type place struct {
		Call              bool
		Tenant, Scope, To string
	}
	places, err := reports.Collect[place](ctx, tx, orderedSQL)
	for _, p := range places {
		key := parked.MessageOrder(p.Tenant, p.Scope, p.To, q.OrderingKey)
		if p.Call {
			key = parked.CallOrder(p.To, p.Tenant, p.Scope, q.OrderingKey)
		}
		keys = append(keys, uuid.UUID(key).String())
	}
	return keys, err
}

func (q *parkedErasure) lock(ctx context.Context, tx pgx.Tx) error {
	rows, err := q.pick(ctx, tx)
	if err != nil {
		return err
	}
	var ids []int64
	for i := range rows {
		if d := rows[i].decision; d != nil {
			if err := d.lock(ctx, tx); err != nil {
				return err
			}
		}
		ids = append(ids, rows[i].ID)
	}
	_, err = tx.Exec(ctx, parked.LockSQL, ids)
	return err
}

func (q *parkedErasure) read(ctx context.Context, tx pgx.Tx) (all *Erased, err error) {
	if q.rows, err = q.pick(ctx, tx); err != nil {
		return nil, err
	}
	switch n := len(q.rows); {
	case n == 0:
		return nil, failf(ErrNotFound, "there is no such parked row: it was deleted when its retention had "+
			"passed, or was never parked")
	case n > mostErased:
		return nil, failf(ErrRefused, "there are more than %d such rows, and nothing was done: erase some "+
			"by `ID` or `Key` first", mostErased)
	}
	all = &Erased{}
	done := true
	for i := range q.rows {
		r := &q.rows[i]
		if r.State != parked.Resolved && r.State != parked.Discarded {
			return nil, failf(ErrRefused, "row %d is parked (%s) and may still be handled or sent, and "+
				"nothing was done: give it up first with `onlyonce parked discard -id %d`", r.ID, r.State, r.ID)
		}
		if r.decision == nil {
			done = done && r.ErasedAt != nil
			all.add([]Stored{{
				Table:     "parked",
				Partition: r.Partition,
				ID:        r.ID,
				Key:       r.Key,
				Sink:      r.Sink,
				Event:     r.Event,
				State:     r.State,
				Bytes:     r.Bytes,
				ErasedAt:  r.ErasedAt,
			}})
			continue
		}
		r.alsoStored, err = r.decision.read(ctx, tx)
		switch {
		case err == nil:
			done = false
			all.add(r.alsoStored.Rows)
		case !errors.Is(err, ErrNothing):
			return nil, err
		}
	}
	if done {
		return nil, failf(ErrNothing, "All %d were erased already: nothing was changed.", len(q.rows))
	}
	return all, nil
}

// add adds places that are not there yet: two rows may be of one event.
func (e *Erased) add(rows []Stored) {
	for _, r := range rows {
		if !slices.ContainsFunc(e.Rows, func(o Stored) bool {
			return o.Table == r.Table &&
				o.ID == r.ID &&
				(o.Partition == nil || r.Partition == nil || *o.Partition == *r.Partition)
		}) {
			e.Rows = append(e.Rows, r)
		}
	}
}

// differs reports whether there are more or fewer rows than were shown.
func (q *parkedErasure) differs(shown, now *Erased) bool { return len(shown.Rows) != len(now.Rows) }

func (q *parkedErasure) do(ctx context.Context, tx pgx.Tx, by By, now *Erased) (*Erased, error) {
	var ids []int64
	for i := range q.rows {
		r := &q.rows[i]
		if r.alsoStored != nil {
			if _, err := r.decision.do(ctx, tx, by, r.alsoStored); err != nil {
				return nil, err
			}
		}
		ids = append(ids, r.ID)
	}
	_, err := tx.Exec(ctx, eraseParkedSQL, ids)
	return now, err
}
