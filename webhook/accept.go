package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/shard"
)

// receiveSQL claims the event, and is the transaction's fence; see the function's comment in the
// migration. One row: what it found.
const receiveSQL = `select onlyonce.receive_webhook($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// receiveAtSQL is the same for a place that must live in the database, if there are several (N2).
const receiveAtSQL = `select onlyonce.receive_webhook_at($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// parkEventSQL parks a whole event that is not accepted. In: state, reason, error, tenant, scope,
// key, topic, ordering key, names and values of headers, body, event id, whether parking settles
// it. By no index; locks nothing.
const parkEventSQL = `
insert into onlyonce.parked (kind, state, reason, error, tenant, scope, key, topic, record_time, record_key, header_names, header_values, body, event_id,
                             log_append_time, settled_at)
values ('event', $1, $2, $3, $4, $5, $6, $7, clock_timestamp(), $8, $9, $10, $11, $12, true, case when $13 then clock_timestamp() end)`

// parkSameBodySQL parks an event whose body came before. The first such copy since the body was
// accepted is kept whole, and later ones refer to it. So a recorded request that is sent again
// under made-up ids takes one row without a body each time. The bytes of a day are bounded. In:
// endpoint, digest, most bytes of a day, error, tenant, scope, key, topic, ordering key, names and
// values of headers, body, event id. One row: 1, or 0 if the day's bytes are used up. Runs under
// the lock on the body's row, which the claim has taken; then locks the endpoint's row.
const parkSameBodySQL = `
with first as (
  select p.id from onlyonce.webhook_bodies b join onlyonce.parked p on p.id = b.parked_id and p.body is not null
   where b.endpoint = $1 and b.digest = $2),
day as (
  insert into onlyonce.webhook_endpoints as e (endpoint, aside_on, aside)
    select $1, (clock_timestamp() at time zone 'UTC')::date,
           500 + case when exists (select from first) then 0 else octet_length($12::bytea) end
           + coalesce((select sum(octet_length(h)) from unnest($10::bytea[] || $11::bytea[]) h), 0)::bigint
  on conflict (endpoint) do update
    set aside_on = excluded.aside_on, aside = excluded.aside + case when e.aside_on = excluded.aside_on then e.aside else 0 end
  returning aside),
kept as (
  insert into onlyonce.parked (kind, state, reason, error, tenant, scope, key, topic, record_time, record_key, header_names, header_values, body, body_of, event_id,
                               log_append_time)
    select 'event', 'waiting', 'same-body', $4, $5, $6, $7, $8, clock_timestamp(), $9, $10, $11,
           case when not exists (select from first) then $12 end, (select id from first), $13, true
      from day where aside <= $3
  returning id),
noted as (
  update onlyonce.webhook_bodies b set parked_id = kept.id from kept where b.endpoint = $1 and b.digest = $2 and not exists (select from first))
select count(*) from kept`

// isolationSQL is the first statement of a transaction that has only our own statements: at READ
// COMMITTED none of them fails for its snapshot, so none has to run again.
const isolationSQL = `set transaction isolation level read committed`

// Steps of a receiver's transaction.
const (
	stepIsolation = "isolation"
	stepClaim     = "claim"
	stepPark      = "park"
)

// What onlyonce.receive_webhook returns.
const (
	foundFresh = iota
	foundDuplicate
	foundDivergent
	foundSameBody
)

const (
	maxTxRuns        = 5
	lockNotAvailable = "55P03" // lock_not_available
	streamMissing    = "OO009"
)

// accept stores an event once. It returns when that is committed, or was committed before.
//
// If COMMIT was sent and its answer never arrived, the outcome is unknown. accept then does the
// same again on another connection. Its claim waits for the old transaction, if that is still
// running. Then it either finds the event, which means that it was committed, or accepts it.
func (ep *Endpoint) accept(ctx context.Context, i *incomingEvent) (Outcome, error) {
	i.keepTrace(ctx, ep.cfg.Trace)
	var stale error // the handler's reason to park the event
	commitUnknown := false
	for runs := 1; ; runs++ {
		a := &acceptTx{Endpoint: ep, incomingEvent: i, stale: stale}
		outcome, err := a.execute(ctx)
		retry := false
		switch {
		case err == nil:
			if outcome == Duplicate && commitUnknown {
				outcome = Accepted // by our own transaction, as far as can be known
			}
			if outcome == Accepted {
				ep.wakeSources()
			}
			return outcome, nil
		case errors.Is(err, ErrOvertaken):
			stale, retry = err, true // the handler's transaction is rolled back; another one parks the event
		case a.commitUnknown:
			commitUnknown, retry = true, true
		case a.connLost:
			retry = true
		case guard.RunAgain(guard.SQLState(err)):
			retry = true
		case guard.SQLState(err) == streamMissing:
			_, madeErr := eventsource.MakeStream(ctx, ep.pool, Topic(ep.cfg.Name), ep.cfg.Partitions)
			retry, err = madeErr == nil, errors.Join(err, madeErr)
		}
		if !retry || runs >= maxTxRuns || ctx.Err() != nil {
			return "", a.classifyError(err)
		}
	}
}

// wakeSources wakes the readers in this process.
func (ep *Endpoint) wakeSources() {
	for _, s := range ep.cfg.Sources {
		s.Wake()
	}
}

// acceptTx is one transaction that accepts an event.
type acceptTx struct {
	*Endpoint
	*incomingEvent
	stale error // why the handler, in an earlier transaction, found the event stale; nil: it did not

	commitUnknown bool // COMMIT was sent, and its answer never arrived
	connLost      bool // the connection was lost before that: nothing is committed
	handlerFailed bool // the error is the handler's
}

// classifyError classifies an error: the handler's, the database's, or a wait for another copy.
func (a *acceptTx) classifyError(err error) error {
	switch {
	case errors.Is(err, ErrPending), errors.Is(err, ErrHandler), errors.Is(err, ErrAside):
		return err
	case a.handlerFailed:
		return fmt.Errorf("%w: %w", ErrHandler, err)
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// execute runs the transaction: the claim, the work of the mode, the seal and COMMIT.
func (a *acceptTx) execute(ctx context.Context) (Outcome, error) {
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	tx := guard.Begin(conn.Conn())
	tx.Report = a.reportLateStatement
	outcome, commit, err := a.claimAndStore(ctx, tx)
	if errors.Is(err, errHandlerHangs) {
		conn.Hijack() // frees the connection's place in the pool; the handler still has the connection, which is cut
		tx.Abandon()
		a.handlerFailed = true
		return "", err
	}
	defer conn.Release()
	sent := false
	if err == nil && commit {
		sent = true
		err = tx.Commit(a.commitTimeout(ctx))
	}
	if err == nil {
		tx.Rollback(time.Second)
		return outcome, nil
	}
	var failed *guard.Failure
	if tx.Lost() {
		a.commitUnknown, a.connLost = sent, !sent
	} else if errors.As(err, &failed) && (failed.Step == "" || failed.Step == "seal") && a.cfg.Mode == Inline {
		a.handlerFailed = true // a queued statement, or a deferred constraint
	}
	tx.Rollback(time.Second)
	return "", err
}

// reportLateStatement logs a write that a handler has queued after it returned (T6).
func (ep *Endpoint) reportLateStatement(err error) {
	ep.cfg.Logger.Error("onlyonce: a webhook's handler queued a statement after it had returned; the statement was not sent", "endpoint", ep.cfg.Name, "error", err)
}

// commitTimeout returns how long COMMIT may take.
func (a *acceptTx) commitTimeout(ctx context.Context) time.Duration {
	at, _ := ctx.Deadline()
	return max(time.Until(at), 50*time.Millisecond)
}

// claimAndStore does everything before COMMIT. commit is false if there is nothing to commit.
func (a *acceptTx) claimAndStore(ctx context.Context, tx *guard.Tx) (outcome Outcome, commit bool, err error) {
	if a.cfg.Mode != Inline {
		tx.Engine(stepIsolation, isolationSQL)
	}
	found, err := a.claimEvent(ctx, tx)
	if err != nil {
		return "", false, err
	}
	switch {
	case found == foundDuplicate:
		return Duplicate, false, nil
	case found == foundDivergent && a.cfg.KeepDivergent && !a.reconciled:
		a.parkEvent(tx, parked.Discarded, parked.Divergent, errDivergent)
		return Divergent, true, nil
	case found == foundDivergent:
		return Divergent, false, nil
	case found == foundSameBody:
		if err := a.parkSameBody(ctx, tx); err != nil {
			return "", false, err
		}
		return SameBody, true, nil
	case a.stale != nil:
		a.parkEvent(tx, parked.Waiting, parked.Stale, a.stale)
		return Stale, true, nil //nolint:nilerr // that the handler found it stale is what this is about
	}
	tx.Lend(&origin.Origin{Tenant: a.tenant, Scope: Scope(a.cfg.Name), ID: a.messageID, Time: time.Now(), TraceOf: a.cfg.Trace})
	if a.cfg.Forward != nil {
		err := a.cfg.Forward.enqueue(ctx, tx, a.incomingEvent)
		if errors.Is(err, outbox.ErrCall) { // no call can be made of this event, now or later; no statement was sent
			tx.TakeBack()
			a.parkEvent(tx, parked.Waiting, parked.Forward, err)
			return Unforwarded, true, nil
		}
		if err != nil {
			return "", false, err
		}
	}
	switch a.cfg.Mode {
	case Inbox:
		err = eventsource.Append(ctx, tx, a.streamEvent(a.incomingEvent))
	case Inline:
		if err = a.runHandler(ctx, tx); errors.Is(err, errHandlerHangs) {
			return "", false, err // from here on the handler owns tx
		}
	}
	tx.TakeBack()
	if failed := tx.Failure(); err == nil && failed != nil {
		err = failed
	}
	return Accepted, true, err
}

// claimEvent claims the id, and finds out whether the id or the body came before.
func (a *acceptTx) claimEvent(ctx context.Context, tx *guard.Tx) (found int, err error) {
	// The server's timeout ends before ctx does, so that a timeout does not cost the connection.
	bound := a.commitTimeout(ctx) * 7 / 8
	sql, args := receiveSQL, []any{a.cfg.Name, a.hash, a.fingerprint, a.digest, a.cfg.BodyWindow,
		guard.Millis(min(a.cfg.DuplicateWait, bound)), guard.Millis(bound), guard.Millis(bound), guard.Millis(a.cfg.Deadline)}
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

// parkEvent parks the whole event.
func (a *acceptTx) parkEvent(tx *guard.Tx, state, reason string, why error) {
	names, values := a.headerColumns()
	tx.Engine(stepPark, parkEventSQL, state, reason, codec.Text(why.Error()), a.tenant, Scope(a.cfg.Name), a.hash,
		Topic(a.cfg.Name), a.orderingKey, names, values, a.Body, a.messageID, state == parked.Discarded)
}

// parkSameBody parks an event whose body came before under another id.
func (a *acceptTx) parkSameBody(ctx context.Context, tx *guard.Tx) error {
	names, values := a.headerColumns()
	var kept int
	err := tx.EngineRow(ctx, stepPark, parkSameBodySQL, a.cfg.Name, a.digest, a.cfg.MaxAside, codec.Text(errSameBody.Error()), a.tenant, Scope(a.cfg.Name),
		a.hash, Topic(a.cfg.Name), a.orderingKey, names, values, a.Body, a.messageID).Scan(&kept)
	if err != nil {
		tx.Fail(stepPark, err)
		return err
	}
	if kept == 0 {
		return ErrAside
	}
	return nil
}

var _ consumer.Tx = (*guard.Tx)(nil)
