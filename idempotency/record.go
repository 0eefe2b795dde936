package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// findRecordAndHistorySQL is findRecordSQL for a layer with a cache: it also returns the server's
// history (system identifier and timeline) and clock. In: id. Out: one row; the record's columns
// are null if there is none.
//
// The timeline comes from the WAL position, because the one of pg_control_checkpoint() lags after a
// promotion. On a standby pg_current_wal_insert_lsn raises 55000: nothing is committed there.
const findRecordAndHistorySQL = `
select c.system_identifier,
       ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint,
       clock_timestamp(),
       r.*
  from pg_control_system() c left join (` + findRecordSQL + `) r on true`

// findRecordAndHistory is findRecord for a layer with a cache.
func (l *Layer) findRecordAndHistory(ctx context.Context, id [16]byte) (*storedRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	asked := time.Now()
	var o databaseHistory
	var clock time.Time
	row := recordRow{}
	err := l.pool.QueryRow(ctx, findRecordAndHistorySQL, codec.UUID(id)).Scan(
		append([]any{&o.System, &o.Timeline, &clock}, row.targets()...)...,
	)
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up a record: %w", err)
	}
	l.cache.observe(o, clock, asked)
	r := row.record()
	if r != nil {
		r.readFrom = o
	}
	return l.addLease(ctx, r)
}

// findRecordSQL finds a record that has not expired. In: id. Out: at most one row. Uses the primary
// key; takes no lock (T11, H19).
const findRecordSQL = `
select r.state,
       r.fingerprint,
       r.token,
       r.response,
       r.sealed,
       r.erased_at is not null as erased,
       coalesce(r.refusal, 0) as refusal,
       r.expires_at,
       coalesce(r.lease_id, 0) as lease
  from onlyonce.http_records r
 where r.id = $1 and not onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)`

// findLeaseSQL finds the lease of a running record. In: lease. Out: at most one row: epoch, nonce,
// whether it has ended, seconds until it ends.
const findLeaseSQL = `
select l.epoch,
       l.nonce,
       l.until is null
       or l.until <= clock_timestamp()
       or l.until > clock_timestamp() + interval '1 hour',
       coalesce(extract(epoch from l.until - clock_timestamp()), 0)::float8
  from onlyonce.leases l where l.id = $1`

// beginSQL claims a key in transactional mode, openSQL opens a transaction without one. The last
// parameter of both, and of claimSQL and takeOverSQL, is the tenant if it must live in this
// database (N2). The migration documents the functions.
const (
	beginSQL = `
select onlyonce.http_begin(
  id => $1,
  lock_timeout => $2,
  statement_timeout => $3,
  idle_timeout => $4,
  place => $5
)`
	openSQL     = `select onlyonce.http_open($1, $2, $3, $4)`
	completeSQL = `
select onlyonce.http_complete(
  id => $1,
  tenant => $2,
  scope => $3,
  fingerprint => $4,
  token => $5,
  response => $6,
  sealed => $7,
  keep => $8,
  look => $9,
  operation => $10,
  calls => $11,
  call_sinks => $12,
  call_lanes => $13,
  refusal => $14
)`
)

// claimSQL claims a key in lease mode. Out: one row of lease and epoch, or no row if there is a
// record. takeOverSQL takes over a lease that has ended; it returns null if another process was
// faster.
const (
	claimSQL = `
select lease, epoch from onlyonce.http_claim(
  id => $1,
  tenant => $2,
  scope => $3,
  fingerprint => $4,
  token => $5,
  keep => $6,
  ttl => $7,
  place => $8
)`
	takeOverSQL = `
select onlyonce.raise_epoch(
  lease => $1,
  seen_epoch => $2,
  new_nonce => $3,
  ttl => $4,
  place => $5
)`
	holdSQL   = `select onlyonce.hold($1, $2, $3)`
	finishSQL = `
select onlyonce.http_finish(
  id => $1,
  lease => $2,
  epoch => $3,
  nonce => $4,
  response => $5,
  sealed => $6,
  look => $7,
  calls => $8,
  call_sinks => $9,
  call_lanes => $10,
  refusal => $11
)`
	releaseSQL   = `select onlyonce.http_release($1, $2, $3, $4)`
	reconcileSQL = `select onlyonce.http_reconcile($1, $2, $3, $4)`
	stepSQL      = `
select done, result, sealed, late from onlyonce.http_step(
  lease => $1,
  epoch => $2,
  nonce => $3,
  record_id => $4,
  name => $5,
  within => $6,
  seals => $7
)`
	stepDoneSQL = `
select onlyonce.http_step_done(
  lease => $1,
  epoch => $2,
  nonce => $3,
  record_id => $4,
  name => $5,
  result => $6,
  sealed => $7
)`
)

// isolationSQL holds the statement for each level, so that no statement is assembled from strings.
var isolationSQL = map[pgx.TxIsoLevel]string{
	pgx.ReadCommitted:  "set transaction isolation level read committed",
	pgx.RepeatableRead: "set transaction isolation level repeatable read",
	pgx.Serializable:   "set transaction isolation level serializable",
}

// States of a record.
const (
	stateRunning   = "running"
	stateCompleted = "completed"
	stateReconcile = "reconcile"
)

// storedRecord is a row of onlyonce.http_records, and the lease that goes with it.
type storedRecord struct {
	state       string
	fingerprint []byte
	token       uuid.UUID
	response    []byte
	sealed      bool
	erased      bool
	refusal     int // its status, if it is one
	expires     *time.Time

	lease, epoch int64
	nonce        *uuid.UUID
	leaseEnded   bool          // its lease has ended
	leaseLeft    time.Duration // until the lease ends

	readFrom databaseHistory // where it was read; only set if there is a cache
}

// recordRow is the target of findRecordAndHistorySQL. All columns are null if there is no record.
type recordRow struct {
	state   *string
	token   pgtype.UUID
	lease   *int64
	sealed  *bool
	erased  *bool
	refusal *int
	values  storedRecord
}

func (w *recordRow) targets() []any {
	return []any{
		&w.state, &w.values.fingerprint, &w.token, &w.values.response, &w.sealed, &w.erased,
		&w.refusal, &w.values.expires, &w.lease,
	}
}

func (w *recordRow) record() *storedRecord {
	if w.state == nil {
		return nil
	}
	w.values.state = *w.state
	w.values.token = uuid.UUID(w.token.Bytes)
	w.values.sealed = *w.sealed
	w.values.erased = *w.erased
	w.values.refusal = *w.refusal
	w.values.lease = *w.lease
	return &w.values
}

// findRecord returns the record of an id, or nil if there is none.
func (l *Layer) findRecord(ctx context.Context, id [16]byte) (*storedRecord, error) {
	if l.cache != nil {
		return l.findRecordAndHistory(ctx, id)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	// Not by recordRow: a column that may be null is scanned at twice the cost.
	r := &storedRecord{}
	var token pgtype.UUID
	err := l.pool.QueryRow(ctx, findRecordSQL, codec.UUID(id)).Scan(
		&r.state, &r.fingerprint, &token, &r.response, &r.sealed, &r.erased, &r.refusal,
		&r.expires, &r.lease,
	)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up a record: %w", err)
	}
	r.token = token.Bytes
	return l.addLease(ctx, r)
}

// addLease adds the lease of a running record. If the lease is gone, the record has been completed
// or deleted since it was read. Such a record is not free, so that this process does not take it
// over; the client gets 409 with the shortest Retry-After.
func (l *Layer) addLease(ctx context.Context, r *storedRecord) (*storedRecord, error) {
	if r == nil || r.state != stateRunning {
		return r, nil
	}
	var left float64
	err := l.pool.QueryRow(ctx, findLeaseSQL, r.lease).Scan(&r.epoch, &r.nonce, &r.leaseEnded, &left)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("idempotency: looking up a lease: %w", err)
	}
	r.leaseLeft = seconds(left)
	return r, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// SQLSTATEs that the layer acts on.
const (
	uniqueViolation = "23505"
	fenceLost       = "OO001"
	stepUnknown     = "OO010" // a step has no result
)

// mustRerun reports whether the whole transaction must run again, after a serialization failure or
// a deadlock.
func mustRerun(err error) bool { return guard.RunAgain(guard.SQLState(err)) }

// isRecordExists reports whether another process has written a record under the key.
func isRecordExists(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) &&
		pg.Code == uniqueViolation &&
		pg.SchemaName == "onlyonce" &&
		pg.TableName == "http_records"
}

// retryBackoff returns the waits between two looks at work that is still under way.
func retryBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0),
	)
}
