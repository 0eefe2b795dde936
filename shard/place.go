package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/show"
)

// claimPlaceSQL records that this process asks whether a place lives here, unless there is a row.
// In: place, nonce. Out: one row: the state, the nonce, and where the place goes to or came from.
// By the primary key. Waits for an uncommitted row of another process. The second part does not see
// what the first one inserted, and returns no row then.
const claimPlaceSQL = `
with mine as (
  insert into onlyonce.places (place, state, nonce)
    values ($1, 'claimed', $2) on conflict (place) do nothing returning state, nonce, other)
select state, nonce, coalesce(other, '') from mine
union all select state, nonce, coalesce(other, '') from onlyonce.places where place = $1`

// stateSQL reads what a database knows of a place. In: place. Out: at most one row.
const stateSQL = `select state, coalesce(other, '') from onlyonce.places where place = $1`

// confirmPlaceSQL records that the place lives here. In: place, nonce. It changes no row unless the
// row is the one that was there when the other databases were asked. releasePlaceSQL deletes that
// row.
const (
	confirmPlaceSQL = `
update onlyonce.places
   set state = 'here', nonce = null, changed_at = clock_timestamp()
 where place = $1 and nonce = $2 and state = 'claimed'`
	releasePlaceSQL = `delete from onlyonce.places where place = $1 and nonce = $2 and state = 'claimed'`
)

// States of a row of onlyonce.places.
const (
	stateClaimed = "claimed"
	stateHere    = "here"
	stateLeaving = "leaving"
	stateLeft    = "left"
)

// registerLimit is how often a row is claimed that changes meanwhile.
const registerLimit = 5

// register returns nil if the place lives in the database, and makes that so if no database knows
// the place (N1). A database that does not answer is an error, because it might have the place.
func (s *Set) register(ctx context.Context, db Database, place string) error {
	for range registerLimit {
		nonce, err := db.claim(ctx, place)
		if err != nil {
			return err
		}
		if nonce == nil {
			return nil
		}
		if err := s.checkOthers(ctx, db, place); err != nil {
			if errors.Is(err, ErrElsewhere) {
				// if it stays, the next process finds it and asks too
				_, _ = db.primary().Exec(ctx, releasePlaceSQL, place, *nonce)
			}
			return err
		}
		if confirmed, err := db.confirm(ctx, place, *nonce); confirmed || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %q: several processes record it at the same time", ErrElsewhere, place)
}

// claim writes the row of a place that is new here. It returns the row's nonce, or nil if the place
// lives here. The row may be that of another process, which asks at the same time.
func (db Database) claim(ctx context.Context, place string) (nonce *uuid.UUID, err error) {
	var state, other string
	for range registerLimit {
		err = db.primary().QueryRow(ctx, claimPlaceSQL, place, uuid.New()).Scan(&state, &nonce, &other)
		if !errors.Is(err, pgx.ErrNoRows) { // else it was inserted or deleted at this moment
			break
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("querying the shard of %q: %w", place, err)
	case state == stateHere:
		return nil, nil
	case state != stateClaimed || nonce == nil:
		return nil, fmt.Errorf("%w: %q is %s, for %s", ErrElsewhere, place, state, other)
	}
	return nonce, nil
}

// confirm makes the place live here, unless its row is not the one that was there when the other
// databases were asked.
func (db Database) confirm(ctx context.Context, place string, nonce uuid.UUID) (bool, error) {
	tag, err := db.primary().Exec(ctx, confirmPlaceSQL, place, nonce)
	if err != nil {
		return false, fmt.Errorf("recording the shard of %q: %w", place, err)
	}
	return tag.RowsAffected() == 1, nil
}

// checkOthers returns an error unless no other database knows the place (N1).
func (s *Set) checkOthers(ctx context.Context, db Database, place string) error {
	for _, o := range s.Databases() {
		if o.Name == db.Name {
			continue
		}
		var state, other string
		err := o.primary().QueryRow(ctx, stateSQL, place).Scan(&state, &other)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return fmt.Errorf("querying database %q for the shard of %q: %w", o.Name, place, err)
		case state == stateLeaving || state == stateLeft:
			return fmt.Errorf("%w: %q is %s in database %q, for %s", ErrElsewhere, place, state, o.Name, other)
		case state == stateClaimed:
			return fmt.Errorf(
				"%w: %q is claimed in database %q: a process records it there now, or ended "+
					"before it had; if that stays so, let it live there with: onlyonce place adopt -place "+
					"%s -reason WHY",
				ErrElsewhere,
				place,
				o.Name,
				show.Quote(place),
			)
		default:
			return fmt.Errorf("%w: %q is %s in database %q", ErrElsewhere, place, state, o.Name)
		}
	}
	return nil
}

// enterSQL keeps a place in its database until the transaction ends. In: place.
const enterSQL = `select onlyonce.enter_place($1)`

// Execer is the part of a transaction that [Enter] needs. pgx.Tx and onlyonce's transactions have
// it.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Enter checks, in a transaction, that a place lives in the database, and keeps it there until the
// transaction ends. Call it in each transaction that works for the place, before COMMIT. It waits
// while an operator takes the place out, which waits for open transactions.
//
// The error wraps [ErrElsewhere] if the place lives in another database, or is moving; and
// [ErrUnknown] too if the database does not know the place. The transaction is then aborted: roll
// it back. Above READ COMMITTED it may be a serialization failure (40001): run the transaction
// again. With database/sql execute `select onlyonce.enter_place($1)` yourself; the SQLSTATEs are
// OO012 and OO011 (N2).
func Enter(ctx context.Context, tx Execer, place string) error {
	_, err := tx.Exec(ctx, enterSQL, place)
	if sentinel := Classify(err); sentinel != nil {
		return fmt.Errorf("%w: %w", sentinel, err)
	}
	return err
}

// ErrUnknown means that the database has no record of the place: call [Set.Forget] and [Set.Find].
// It wraps [ErrElsewhere].
var ErrUnknown = fmt.Errorf("%w, and the database does not know it", ErrElsewhere)

// Classify returns what an error of a statement says of the place: [ErrElsewhere] if it does not
// live in the database, [ErrUnknown] if the database does not know it, and otherwise nil.
func Classify(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case "OO011":
		return ErrUnknown
	case "OO012":
		return ErrElsewhere
	}
	return nil
}
