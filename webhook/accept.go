package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/shard"
)

// acceptTx is the transaction that accepts an event.
type acceptTx struct {
	*Endpoint
	*incomingEvent
	stale   error // why the handler, in an earlier run, found the event stale; nil: it did not
	outcome Outcome

	handlerFailed bool // the error is the handler's
}

// receiveSQL claims the event, and is the transaction's fence; see the function's comment in the
// migration. One row: what it found.
const receiveSQL = `select onlyonce.receive_webhook($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// receiveAtSQL is the same for a place that must live in the database, if there are several (N2).
const receiveAtSQL = `select onlyonce.receive_webhook_at($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// parkUnsignedSQL parks an event whose id or body came before, and whose sender signs no id. The
// bytes of a day are bounded. In: those of intake.ParkedColumns; endpoint, digest, most bytes of a
// day, whether the body is free for its own id. One row: 1, or 0 if the day's bytes are used up.
// Runs under the lock on the body's row, which the claim has taken; then locks the endpoint's row.
const parkUnsignedSQL = `
with day as (
  insert into onlyonce.webhook_endpoints as e (endpoint, aside_on, aside)
    select $12, (clock_timestamp() at time zone 'UTC')::date,
           500 + octet_length($10::bytea) + coalesce((select sum(octet_length(h)) from unnest($8::bytea[] || $9::bytea[]) h), 0)::bigint
  on conflict (endpoint) do update
    set aside_on = excluded.aside_on, aside = excluded.aside + case when e.aside_on = excluded.aside_on then e.aside else 0 end
  returning aside),
kept as (
  insert into onlyonce.parked (kind, state, reason, error, tenant, scope, key, topic, record_time, record_key, header_names, header_values, body, event_id, log_append_time)
    select 'event', 'waiting', $1, $2, $3, $4, $5, $6, clock_timestamp(), $7, $8, $9, $10, $11, true from day where aside <= $14
  returning id),
freed as (
  update onlyonce.webhook_bodies set key = null where endpoint = $12 and digest = $13 and $15)
select count(*) from kept`

// Steps of a receiver's transaction.
const (
	stepClaim = "claim"
	stepPark  = "park"
)

// What onlyonce.receive_webhook returns.
const (
	foundFresh = iota
	foundDuplicate
	foundDivergent
	foundSameBody
)

const lockNotAvailable = "55P03" // lock_not_available

// accept stores an event once. It returns when that is committed, or was committed before.
func (ep *Endpoint) accept(ctx context.Context, i *incomingEvent) (Outcome, error) {
	i.keepTrace(ctx, ep.cfg.Trace)
	a := &acceptTx{Endpoint: ep, incomingEvent: i}
	end := ep.intake.Run(ctx, a.claimAndStore, func(err error) bool {
		if !errors.Is(err, ErrOvertaken) {
			return false
		}
		a.stale = err // another transaction parks the event
		return true
	})
	if end.Err != nil {
		var failed *guard.Failure
		if !end.Lost && errors.As(end.Err, &failed) && (failed.Step == "" || failed.Step == "seal") && ep.cfg.Mode == Inline {
			a.handlerFailed = true // a queued statement, or a deferred constraint
		}
		return "", a.classifyError(end.Err)
	}
	if a.outcome == Duplicate && end.Unknown {
		a.outcome = Accepted // by our own transaction, as far as can be known
	}
	if a.outcome == Accepted {
		for _, s := range ep.cfg.Sources {
			s.Wake()
		}
	}
	return a.outcome, nil
}

// classifyError classifies an error: the handler's, the database's, or a wait for another copy.
func (a *acceptTx) classifyError(err error) error {
	switch {
	case errors.Is(err, ErrPending), errors.Is(err, ErrHandler), errors.Is(err, ErrAside):
		return err
	case a.handlerFailed, errors.Is(err, errHandlerHangs):
		return fmt.Errorf("%w: %w", ErrHandler, err)
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// reportLateStatement logs a write that a handler has queued after it returned (T6).
func (ep *Endpoint) reportLateStatement(err error) {
	ep.cfg.Logger.Error("onlyonce: a webhook's handler queued a statement after it had returned; the statement was not sent", "endpoint", ep.cfg.Name, "error", err)
}

// claimAndStore does everything before COMMIT. commit is false if there is nothing to commit (W9,
// W15).
func (a *acceptTx) claimAndStore(ctx context.Context, tx *guard.Tx) (commit bool, err error) {
	a.outcome, a.handlerFailed = "", false
	if a.cfg.Mode != Inline {
		intake.ReadCommitted(tx)
	}
	found, err := a.claimEvent(ctx, tx)
	if err != nil {
		return false, err
	}
	switch {
	case found == foundDuplicate:
		a.outcome = Duplicate
		return false, nil
	case found == foundDivergent && a.digest == nil: // the sender signs the id: it renders the body anew
		a.logRendered()
		a.outcome = Divergent
		return false, nil
	case found == foundDivergent:
		a.outcome = Divergent
		return true, a.parkUnsigned(ctx, tx, parked.Divergent, errDivergent)
	case found == foundSameBody:
		a.outcome = SameBody
		return true, a.parkUnsigned(ctx, tx, parked.SameBody, errSameBody)
	case a.stale != nil:
		a.intake.Park(tx, &a.event, parked.Stale, a.stale)
		a.outcome = Stale
		return true, nil //nolint:nilerr // that the handler found it stale is what this is about
	}
	tx.Lend(&origin.Origin{Tenant: a.event.Tenant, Scope: Scope(a.cfg.Name), ID: a.event.ID, Time: time.Now(), TraceOf: a.cfg.Trace})
	if a.cfg.Forward != nil {
		err := a.cfg.Forward.enqueue(ctx, tx, a.incomingEvent, a.cfg.Sealer)
		if errors.Is(err, outbox.ErrCall) { // no call can be made of this event, now or later; no statement was sent
			tx.TakeBack()
			a.intake.Park(tx, &a.event, parked.Forward, err)
			a.outcome = Unforwarded
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	switch a.cfg.Mode {
	case Stored:
		err = a.intake.Append(ctx, tx, &a.event)
	case Inline:
		if err = a.runHandler(ctx, tx); errors.Is(err, errHandlerHangs) {
			return false, err // from here on the handler owns tx
		}
	}
	tx.TakeBack()
	if failed := tx.Failure(); err == nil && failed != nil {
		err = failed
	}
	a.outcome = Accepted
	return true, err
}

// claimEvent claims the id, and finds out whether the id or the body came before.
func (a *acceptTx) claimEvent(ctx context.Context, tx *guard.Tx) (found int, err error) {
	// The server's timeout ends before ctx does, so that a timeout does not cost the connection.
	bound := a.intake.Bound(ctx) * 7 / 8
	sql, args := receiveSQL, []any{a.cfg.Name, a.event.Hash, a.event.Fingerprint, a.digest, a.cfg.BodyWindow,
		guard.Millis(min(a.cfg.DuplicateWait, bound)), guard.Millis(bound), guard.Millis(bound), guard.Millis(a.cfg.deadline)}
	if a.set != nil {
		sql, args = receiveAtSQL, append([]any{a.place(a.incomingEvent)}, args...)
	}
	if err = tx.EngineRow(ctx, stepClaim, sql, args...).Scan(&found); err != nil {
		if _, unknown := shard.Refused(err); unknown {
			a.set.Forget(a.place(a.incomingEvent))
		}
		tx.Fail(stepClaim, err)
		if guard.SQLState(err) == lockNotAvailable {
			err = fmt.Errorf("%w: %w", ErrPending, err)
		}
	}
	return found, err
}

var (
	errDivergent = errors.New("an event of this id was accepted before, with another body")
	errSameBody  = errors.New("this body was accepted before, under another id, and the sender signs no id")
)

// parkUnsigned parks the whole event if the bytes of the day allow it (W7).
func (a *acceptTx) parkUnsigned(ctx context.Context, tx *guard.Tx, reason string, why error) error {
	var kept int
	args := a.intake.ParkedColumns(tx, &a.event, reason, why)
	args[4] = nil // a parked row with a key claims it
	args = append(args, a.cfg.Name, a.digest, a.cfg.MaxAside, reason == parked.Divergent && a.signed == nil)
	if err := tx.EngineRow(ctx, stepPark, parkUnsignedSQL, args...).Scan(&kept); err != nil {
		tx.Fail(stepPark, err)
		return err
	}
	if kept == 0 {
		return ErrAside
	}
	a.logAside(reason, why)
	return nil
}

// logAside tells an operator that a sender was told 200 and the event was not handled.
func (a *acceptTx) logAside(reason string, why error) {
	if held, yes := a.refusals.Let(reason, time.Now(), pace.Refusals); yes {
		a.cfg.Logger.Warn("onlyonce: webhook set aside, see onlyonce parked list -kind event", "endpoint", a.cfg.Name, "reason", reason, "error", why, "not_logged", held)
	}
}

// logRendered says that a body differs from the one that was accepted under its signed id.
func (a *acceptTx) logRendered() {
	if held, yes := a.refusals.Let("rendered anew", time.Now(), pace.Refusals); yes {
		a.cfg.Logger.Info("onlyonce: a webhook whose sender signs its id came again with another body: it is a duplicate, and not kept", "endpoint", a.cfg.Name, "not_logged", held)
	}
}

var _ consumer.Tx = (*guard.Tx)(nil)

// acceptInShard accepts an event in the database of its place (N2).
func (ep *Endpoint) acceptInShard(ctx context.Context, i *incomingEvent) (Outcome, error) {
	if ep.set == nil {
		return ep.accept(ctx, i)
	}
	db, err := ep.set.Find(ctx, ep.place(i))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrStore, err)
	}
	if ep.shards != nil {
		return ep.shards[db.Name].accept(ctx, i)
	}
	return ep.accept(ctx, i)
}
