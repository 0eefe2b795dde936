package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// copiesSQL tells what makes a duplicate of a copy besides the rings. In: key; of a key in a replay the key of the first handling, else null. One row.
// parked: a message or an event of the key is parked and not settled, which claims ask after the rings (K7). first: one of the other key is, which a
// consumer asks in a replay. stored: a call of the key is in the log, or parked and not settled, which onlyonce.enqueue_calls asks. By the
// indexes parked_key_unresolved and outbox_log_key.
const copiesSQL = `
select exists (select from onlyonce.parked p
                where p.kind in ('message', 'event') and p.key = $1::uuid and p.settled_at is null and p.reason <> 'conflict') as parked,
       exists (select from onlyonce.parked p
                where p.kind in ('message', 'event') and p.key = $2::uuid and p.settled_at is null and p.reason <> 'conflict') as first,
       exists (select from onlyonce.outbox_log r where r.key = $1::uuid)
         or exists (select from onlyonce.parked p where p.kind = 'call' and p.key = $1::uuid and p.settled_at is null and p.reason <> 'conflict') as stored`

// copyRow is what stands of a key besides its claims.
type copyRow struct {
	Parked, First, Stored bool
}

// Why a copy is a duplicate.
const (
	becauseRemembered = "remembered"
	becauseParked     = "parked"
	becauseStored     = "stored"
)

// explainedCopy is what a copy would be that comes now, to those who claim in one ring. The rings do not know each other's keys (K3).
type explainedCopy struct {
	Ring      string  `json:"ring"`
	Duplicate bool    `json:"duplicate"`
	Because   *string `json:"because"` // remembered, parked, stored; null: it is new
}

// readCopies judges copies, once the claims were read.
func (r *keyReport) readCopies(ctx context.Context, tx pgx.Tx) error {
	var first *string
	if r.Of != nil && r.Of.Replay > 0 {
		ordinary := *r.Of
		ordinary.Replay = 0
		s := ordinary.key().String()
		first = &s
	}
	rows, err := collect[copyRow](ctx, tx, copiesSQL, r.Key, first)
	if err != nil {
		return err
	}
	for _, which := range ring.Keys() {
		r.Copies = append(r.Copies, r.judgeCopy(which.Name, rows[0]))
	}
	return nil
}

func (r *keyReport) judgeCopy(which string, stands copyRow) explainedCopy {
	because := ""
	switch {
	case slices.ContainsFunc(r.Claims, func(c explainedClaim) bool { return c.Ring == which && c.Remembered }):
		because = becauseRemembered
	case stands.Parked, stands.First && which == ring.ConsumerKeys().Name:
		because = becauseParked
	case stands.Stored && which == ring.StandardKeys().Name:
		because = becauseStored
	default:
		return explainedCopy{Ring: which}
	}
	return explainedCopy{Ring: which, Duplicate: true, Because: &because}
}

// strange says that nobody claims the key in a ring: it is a call's, a webhook's or a request's, and what a ring does not hold means nothing for it.
func (r *keyReport) strange(which string) bool {
	held := slices.ContainsFunc(r.Claims, func(c explainedClaim) bool { return c.Ring == which })
	return !held && (r.Request != nil || which == ring.ConsumerKeys().Name && (len(r.Call) > 0 || len(r.Webhooks) > 0))
}

func (a *app) writeCopies(r *keyReport) {
	for _, c := range r.Copies {
		if c.Because == nil && r.strange(c.Ring) {
			continue
		}
		from := "that a consumer reads from Kafka"
		if c.Ring == ring.StandardKeys().Name {
			from = "that a webhook brings, that dedupe.Claim is asked for, or that is a call from outside of consumers"
		}
		_, _ = fmt.Fprintf(a.out, "A copy %s is %s.\n", from, r.verdict(c))
	}
}

func (r *keyReport) verdict(c explainedCopy) string {
	switch {
	case c.Because == nil && slices.ContainsFunc(r.Claims, func(k explainedClaim) bool { return k.Ring == c.Ring }):
		return fmt.Sprintf("new: %s is no longer asked for the key", c.Ring)
	case c.Because == nil:
		return fmt.Sprintf("new: %s does not hold the key", c.Ring)
	case *c.Because == becauseParked:
		return fmt.Sprintf("a duplicate for as long as what is parked is not settled, although %s does not hold the key", c.Ring)
	case *c.Because == becauseStored:
		return "a duplicate for as long as the call is stored"
	}
	return fmt.Sprintf("a duplicate: %s holds the key", c.Ring)
}
