package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// lookSQL finds a record that has not expired. In: id. Out: at most one row. By the primary key; takes no lock.
const lookSQL = `
select r.state, r.fingerprint, r.token, r.response, r.sealed, r.erased_at is not null as erased, r.expires_at, coalesce(r.lease_id, 0) as lease
  from onlyonce.http_records r
 where r.id = $1 and (r.expires_at is null or r.expires_at > clock_timestamp())`

// leaseSQL finds the lease of a record that is running. In: lease. Out: at most one row: epoch, nonce, whether it is free, seconds until it ends.
const leaseSQL = `
select l.epoch, l.nonce, l.until is null or l.until <= clock_timestamp() or l.until > clock_timestamp() + interval '1 hour', coalesce(extract(epoch from l.until - clock_timestamp()), 0)::float8
  from onlyonce.leases l where l.id = $1`

// beginSQL claims a key in transactional mode, openSQL opens a transaction without one. See the functions' comments in the migration.
const (
	beginSQL    = `select onlyonce.http_begin($1, $2, $3, $4)`
	openSQL     = `select onlyonce.http_open($1, $2, $3)`
	completeSQL = `select onlyonce.http_complete($1, $2, $3, $4, $5, $6, $7, $8)`
)

// claimSQL claims a key in lease mode. Out: one row of lease and epoch, or none where a record stands. stealSQL takes a lease over that has ended,
// null where somebody was faster.
const (
	claimSQL     = `select lease, epoch from onlyonce.http_claim($1, $2, $3, $4, $5, $6, $7)`
	stealSQL     = `select onlyonce.raise_epoch($1, $2, $3, $4)`
	finishSQL    = `select onlyonce.http_finish($1, $2, $3, $4, $5, $6)`
	releaseSQL   = `select onlyonce.http_release($1, $2, $3, $4)`
	reconcileSQL = `select onlyonce.http_reconcile($1, $2, $3, $4)`
	stepSQL      = `select done, result, sealed, late from onlyonce.http_step($1, $2, $3, $4, $5, $6, $7)`
	stepDoneSQL  = `select onlyonce.http_step_done($1, $2, $3, $4, $5, $6, $7)`
)

// Isolation levels as statements: nothing of a statement is ever put together.
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

// record is a row of onlyonce.http_records, and the lease that goes with it.
type record struct {
	state       string
	fingerprint []byte
	token       uuid.UUID
	response    []byte
	sealed      bool
	erased      bool
	expires     *time.Time

	lease, epoch int64
	nonce        *uuid.UUID
	free         bool          // nobody holds the lease
	leaseLeft    time.Duration // until the lease ends

	history history // where it was read, if a cache wants to know
}

// recordRow is what the queries return; everything is null where there is no record.
type recordRow struct {
	state  *string
	token  *uuid.UUID
	lease  *int64
	sealed *bool
	erased *bool
	r      record
}

func (w *recordRow) targets() []any {
	return []any{&w.state, &w.r.fingerprint, &w.token, &w.r.response, &w.sealed, &w.erased, &w.r.expires, &w.lease}
}

func (w *recordRow) record() *record {
	if w.state == nil {
		return nil
	}
	w.r.state, w.r.token, w.r.sealed, w.r.erased = *w.state, *w.token, *w.sealed, *w.erased
	w.r.lease = *w.lease
	return &w.r
}

// look returns the record of an id, nil where there is none.
func (l *Layer) look(ctx context.Context, id [16]byte) (*record, error) {
	if l.cache != nil {
		return l.lookFrom(ctx, id)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	var row recordRow
	err := l.pool.QueryRow(ctx, lookSQL, uuid.UUID(id)).Scan(row.targets()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up a record: %w", err)
	}
	return l.withLease(ctx, row.record())
}

// withLease adds what is known of the lease of a record that is running. A lease that is gone was that of a record which has been completed or
// deleted since it was read: such a record is not free, so that nobody takes it over, and the answer is 409, with the shortest Retry-After.
func (l *Layer) withLease(ctx context.Context, r *record) (*record, error) {
	if r == nil || r.state != stateRunning {
		return r, nil
	}
	var left float64
	err := l.pool.QueryRow(ctx, leaseSQL, r.lease).Scan(&r.epoch, &r.nonce, &r.free, &left)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("idempotency: looking up a lease: %w", err)
	}
	r.leaseLeft = seconds(left)
	return r, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Codes that the layer acts on.
const (
	uniqueViolation = "23505"
	fenceLost       = "OO001"
	recordStands    = "OO010"
)

// toRerun reports whether the database asks for the whole transaction to be run again.
func toRerun(err error) bool { return guard.RunAgain(guard.SQLState(err)) }

// stands reports whether a record was written under the key by somebody else.
func stands(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == recordStands || pg.Code == uniqueViolation && pg.SchemaName == "onlyonce" && pg.TableName == "http_records")
}
