package ops

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
)

// adoptPlaceSQL makes a place live here. In: place, the number of its move, where it came from.
const adoptPlaceSQL = `
insert into onlyonce.places as h (place, state, moves, other) values ($1, 'here', $2, nullif($3, ''))
on conflict (place) do update
    set state = 'here',
        moves = excluded.moves,
        other = excluded.other,
        nonce = null,
        changed_at = clock_timestamp()`

// forgetRequestsSQL deletes what is here of a tenant's requests and operations, from an earlier
// time at which the tenant lived here. A lease stays, and is used again by its name. In: tenant.
var forgetRequestsSQL = []string{
	`delete from onlyonce.http_records where tenant = $1`,
	`delete from onlyonce.operations where tenant = $1`,
}

// leaseRequestsSQL gives the requests that are not completed a lease that has ended, so that the
// next request takes them over. In: tenant, the prefix of the names of requests' leases.
const leaseRequestsSQL = `
with leased as (
  insert into onlyonce.leases as l (name, epoch, until)
    select $2::text || r.id, 1, clock_timestamp()
      from onlyonce.http_records r where r.tenant = $1 and r.expires_at is null
  on conflict (name) do update set epoch = l.epoch + 1, nonce = null, until = excluded.until returning l.id, l.name)
update onlyonce.http_records r
   set lease_id = leased.id from leased where r.tenant = $1 and leased.name = $2::text || r.id`

// broughtTable is a table whose rows move with a place: a query for the rows there, as JSON, and a
// statement that inserts such rows here. In, of the first: tenant. In, of the second: text[].
type broughtTable struct{ rows, insert string }

// requestTables are of requests and operations. Signals of operations stay: those have ended. The
// calls of requests stay too, where their relay is: a record that has to outlive them is kept for
// its whole time from now on (H31).
var requestTables = []broughtTable{
	{
		`
select (to_jsonb(r) - 'lease_id' || case when r.look_at is null then '{}'
                                         else jsonb_build_object(
                                           'look_at',
                                           null,
                                           'expires_at',
                                           clock_timestamp() + r.keep
                                         ) end)::text
  from onlyonce.http_records r
 where r.tenant = $1 and not onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)`,
		`
insert into onlyonce.http_records
  select p.*
    from unnest($1::text[]) j
   cross join lateral jsonb_populate_record(
     null::onlyonce.http_records,
     j::jsonb || jsonb_build_object('watched_at', (select w.at from onlyonce.watched w))
   ) p`,
	},
	{`select to_jsonb(s)::text from onlyonce.http_steps s join onlyonce.http_records r on r.id = s.record_id
	   where r.tenant = $1 and not onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)`,
		`
insert into onlyonce.http_steps
  select p.*
    from unnest($1::text[]) j
   cross join lateral jsonb_populate_record(null::onlyonce.http_steps, j::jsonb) p`},
	{`select to_jsonb(o)::text from onlyonce.operations o where o.tenant = $1 and o.expires_at is not null
	     and not onlyonce.has_expired(o.expires_at, o.watched_at, o.keep)`,
		`
insert into onlyonce.operations
  select p.*
    from unnest($1::text[]) j
   cross join lateral jsonb_populate_record(
     null::onlyonce.operations,
     j::jsonb || jsonb_build_object('watched_at', (select w.at from onlyonce.watched w))
   ) p`},
}

// memoryTables are of webhooks, besides the keys. They have no tenant: rows of other places come
// along.
var memoryTables = []broughtTable{
	{`select to_jsonb(b)::text from onlyonce.webhook_bodies b where $1::text is not null`,
		`insert into onlyonce.webhook_bodies as b
           select p.*
             from unnest($1::text[]) j
            cross join lateral jsonb_populate_record(null::onlyonce.webhook_bodies, j::jsonb) p
   on conflict (endpoint, digest) do update
              set seen_at = greatest(b.seen_at, excluded.seen_at), named = b.named or excluded.named`},
	{`select to_jsonb(o)::text from onlyonce.webhook_objects o where $1::text is not null`,
		`insert into onlyonce.webhook_objects as o
           select p.*
             from unnest($1::text[]) j
            cross join lateral jsonb_populate_record(null::onlyonce.webhook_objects, j::jsonb) p
   on conflict (scope, object) do update
              set version = greatest(o.version, excluded.version),
                  changed_at = greatest(o.changed_at, excluded.changed_at)`},
}

// standardForgottenSQL reports whether keys that were claimed before a time may be forgotten. In:
// the time. One row.
const standardForgottenSQL = `
select bool_or(coalesce($1::timestamptz < clock_timestamp() - r.horizon, false)) from onlyonce.rings r
 where r.name = 'standard_keys'
   or exists (select from onlyonce.horizons h
               where r.name in (onlyonce.class_ring(h.class, 'standard'),
                                onlyonce.class_ring(h.class_before, 'standard')))`

// AdoptPlaceInput is the input of [AdoptPlace].
type AdoptPlaceInput struct {
	// Place is the tenant, the endpoint or the other place. Required.
	Place string

	// From is the database that the place has left. Nil keeps here a place that is leaving, or that
	// is new to every process. Defaults to nil.
	From *Origin

	// Shown is the result of a dry run that a person agreed to. If the state has changed since, the
	// error is of kind ErrChanged.
	Shown *AdoptedPlace
}

// AdoptedPlace is the result of [AdoptPlace].
type AdoptedPlace struct {
	Audited

	Place  string `json:"place"`
	Before string `json:"before"` // the state; empty: not known here
	From   string `json:"from,omitempty"`
	Moves  int64  `json:"moves"`

	// Rows that came along; nil before the adoption.
	Requests *int64 `json:"requests,omitempty"` // records, steps and operations
	Keys     *int64 `json:"keys,omitempty"`     // that are new here
}

// AdoptPlace makes a place live in a database. With From, one transaction copies the tenant's
// records, steps and operations, and with StandardKeys the keys; it deletes this database's own
// rows of the place from an earlier time. Processes whose function sends the place here continue at
// once.
//
// Copy the rows of your own tables first. Errors are of kind ErrInvalid, ErrNotFound, ErrNothing if
// the place lives here, ErrRefused and ErrChanged; those of the other database are an
// [*OriginError] (N3).
func AdoptPlace(ctx context.Context, db DB, by By, in AdoptPlaceInput) (*AdoptedPlace, error) {
	k := kind{action: "place adopt", subject: "the place", look: "onlyonce place list"}
	if in.From != nil {
		k.within = bringTimeout
	}
	return decide(ctx, db, k, by, &homing{in}, in.Shown)
}

type homing struct{ AdoptPlaceInput }

func (q *homing) check() error {
	if err := checkText("the place", q.Place); err != nil {
		return err
	}
	if q.From == nil {
		return nil
	}
	if q.From.DB == nil || q.From.Name == "" {
		return failf(ErrInvalid, "`From`: must have a database and a name")
	}
	return checkText("`As`, the name of this database,", q.From.As)
}

func (q *homing) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockPlaceSQL, q.Place)
	return err
}

func (q *homing) read(ctx context.Context, tx pgx.Tx) (*AdoptedPlace, error) {
	here, err := readPlace(ctx, tx, q.Place)
	if err != nil {
		return nil, err
	}
	d := &AdoptedPlace{Place: q.Place}
	if here != nil {
		d.Before = here.State
		d.Moves = here.Moves
	}
	switch {
	case d.Before == "here":
		return nil, failf(ErrNothing, "%q lives in this database already: nothing was changed.", q.Place)
	case q.From == nil && d.Before == "left":
		return nil, failf(ErrRefused, "%q has left this database for %s, and nothing was done: take it out "+
			"of that one (place leave), and give -from", q.Place, here.Other)
	case q.From == nil:
		return d, nil
	case d.Before == "leaving":
		return nil, failf(ErrRefused, "%q is leaving this database, for %s, and nothing was done: it lives "+
			"here until it has left", q.Place, here.Other)
	}
	d.From = q.From.Name
	return d, q.elsewhere(ctx, func(there pgx.Tx) error { return q.readThere(ctx, there, d) })
}

// readThere refuses a place that has not left the other database for this one, or that was here
// after it had been there (N3).
func (q *homing) readThere(ctx context.Context, there pgx.Tx, d *AdoptedPlace) error {
	at, err := readPlace(ctx, there, q.Place)
	switch {
	case err != nil:
		return err
	case at == nil:
		return failf(ErrNotFound, "`From`: %s does not know %q", q.From.Name, q.Place)
	case at.State != "left":
		return failf(ErrRefused, "%q has not left %s (%s), and nothing was done: take it out first (place "+
			"leave), so that it does not live in both", q.Place, q.From.Name, at.State)
	case at.Other != q.From.As:
		return failf(ErrRefused, "%q has left %s for %s and not for %s, and nothing was done",
			q.Place, q.From.Name, at.Other, q.From.As)
	case at.Moves <= d.Moves:
		return failf(ErrRefused, "%q was in this database after it had left %s, and nothing was done: take "+
			"it from where it was last", q.Place, q.From.Name)
	}
	var forgotten bool
	if err := there.QueryRow(ctx, standardForgottenSQL, at.ChangedAt).Scan(&forgotten); err != nil {
		return err
	}
	if forgotten && q.From.StandardKeys && !q.From.Late {
		return failf(
			ErrRefused,
			"%q left %s at %s, longer ago than keys are remembered there, and nothing was done: copies of "+
				"what took effect there would take effect again. "+
				"If none can come any more, give -late",
			q.Place,
			q.From.Name,
			show.Instant(at.ChangedAt),
		)
	}
	d.Moves = at.Moves
	return nil
}

// elsewhere runs f on one snapshot of the other database. If the place has left in it, it has all
// that was committed for the place.
func (q *homing) elsewhere(ctx context.Context, f func(there pgx.Tx) error) error {
	return (&origin{Origin: q.From}).snapshot(ctx, f)
}

func (q *homing) differs(shown, now *AdoptedPlace) bool {
	return shown.Before != now.Before || shown.Moves != now.Moves
}

func (q *homing) do(ctx context.Context, tx pgx.Tx, _ By, now *AdoptedPlace) (*AdoptedPlace, error) {
	if q.From != nil {
		if err := q.elsewhere(ctx, func(there pgx.Tx) error { return q.bring(ctx, there, tx, now) }); err != nil {
			return nil, err
		}
	}
	_, err := tx.Exec(ctx, adoptPlaceSQL, q.Place, now.Moves, now.From)
	return now, err
}

// bring copies what the other database has of the place.
func (q *homing) bring(ctx context.Context, there, tx pgx.Tx, now *AdoptedPlace) error {
	if err := bringSlowly(ctx, there, tx); err != nil {
		return err
	}
	moves := now.Moves
	now.Moves = 0
	if before, err := readPlace(ctx, tx, q.Place); err != nil {
		return err
	} else if before != nil {
		now.Moves = before.Moves
	}
	if err := q.readThere(ctx, there, now); err != nil {
		return err
	}
	if now.Moves != moves {
		return failf(ErrChanged, "%q moved meanwhile, and nothing was done",
			q.Place).but("run the command again to see how it stands")
	}
	if _, err := tx.Exec(ctx, fenceOffRecordsSQL); err != nil {
		return err
	}
	for _, sql := range forgetRequestsSQL {
		if _, err := tx.Exec(ctx, sql, q.Place); err != nil {
			return err
		}
	}
	now.Requests = new(int64)
	for _, t := range requestTables {
		n, err := t.copy(ctx, there, tx, q.Place)
		if err != nil {
			return err
		}
		*now.Requests += n
	}
	if _, err := tx.Exec(ctx, leaseRequestsSQL, q.Place, names.Requests); err != nil {
		return err
	}
	if q.From.StandardKeys {
		if err := q.bringKeys(ctx, there, tx, now); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, closeSealSQL)
	return err
}

// fenceOffRecordsSQL lets this transaction write records of requests that are completed, which need
// the seal.
const fenceOffRecordsSQL = guard.AllowCommitSQL

func (q *homing) bringKeys(ctx context.Context, there, tx pgx.Tx, now *AdoptedPlace) error {
	if err := bringClasses(ctx, there, tx, q.From.Name); err != nil {
		return err
	}
	now.Keys = new(int64)
	for _, class := range ring.Classes() {
		keys, _, err := otherKeys[class].claim(ctx, there, tx)
		if err != nil {
			return err
		}
		*now.Keys += keys
	}
	for _, t := range memoryTables {
		if _, err := t.copy(ctx, there, tx, q.Place); err != nil {
			return err
		}
	}
	return nil
}

// Rows are sent to this database in portions of at most so many, or of some more than so many
// bytes.
const (
	copyRows  = 500
	copyBytes = 4 << 20
)

// copy inserts the rows of the other database here, and returns how many there were.
func (t broughtTable) copy(ctx context.Context, there, tx pgx.Tx, place string) (n int64, err error) {
	rows, err := there.Query(ctx, t.rows, place)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var portion []string
	size := 0
	for rows.Next() {
		var row string
		if err := rows.Scan(&row); err != nil {
			return n, err
		}
		portion = append(portion, row)
		size = size + len(row)
		if n++; len(portion) < copyRows && size < copyBytes {
			continue
		}
		if _, err := tx.Exec(ctx, t.insert, portion); err != nil {
			return n, err
		}
		portion = portion[:0]
		size = 0
	}
	if err := rows.Err(); err != nil || len(portion) == 0 {
		return n, err
	}
	_, err = tx.Exec(ctx, t.insert, portion)
	return n, err
}
