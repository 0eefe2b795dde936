package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// tooOldSQL reads until when a broker must have stored a message for its id to be one that may be
// forgotten; see the function's comment in the migration. In: scope, topic. Out: one row; null:
// none is forgotten.
const tooOldSQL = `select onlyonce.queue_too_old($1, $2)`

const stepAge = "age"

// checkAge refuses fresh messages whose ids may be forgotten, so that they are parked (K9). It runs
// after the claim: a segment that the claim did not search counts as forgotten by then, whenever it
// was retired.
//
// What is forgotten while the receiver runs is older than CopiesWithin (Q6). So the database is
// queried only for messages that are older than half of that, or that were too old when the session
// began.
func (r *receiver) checkAge(ctx context.Context, tx *guard.Tx, set []*incoming, found []intake.Found) error {
	since := time.Now().Add(-r.cfg.CopiesWithin / 2)
	if r.tooOld != nil && r.tooOld.After(since) {
		since = *r.tooOld
	}
	var old []*incoming
	for i, in := range set {
		if at := in.delivery.Time; found[i] == intake.Fresh && !at.IsZero() && !at.After(since) {
			old = append(old, in)
		}
	}
	if len(old) == 0 {
		return nil
	}
	var until *time.Time
	if err := tx.EngineRow(ctx, stepAge, tooOldSQL, Scope(r.cfg.Name), Topic(r.cfg.Name)).Scan(&until); err != nil {
		return err
	}
	for _, in := range old {
		if until != nil && !in.delivery.Time.After(*until) {
			in.item.Refuse(
				parked.TooOld,
				fmt.Errorf("the broker stored it at %s, and ids of messages that it stored until %s may be "+
					"forgotten: the database cannot tell whether it is a copy",
					in.delivery.Time.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339)),
			)
		}
	}
	return nil
}

// beginAge reads how old is too old when a session begins. It returns an error if the broker is
// about to deliver again messages whose ids may be forgotten (Q6).
func (r *receiver) beginAge(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r.tooOld = nil
	if err := r.pool.Raw().QueryRow(
		bounded,
		tooOldSQL,
		Scope(r.cfg.Name),
		Topic(r.cfg.Name),
	).Scan(&r.tooOld); err != nil &&
		!errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: %w", errDatabase, err)
	}
	b, ok := r.broker.(BrokerAnew)
	if !ok || r.tooOld == nil {
		return nil
	}
	oldest, why := b.Anew()
	if oldest.IsZero() || oldest.After(*r.tooOld) {
		return nil
	}
	return fmt.Errorf(
		"%w: the broker is about to deliver messages from %s on again, and ids of messages that it stored "+
			"until %s may be forgotten: "+
			"those would take effect twice. A longer horizon does not bring ids back. %s. To find the "+
			"newest messages that are stored: onlyonce events list -topic %s",
		ErrConfig,
		oldest.UTC().Format(time.RFC3339),
		r.tooOld.UTC().Format(time.RFC3339),
		why,
		Topic(r.cfg.Name),
	)
}
