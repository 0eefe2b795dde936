// Package intake stores events from outside before they are acknowledged: [Store] claims the ids of
// a set in one transaction, appends the fresh ones to a stream, and parks what cannot be appended.
// A broker's acknowledgement and the 200 for a webhook are the same thing, so queues and webhook
// endpoints have one Store for each database, and a [Way] for what differs. [Gather] makes sets of
// requests that arrive together. See rules W8 to W11, W23 and Q1 to Q5 in docs/rules.
package intake

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/seal"
)

// parkSQL parks a whole event that is not accepted. In: reason, error, tenant, scope, key, topic,
// ordering key, names and values of headers, body, event id. By no index; locks nothing.
const parkSQL = `
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
values (
  'event',
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
)`

// isolationSQL is the first statement of a transaction that has only our own statements: at READ
// COMMITTED none of them fails for its snapshot, so none has to run again.
const isolationSQL = `set transaction isolation level read committed`

// flushSQL has COMMIT wait for its flush, whatever the session's synchronous_commit: a crash of the
// server would lose a commit that was answered, and nobody sends its events again. In, out:
// nothing.
const flushSQL = `
select set_config('synchronous_commit', 'local', true)
 where current_setting('synchronous_commit') = 'off'`

// Steps of a receiving transaction.
const (
	stepIsolation = "isolation"
	stepPark      = "park"
	stepFlush     = "flush"
	stepSeal      = "sealing"
)

const streamMissing = "OO009"

// Intake is one way in: a webhook endpoint of one database, or a queue.
type Intake struct {
	Pool          *primary.Pool
	Topic, Scope  string // the stream, and where ids count
	Partitions    int    // of the stream, if it has to be made
	Sealer        *seal.Sealer
	OnLate        func(error) // is told of a statement that a handler queued too late (T6)
	Logger        *slog.Logger
	CommitTimeout time.Duration // the least that COMMIT may take, if ctx ends earlier

	stream eventsource.Stream
}

// New returns an Intake with these fields. Pool and Topic are required.
func New(n Intake) *Intake {
	n.stream = eventsource.StreamOf(n.Pool, n.Topic)
	return &n
}

// Event is one event on its way into the database. Its hash and its fingerprint are made once for
// all runs of the transaction, because making them reads the whole body.
type Event struct {
	Tenant  string
	ID      string // unique in the scope, for the tenant
	Key     []byte // the ordering key; nil for none
	Headers []consumer.Header
	Body    []byte

	Hash        pgtype.UUID // of the dedupe key
	Fingerprint dedupe.Fingerprint

	stored        []byte // the body as it is stored
	storedHeaders []consumer.Header
}

// Identify makes the event's hash and fingerprint.
func (e *Event) Identify(scope string) {
	e.Hash = pgtype.UUID{Bytes: dedupe.Key{Tenant: e.Tenant, Scope: scope, ID: e.ID}.Hash(), Valid: true}
	e.Fingerprint = dedupe.FingerprintOf(e.Body)
}

// Rename gives the event another id and its hash. What was stored under the former one is made
// anew: a sealed body is bound to its id (W22).
func (e *Event) Rename(id string, hash pgtype.UUID) {
	if e.ID == id {
		return
	}
	e.ID = id
	e.Hash = hash
	e.stored = nil
	e.storedHeaders = nil
}

// ErrAbandoned is wrapped by the error of work whose handler still uses the connection: the
// connection is cut, and the work is not run again.
var ErrAbandoned = errors.New("intake: the handler did not return")

// End is how Run ended.
type End struct {
	Err error
	// a COMMIT was sent whose answer never arrived; unless the attempts were used up, the work was
	// run again
	Unknown bool
	Lost    bool // the last run lost its connection
}

// attempts are the bounds of Run: a request waits for it.
func attempts() guard.Attempts {
	most := 5
	shortest := 20 * time.Millisecond
	longest := time.Second
	return guard.Attempts{Max: &most, BackoffMin: &shortest, BackoffMax: &longest}
}

// Run runs work in a transaction and commits it, unless work returns false.
//
// If COMMIT was sent and its answer never arrived, the outcome is unknown. Run then runs the work
// again on another connection. The new claim blocks on the old transaction if that is still
// running, and then either finds the events (committed) or inserts them (W11). It also runs the
// work again after a serialization failure, and if the stream has to be made.
func (n *Intake) Run(ctx context.Context, work func(context.Context, *guard.Tx) (commit bool, err error)) (end End) {
	end.Err = attempts().Run(ctx, func() (again bool, err error) {
		var unknown bool
		unknown, end.Lost, err = n.attempt(ctx, work)
		end.Unknown = end.Unknown || unknown
		switch {
		case err == nil:
			return false, nil
		case unknown, end.Lost, guard.RunAgain(guard.SQLState(err)):
			return true, err
		case guard.SQLState(err) == streamMissing:
			_, missing := eventsource.MakeStream(ctx, n.Pool, n.Topic, n.Partitions)
			return missing == nil, errors.Join(err, missing)
		}
		return false, err
	})
	return end
}

// attempt runs one transaction: the claim, the work, the seal and COMMIT (W8).
func (n *Intake) attempt(
	ctx context.Context,
	work func(context.Context, *guard.Tx) (bool, error),
) (unknown, lost bool, err error) {
	conn, err := n.Pool.Acquire(ctx)
	if err != nil {
		return false, false, err
	}
	abandoned := false
	defer func() {
		if !abandoned {
			conn.Release()
		}
	}()
	tx := guard.Begin(conn.Conn())
	tx.Report = n.OnLate
	commit, err := work(ctx, tx)
	if errors.Is(err, ErrAbandoned) {
		abandoned = true
		conn.Hijack() // frees the connection's place in the pool; the handler still has the connection, which is cut
		tx.Abandon()
		return false, false, err
	}
	sent := false
	if err == nil && commit {
		tx.Engine(stepFlush, flushSQL)
		sent = true
		err = tx.Commit(n.Bound(ctx))
	}
	if err != nil {
		lost = tx.Lost()
		unknown = sent && lost
	}
	tx.Rollback(time.Second)
	return unknown, lost, err
}

// Bound returns how long COMMIT, or the wait for a copy, may take.
func (n *Intake) Bound(ctx context.Context) time.Duration {
	at, _ := ctx.Deadline()
	return max(time.Until(at), n.CommitTimeout)
}

// ReadCommitted begins a transaction that has only our own statements.
func ReadCommitted(tx *guard.Tx) { tx.Engine(stepIsolation, isolationSQL) }

// append appends an event to the stream, at the end of the transaction.
func (n *Intake) append(ctx context.Context, tx *guard.Tx, e *Event) error {
	n.sealStored(tx, e)
	return eventsource.Append(ctx, tx, eventsource.Event{
		Topic:   n.Topic,
		Tenant:  e.Tenant,
		ID:      e.ID,
		Key:     e.Key,
		Headers: e.storedHeaders,
		Body:    e.stored,
	})
}

// Park parks the whole event.
func (n *Intake) Park(tx *guard.Tx, e *Event, reason string, why error) {
	tx.Engine(stepPark, parkSQL, n.ParkedColumns(tx, e, reason, why)...)
}

// ParkedColumns returns the arguments of a statement that parks the event: reason, error, tenant,
// scope, key, topic, ordering key, names and values of headers, body, event id.
func (n *Intake) ParkedColumns(tx *guard.Tx, e *Event, reason string, why error) []any {
	n.sealStored(tx, e)
	names := make([][]byte, len(e.storedHeaders))
	values := make([][]byte, len(e.storedHeaders))
	for i, h := range e.storedHeaders {
		names[i], values[i] = []byte(h.Name), h.Value
	}
	return []any{
		reason,
		codec.Text(why.Error()),
		e.Tenant,
		n.Scope,
		e.Hash,
		n.Topic,
		e.Key,
		names,
		values,
		e.stored,
		e.ID,
	}
}

// sealStored makes what is stored of the event, once: sealed, if there is a Sealer (W22). A
// sender's own header of the mark's name is dropped: it would make an open body look sealed. If
// sealing fails, nothing is kept, and the transaction fails.
func (n *Intake) sealStored(tx *guard.Tx, e *Event) {
	if e.storedHeaders != nil {
		return
	}
	headers := make([]consumer.Header, 0, len(e.Headers)+1)
	for _, h := range e.Headers {
		if h.Name != parked.HeaderSealed {
			headers = append(headers, h)
		}
	}
	body := e.Body
	if n.Sealer != nil {
		sealed, err := n.Sealer.Seal(parked.EventPlace(e.Tenant, n.Topic, e.ID), body)
		if err != nil {
			tx.Fail(stepSeal, err)
			return
		}
		body = sealed
		headers = append(headers, consumer.Header{
			Name:  parked.HeaderSealed,
			Value: []byte("true"),
		})
	}
	e.stored = body
	e.storedHeaders = headers
}
