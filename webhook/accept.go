package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/shard"
)

// receiveSQL claims a set of events, and is the transaction's fence; see the function's comment in
// the migration. One row: what it found of each.
const receiveSQL = `
select onlyonce.receive_webhooks(
  endpoint => $1,
  keys => $2,
  fingerprints => $3,
  digests => $4,
  others => $5,
  asides => $6,
  named => $7,
  handled => $8,
  body_window => $9,
  places => $10,
  wait => $11,
  lock_timeout => $12,
  statement_timeout => $13,
  idle_timeout => $14
)`

// parkUnsignedSQL parks an event whose id or body came before. The bytes of a day are bounded. In:
// those of intake.ParkedColumns; endpoint, most bytes of a day. One row: 1, or 0 if the day's bytes
// are used up. Locks the endpoint's row.
const parkUnsignedSQL = `
with item as (
  select (clock_timestamp() at time zone 'UTC')::date as today,
         500 + octet_length($10::bytea) + coalesce(
           (select sum(octet_length(h)) from unnest($8::bytea[] || $9::bytea[]) h),
           0
         )::bigint as bytes),
day as (
  insert into onlyonce.webhook_endpoints as e (endpoint, aside_on, aside)
    select $12, i.today, i.bytes from item i
  on conflict (endpoint) do update
    set aside_on = excluded.aside_on,
        aside    = excluded.aside + case when e.aside_on = excluded.aside_on then e.aside else 0 end
    where excluded.aside + case when e.aside_on = excluded.aside_on then e.aside else 0 end <= $13
  returning 1),
kept as (
  insert into onlyonce.parked (
    kind,
    state,
    reason,
    error,
    tenant,
    scope,
    key,
    topic,
    record_time,
    record_key,
    header_names,
    header_values,
    body,
    event_id,
    log_append_time
  )
    select 'event',
           'waiting',
           $1,
           $2,
           $3,
           $4,
           $5,
           $6,
           clock_timestamp(),
           $7,
           $8,
           $9,
           $10,
           $11,
           true
      from day
  returning id)
select count(*) from kept`

// Steps of a receiver's transaction.
const (
	stepClaim = "claim"
	stepPark  = "park"
)

const (
	// copyPause is how long an event that waits for an uncommitted copy pauses between two tries,
	// and copyTry how long each of them waits in the database. In between it has no connection.
	copyPause = 25 * time.Millisecond
	copyTry   = 10 * time.Millisecond

	storers    = 2   // transactions of a database at a time
	mostStored = 100 // events of one of them
)

var _ consumer.Tx = (*guard.Tx)(nil)

// accept stores an event once, in the database of its place (N2). It returns when that is
// committed, or was committed before.
func (ep *Endpoint) accept(ctx context.Context, i *incomingEvent) (ReceiveOutcome, error) {
	if ep.set == nil {
		return ep.acceptHere(ctx, i)
	}
	db, err := ep.set.Find(ctx, i.item.Place)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrStore, err)
	}
	if ep.shards != nil {
		return ep.shards[db.Name].acceptHere(ctx, i)
	}
	return ep.acceptHere(ctx, i)
}

// acceptHere stores an event in the endpoint's database: alone in mode Inline, whose handler has
// the transaction, and otherwise with the events that arrive together.
func (ep *Endpoint) acceptHere(ctx context.Context, i *incomingEvent) (ReceiveOutcome, error) {
	var err error
	if ep.cfg.Mode == Inline {
		ep.store.Store(ctx, []*incomingEvent{i})
		err = i.item.Err
	} else {
		err = ep.gatherUntilKnown(ctx, i)
	}
	if err != nil {
		err = ep.classifyError(i, err)
		if errors.Is(err, ErrStore) {
			ep.storing.Set(err)
		}
		return "", err
	}
	ep.storing.Set(nil)
	return outcomeOf(&i.item), nil
}

// gatherUntilKnown stores an event with others, and tries again while another process has an
// uncommitted copy of it, for DuplicateWait (W9).
func (ep *Endpoint) gatherUntilKnown(ctx context.Context, i *incomingEvent) error {
	until := time.Now().Add(ep.cfg.DuplicateWait)
	for again := false; ; again = true {
		err := ep.gather.Do(ctx, i, again)
		if !errors.Is(err, intake.ErrPending) || time.Now().After(until) || !pace.Sleep(ctx, copyPause) {
			return err
		}
	}
}

// outcomeOf returns the outcome of a committed event, for a hook and the sender.
func outcomeOf(item *intake.Item) ReceiveOutcome {
	switch {
	case item.Outcome == intake.Taken:
		return Accepted
	case item.Found == intake.Known:
		return Duplicate
	case item.Found == intake.Divergent:
		return Divergent
	case item.Found == intake.SameBody:
		return SameBody
	case item.Reason == parked.Stale:
		return Stale
	case item.Reason == parked.Forward:
		return Unforwarded
	}
	return Unstorable
}

// isQueued reports whether the error of an inline event is that of a statement that its handler has
// queued, or of a deferred constraint: the handler's, and not the database's.
func (i *incomingEvent) isQueued(err error) bool {
	var failed *guard.Failure
	return errors.As(err, &failed) && (failed.Step == "" || failed.Step == "seal") && !i.item.Lost
}

// classifyError classifies an error: the handler's, the database's, or a wait for another copy.
func (ep *Endpoint) classifyError(i *incomingEvent, err error) error {
	switch {
	case errors.Is(err, intake.ErrPending):
		return fmt.Errorf("%w: %w", ErrPending, err)
	case errors.Is(err, ErrHandler), errors.Is(err, ErrQuarantineFull):
		return err
	case ep.cfg.Mode == Inline && i.isQueued(err):
		return fmt.Errorf("%w: %w", ErrHandler, err)
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// reportLateStatement logs a write that a handler has queued after it returned (T6).
func (ep *Endpoint) reportLateStatement(err error) {
	ep.cfg.Logger.Error("onlyonce: a webhook's handler queued a statement after it had returned; the "+
		"statement was not sent", "endpoint", ep.cfg.Name, "error", err)
}

// way is the endpoint's way in. It claims ids and bodies, forwards what is fresh, and runs the
// handler of mode Inline.
type way struct{ *Endpoint }

var _ intake.Way[*incomingEvent] = way{}

// Claim implements intake.Way: it finds out whether ids or bodies came before.
func (w way) Claim(
	ctx context.Context,
	tx *guard.Tx,
	set []*incomingEvent,
	wait time.Duration,
) ([]intake.Found, error) {
	if w.cfg.Mode != Inline {
		intake.ReadCommitted(tx)
	}
	// The server's timeout ends before ctx does, so that a timeout does not cost the connection.
	bound := w.store.Bound(ctx) * 7 / 8
	var found []intake.Found
	c := columnsOf(set)
	if w.set == nil {
		c.places = nil
	}
	err := tx.EngineRow(
		ctx,
		stepClaim,
		receiveSQL,
		w.cfg.Name,
		c.keys,
		c.fingerprints,
		c.digests,
		c.others,
		c.asides,
		c.named,
		c.handled,
		w.cfg.BodyWindow,
		c.places,
		guard.Millis(min(wait, bound)),
		guard.Millis(bound),
		guard.Millis(bound),
		guard.Millis(w.cfg.deadline),
	).Scan(&found)
	if err == nil {
		for n, i := range set {
			i.take(i.keys.own)
			i.item.Noted = false
			switch found[n] {
			case freshOther:
				i.take(i.keys.other)
				found[n] = intake.Fresh
			case knownNoted:
				i.item.Noted = true
				found[n] = intake.Known
			}
		}
		return found, nil
	}
	tx.Fail(stepClaim, err)
	elsewhere := shard.Classify(err)
	if errors.Is(elsewhere, shard.ErrUnknown) {
		for _, place := range c.places {
			w.set.Forget(place)
		}
	}
	if elsewhere != nil {
		err = fmt.Errorf("%w: %w", intake.ErrOne, err)
	}
	return nil, intake.AsPending(err)
}

// Further results of onlyonce.receive_webhooks: an event of its own under its other key, and a copy
// whose body is known from now on.
const (
	freshOther intake.Found = 4
	knownNoted intake.Found = 5
)

// columns are the arrays of a set for receiveSQL.
type columns struct {
	keys         []pgtype.UUID
	fingerprints []int64
	digests      [][]byte // nil if no event has one
	others       []pgtype.UUID
	asides       []pgtype.UUID
	named        []bool
	handled      []bool
	places       []string
}

func columnsOf(set []*incomingEvent) (c columns) {
	for _, i := range set {
		c.keys = append(c.keys, i.keys.own.hash)
		c.fingerprints = append(c.fingerprints, i.item.Fingerprint.Int64())
		c.digests = append(c.digests, i.item.Digest)
		c.others = append(c.others, i.keys.other.hash)
		c.asides = append(c.asides, i.keys.aside)
		c.named = append(c.named, i.keys.named)
		c.handled = append(c.handled, i.keys.handled)
		c.places = append(c.places, i.item.Place)
	}
	if !slices.ContainsFunc(c.digests, func(digest []byte) bool { return digest != nil }) {
		c.digests = nil
	}
	return c
}

// Apply implements intake.Way: it forwards an event, and runs its inline handler.
func (w way) Apply(ctx context.Context, tx *guard.Tx, i *incomingEvent) error {
	if w.cfg.Forward != nil {
		err := w.cfg.Forward.enqueue(ctx, tx, i, w.cfg.Sealer)
		if errors.Is(err, outbox.ErrCall) { // not now or later; no statement was sent
			return fmt.Errorf("%w: %w", errUnforwardable, err)
		}
		if err != nil {
			return err
		}
	}
	if w.cfg.Mode == Inline {
		return w.runHandler(ctx, tx, i)
	}
	return nil
}

// Refuses implements intake.Way. An event from which no call can be made, now or later, is parked,
// and so is one that a handler finds stale. If only our own statements run, so is one that the
// database never takes: the sender would send it until it gives up (W15).
func (w way) Refuses(err error) (reason string) {
	switch {
	case errors.Is(err, errUnforwardable):
		return parked.Forward
	case errors.Is(err, ErrOvertaken):
		return parked.Stale
	case w.cfg.Mode == Inline:
		return ""
	}
	return intake.RefusesUnstorable(err)
}

var (
	errUnforwardable = errors.New("webhook: no call can be made of the event")

	errDivergent = errors.New("an event of this id was accepted before, with another body")
	errSameBody  = errors.New("this body was accepted before, under another id, and the sender signs no id")
)

// Aside implements intake.Way. An event whose id and whole body are signed comes again with another
// body because its sender renders it anew: it is a copy. Any other one is parked (W7).
//
// If the bytes of the day are used up, the error fails the set. That undoes the claim's note that
// the event was set aside, so the event is not a copy when it comes again.
func (w way) Aside(ctx context.Context, tx *guard.Tx, set []*incomingEvent) error {
	for _, i := range set {
		if !i.keys.aside.Valid {
			i.item.Outcome = intake.Copied
			w.logRendered()
			continue
		}
		if err := w.parkUnsigned(ctx, tx, i); err != nil {
			return err
		}
	}
	return nil
}

// parkUnsigned parks the whole event if the bytes of the day allow it (W7).
func (w way) parkUnsigned(ctx context.Context, tx *guard.Tx, i *incomingEvent) error {
	reason := parked.Divergent
	why := errDivergent
	if i.item.Found == intake.SameBody {
		reason = parked.SameBody
		why = errSameBody
	}
	var kept int
	args := w.store.ParkedColumns(tx, &i.item.Event, reason, why)
	args[4] = nil // a parked row with a key claims it
	args = append(args, w.cfg.Name, w.cfg.MaxQuarantineBytes)
	if err := tx.EngineRow(ctx, stepPark, parkUnsignedSQL, args...).Scan(&kept); err != nil {
		tx.Fail(stepPark, err)
		return err
	}
	if kept == 0 {
		return fmt.Errorf("%w: %w", intake.ErrOne, ErrQuarantineFull)
	}
	i.item.ParkedAs(reason, why)
	return nil
}

// logRendered says that a body differs from the one that was accepted under its signed id.
func (w way) logRendered() {
	if held, yes := w.refusals.Let("rendered anew", time.Now(), pace.Refusals); yes {
		w.cfg.Logger.Info("onlyonce: a webhook whose sender signs its id came again with another body: it "+
			"is a duplicate, and not kept", "endpoint", w.cfg.Name, "not_logged", held)
	}
}
