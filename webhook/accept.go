package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
)

// receiveSQL claims the event, and is the transaction's fence; see the function's comment in the
// migration. One row: what it found.
const receiveSQL = `select onlyonce.receive_webhook($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// setAsideSQL parks a whole event that is not accepted. In: state, reason, error, tenant, scope,
// key, topic, ordering key, names and values of headers, body, event id, whether parking settles
// it. By no index; locks nothing.
const setAsideSQL = `
insert into onlyonce.parked (kind, state, reason, error, tenant, scope, key, topic, record_time, record_key, header_names, header_values, body, event_id,
                             log_append_time, settled_at)
values ('event', $1, $2, $3, $4, $5, $6, $7, clock_timestamp(), $8, $9, $10, $11, $12, true, case when $13 then clock_timestamp() end)`

// setCopyAsideSQL parks an event whose body came before. The first such copy since the body was
// accepted is kept whole, and later ones refer to it. So a recorded request that is sent again
// under made-up ids takes one row without a body each time. The bytes of a day are bounded. In:
// endpoint, digest, most bytes of a day, error, tenant, scope, key, topic, ordering key, names and
// values of headers, body, event id. One row: 1, or 0 if the day's bytes are used up. Runs under
// the lock on the body's row, which the claim has taken; then locks the endpoint's row.
const setCopyAsideSQL = `
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
	stepAside     = "aside"
)

// What onlyonce.receive_webhook returns.
const (
	isFresh = iota
	isDuplicate
	isDivergent
	isSameBody
)

const (
	mostRuns     = 5
	codeLock     = "55P03" // lock_not_available
	codeNoStream = "OO009"
)

// accept stores an event once. It returns when that is committed, or was committed before.
//
// If COMMIT was sent and its answer never arrived, the outcome is unknown. accept then does the
// same again on another connection. Its claim waits for the old transaction, if that is still
// running. Then it either finds the event, which means that it was committed, or accepts it.
func (r *Endpoint) accept(ctx context.Context, i *item) (Outcome, error) {
	if err := fault.Point(fault.WebhookVerified); err != nil {
		return "", fmt.Errorf("%w: %w", ErrStore, err)
	}
	var aside error // the handler's reason to park the event
	unknown := false
	for run := 1; ; run++ {
		a := &attempt{Endpoint: r, item: i, aside: aside}
		outcome, err := a.run(ctx)
		again := false
		switch {
		case err == nil:
			if outcome == Duplicate && unknown {
				outcome = Accepted // by our own transaction, as far as can be known
			}
			if outcome == Accepted {
				r.wake()
			}
			return outcome, nil
		case errors.Is(err, ErrOvertaken):
			aside, again = err, true // the handler's transaction is rolled back; another one parks the event
		case a.unknown:
			unknown, again = true, true
		case a.lost:
			again = true
		case guard.RunAgain(guard.SQLState(err)):
			again = true
		case guard.SQLState(err) == codeNoStream:
			_, made := eventsource.MakeStream(ctx, r.pool, Topic(r.cfg.Name), r.cfg.Partitions)
			again, err = made == nil, errors.Join(err, made)
		}
		if !again || run >= mostRuns || ctx.Err() != nil {
			return "", a.blame(err)
		}
	}
}

// wake wakes the readers in this process.
func (r *Endpoint) wake() {
	for _, s := range r.cfg.Sources {
		s.Wake()
	}
}

// attempt is one transaction.
type attempt struct {
	*Endpoint
	*item
	aside error

	unknown bool // COMMIT was sent, and its answer never arrived
	lost    bool // the connection was lost before that: nothing is committed
	handler bool // the error is the handler's
}

// blame classifies an error: the handler's, the database's, or a wait for another copy.
func (a *attempt) blame(err error) error {
	switch {
	case errors.Is(err, ErrPending), errors.Is(err, ErrHandler), errors.Is(err, ErrAside):
		return err
	case a.handler:
		return fmt.Errorf("%w: %w", ErrHandler, err)
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// run runs the transaction: the claim, the work of the mode, the seal and COMMIT.
func (a *attempt) run(ctx context.Context) (Outcome, error) {
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	tx := guard.Begin(conn.Conn())
	tx.Report = a.strayed
	outcome, commit, err := a.fill(ctx, tx)
	if errors.Is(err, errLeftBehind) {
		conn.Hijack() // frees the connection's place in the pool; the handler still has the connection, which is cut
		tx.Abandon()
		a.handler = true
		return "", err
	}
	defer conn.Release()
	sent := false
	if err == nil && commit {
		if err = fault.Point(fault.WebhookStoring); err == nil {
			sent = true
			err = tx.Commit(a.left(ctx))
		}
		if err == nil && fault.Point(fault.WebhookStored) != nil {
			a.unknown = true
			return "", fault.ErrInjected
		}
	}
	if err == nil {
		tx.Rollback(time.Second)
		return outcome, nil
	}
	var failed *guard.Failure
	if tx.Lost() || errors.Is(err, fault.ErrInjected) {
		a.unknown, a.lost = sent, !sent
	} else if errors.As(err, &failed) && (failed.Step == "" || failed.Step == "seal") && a.cfg.Mode == Inline {
		a.handler = true // a queued statement, or a deferred constraint
	}
	tx.Rollback(time.Second)
	return "", err
}

// strayed logs a write that a handler has queued after it returned (T6).
func (r *Endpoint) strayed(err error) {
	r.cfg.Logger.Error("onlyonce: a webhook's handler queued a statement after it had returned; it was not sent", "endpoint", r.cfg.Name, "error", err)
}

// left returns how long COMMIT may take.
func (a *attempt) left(ctx context.Context) time.Duration {
	at, _ := ctx.Deadline()
	return max(time.Until(at), 50*time.Millisecond)
}

// fill does everything before COMMIT. commit is false if there is nothing to commit.
func (a *attempt) fill(ctx context.Context, tx *guard.Tx) (outcome Outcome, commit bool, err error) {
	if a.cfg.Mode != Inline {
		tx.Engine(stepIsolation, isolationSQL)
	}
	found, err := a.claim(ctx, tx)
	if err != nil {
		return "", false, err
	}
	if err := fault.Point(fault.WebhookClaimed); err != nil {
		tx.Fail(stepClaim, err)
		return "", false, err
	}
	switch {
	case found == isDuplicate:
		return Duplicate, false, nil
	case found == isDivergent && a.cfg.KeepDivergent && !a.reconciled:
		a.keep(tx, parked.Discarded, parked.Divergent, errDivergent)
		return Divergent, true, nil
	case found == isDivergent:
		return Divergent, false, nil
	case found == isSameBody:
		if err := a.keepCopy(ctx, tx); err != nil {
			return "", false, err
		}
		return SameBody, true, nil
	case a.aside != nil:
		a.keep(tx, parked.Waiting, parked.Stale, a.aside)
		return Stale, true, nil //nolint:nilerr // that the handler found it stale is what this is about
	}
	tx.Lend(&origin.Origin{Tenant: a.tenant, Scope: Scope(a.cfg.Name), ID: a.id, Time: time.Now()})
	if a.cfg.Forward != nil {
		err := a.cfg.Forward.enqueue(ctx, tx, a.item)
		if errors.Is(err, outbox.ErrCall) { // no call can be made of this event, now or later; no statement was sent
			tx.TakeBack()
			a.keep(tx, parked.Waiting, parked.Forward, err)
			return Unforwarded, true, nil
		}
		if err != nil {
			return "", false, err
		}
	}
	switch a.cfg.Mode {
	case Inbox:
		err = eventsource.Append(ctx, tx, a.stored(a.item))
	case Inline:
		if err = a.handle(ctx, tx); errors.Is(err, errLeftBehind) {
			return "", false, err // from here on the handler owns tx
		}
	}
	tx.TakeBack()
	if failed := tx.Failure(); err == nil && failed != nil {
		err = failed
	}
	return Accepted, true, err
}

// claim claims the id, and finds out whether the id or the body came before.
func (a *attempt) claim(ctx context.Context, tx *guard.Tx) (found int, err error) {
	// The server's timeout ends before ctx does, so that a timeout does not cost the connection.
	bound := a.left(ctx) * 7 / 8
	err = tx.EngineRow(ctx, stepClaim, receiveSQL, a.cfg.Name, a.hash, a.fingerprint, a.digest, a.cfg.BodyWindow,
		guard.Millis(min(a.cfg.DuplicateWait, bound)), guard.Millis(bound), guard.Millis(bound), guard.Millis(a.cfg.Deadline)).Scan(&found)
	if err != nil {
		tx.Fail(stepClaim, err)
		if guard.SQLState(err) == codeLock {
			err = fmt.Errorf("%w: %w", ErrPending, err)
		}
	}
	return found, err
}

var (
	errDivergent = errors.New("an event of this id was accepted before, with another body")
	errSameBody  = errors.New("this body was accepted before, under another id, and the sender signs no id")
)

// keep parks the whole event.
func (a *attempt) keep(tx *guard.Tx, state, reason string, why error) {
	names, values := a.columns()
	tx.Engine(stepAside, setAsideSQL, state, reason, codec.Text(why.Error()), a.tenant, Scope(a.cfg.Name), a.hash,
		Topic(a.cfg.Name), a.key, names, values, a.Body, a.id, state == parked.Discarded)
}

// keepCopy parks an event whose body came before under another id.
func (a *attempt) keepCopy(ctx context.Context, tx *guard.Tx) error {
	names, values := a.columns()
	var kept int
	err := tx.EngineRow(ctx, stepAside, setCopyAsideSQL, a.cfg.Name, a.digest, a.cfg.MaxAside, codec.Text(errSameBody.Error()), a.tenant, Scope(a.cfg.Name),
		a.hash, Topic(a.cfg.Name), a.key, names, values, a.Body, a.id).Scan(&kept)
	if err != nil {
		tx.Fail(stepAside, err)
		return err
	}
	if kept == 0 {
		return ErrAside
	}
	return nil
}

// columns returns the headers in the form of a parked row.
func (i *item) columns() (names, values [][]byte) {
	names, values = make([][]byte, len(i.headers)), make([][]byte, len(i.headers))
	for n, h := range i.headers {
		names[n], values[n] = []byte(h.Name), h.Value
	}
	return names, values
}

var _ consumer.Tx = (*guard.Tx)(nil)
