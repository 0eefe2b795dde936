package ops

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// copiesSQL reads what makes a copy a duplicate besides the rings. In: key; of a key in a replay
// the key of the first handling, else null. One row. parked: a message or an event of the key is
// parked and not settled, which claims ask after both rings (K7). first: the same of the other key,
// which a consumer asks in a replay. stored: a call of the key is in the log, or parked and not
// settled, or was redriven under a new key, which onlyonce.enqueued_before asks. By the indexes
// parked_key_unresolved and parked_first_key; the log is read whole, without its bodies.
const copiesSQL = `
select exists (select from onlyonce.parked p
                where p.kind in ('message', 'event')
                  and p.key = $1::uuid
                  and p.settled_at is null
                  and p.reason <> 'conflict') as parked,
       exists (select from onlyonce.parked p
                where p.kind in ('message', 'event')
                  and p.key = $2::uuid
                  and p.settled_at is null
                  and p.reason <> 'conflict') as first,
       exists (select from onlyonce.batches b where $1::uuid = any (b.keys))
         or exists (select from onlyonce.parked p
                     where p.kind = 'call' and p.key = $1::uuid and p.settled_at is null and p.reason <> 'conflict')
         or exists (select from onlyonce.parked p where p.first_key = $1::uuid) as stored`

// copyRow is what the database holds of a key besides its claims.
type copyRow struct {
	Parked, First, Stored bool
}

// Why a copy is a duplicate.
const (
	becauseRemembered = "remembered" // the ring holds the key
	becauseParked     = "parked"     // a row of the key is parked and not settled
	becauseStored     = "stored"     // the call is stored
)

// Copy is the outcome of a copy that arrives now and is claimed in one ring. The rings do not share
// keys (K3).
type Copy struct {
	// Ring is the ring that the claim uses, by the class of the scope: one of consumers', or one
	// for webhooks, dedupe.Claim and calls enqueued outside of consumers. While the class changes,
	// keys of the former class's ring are remembered too.
	Ring      string  `json:"ring"`
	Duplicate bool    `json:"duplicate"`
	Because   *string `json:"because" doc:"remembered, parked or stored; nil: it is new"`
}

// readCopies judges copies. The claims must have been read.
func (r *KeyReport) readCopies(ctx context.Context, tx pgx.Tx) error {
	var first *string
	if r.Of != nil && r.Of.Replay > 0 {
		ordinary := *r.Of
		ordinary.Replay = 0
		first = new(ordinary.key().String())
	}
	rows, err := reports.Collect[copyRow](ctx, tx, copiesSQL, r.Key, first)
	if err != nil {
		return err
	}
	for _, consumer := range []bool{true, false} {
		names, err := r.ringsOf(ctx, tx, consumer)
		if err != nil {
			return err
		}
		r.Copies = append(r.Copies, r.judgeCopy(names, consumer, rows[0]))
	}
	return nil
}

// ringsOf returns the rings that are asked for the key by a consumer, or else by all others: that
// of its scope's class, and behind it that of the class before while the scope changes from one to
// the other (K10). If only a stored key was given, its scope is not known: then it is the ring that
// holds it, or else that of the class standard.
func (r *KeyReport) ringsOf(ctx context.Context, tx pgx.Tx, consumer bool) (names []string, err error) {
	class := &scopeClass{Class: ring.Standard}
	of := ring.StandardClass
	if consumer {
		of = ring.ConsumerClass
	}
	switch {
	case r.Of == nil:
		for _, c := range r.Claims {
			if ring.OfConsumers(c.Ring) == consumer && c.Remembered {
				return []string{c.Ring}, nil
			}
		}
	case consumer:
		var row *scopeRow
		if row, err = readScope(ctx, tx, r.Of.Scope); row != nil {
			class = &row.scopeClass
		}
	default:
		class, err = readOtherClass(ctx, tx, r.Of.Scope)
	}
	for _, c := range class.classes() {
		names = append(names, of(c).Name)
	}
	return names, err
}

// judgeCopy judges a copy that is claimed in rings, the first of which is its scope's.
func (r *KeyReport) judgeCopy(asked []string, consumer bool, is copyRow) Copy {
	because := ""
	which := asked[0]
	switch {
	case slices.ContainsFunc(r.Claims, func(c Claim) bool { return slices.Contains(asked, c.Ring) && c.Remembered }):
		because = becauseRemembered
	case is.Parked, is.First && consumer:
		because = becauseParked
	case is.Stored && !consumer:
		because = becauseStored
	default:
		return Copy{Ring: which}
	}
	return Copy{Ring: which, Duplicate: true, Because: &because}
}
