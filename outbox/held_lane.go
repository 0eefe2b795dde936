package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// Reasons why a relay loses a lane.
var (
	errReplaced = errors.New("another relay took the lease over")
	errExpired  = errors.New("the lease was not renewed in time")
)

// heldLane is a lane for as long as this relay holds its lease: until when calls may start, and the
// transactions that commit only while the lease is held.
type heldLane struct {
	sink   *relaySink
	number int16
	lease  *lease.Lease

	// ctx ends with the lease, and calls end with it. It does not end when Run's context does, so
	// that work under way is finished.
	ctx context.Context
	end context.CancelCauseFunc
	// deadline is when the relay stops by itself, by its monotonic clock; the timer ends ctx then.
	deadline atomic.Pointer[time.Time]
	timer    *time.Timer

	releasing        atomic.Bool   // the lane is to be given back
	releaseRequested chan struct{} // closed then
}

// holdLane begins to hold a lane whose lease was acquired. The caller ends that with stop, and
// gives the lease back with release unless another relay has it.
func holdLane(ctx context.Context, sink *relaySink, l *lease.Lease, number int16) *heldLane {
	h := &heldLane{sink: sink, number: number, lease: l, releaseRequested: make(chan struct{})}
	h.ctx, h.end = context.WithCancelCause(context.WithoutCancel(ctx))
	h.timer = time.AfterFunc(sink.cfg.LeaseTTL, func() { h.end(sink.pool.WhileAway(errExpired)) })
	h.extend(l.Sent)
	return h
}

// extend moves the deadline (O5). It counts from when the renewal was *sent*, which is before the
// database started to count the ttl by its own clock. A tenth of the ttl is kept for clocks that do
// not run alike.
func (h *heldLane) extend(sent time.Time) {
	deadline := sent.Add(h.sink.cfg.LeaseTTL - h.sink.cfg.LeaseTTL/10)
	h.deadline.Store(&deadline)
	h.timer.Reset(time.Until(deadline))
}

// expired reports whether the lease may have ended, by the relay's own clock.
func (h *heldLane) expired(now time.Time) bool {
	return !now.Before(*h.deadline.Load()) || h.ctx.Err() != nil
}

// requestRelease makes the owner give the lane back: no new call is started.
func (h *heldLane) requestRelease() {
	if !h.releasing.Swap(true) {
		close(h.releaseRequested)
	}
}

// mayStartCalls reports whether calls may be started.
func (h *heldLane) mayStartCalls() bool { return !h.releasing.Load() && h.sink.gate.Open() }

// stop ends ctx, and with it every call. It returns why the lease was lost, or nil if it is still
// held.
func (h *heldLane) stop() error {
	cause := context.Cause(h.ctx)
	h.timer.Stop()
	h.end(nil)
	return cause
}

// release gives the lease back. If that fails, the lease ends by itself.
func (h *heldLane) release() error {
	bounded, cancel := h.sink.detached(h.ctx)
	defer cancel()
	return h.lease.Release(bounded, h.sink.pool)
}

// emitLost emits that the lane was lost, or that it was released if there is no cause.
func (h *heldLane) emitLost(cause error) {
	h.sink.emit.lease(LeaseEvent{Lane: int(h.number), Epoch: h.lease.Epoch, Err: cause})
}

// fenceSQL is the first statement of every write of a lane's owner. In: lease, epoch, nonce;
// lock_timeout, statement_timeout and idle_in_transaction_session_timeout in milliseconds. Out: one
// row.
//
// It raises OO001 if another relay owns the lease, and keeps the lease from being taken over until
// the transaction ends, which the timeouts bound. It needs READ COMMITTED, so that later statements
// see what a previous owner has committed.
//
// synchronous_commit = off is not accepted from the session: a crash would lose a commit that is
// not flushed, although the call was made. The journal's flush also covers the rows that it is
// about, because they were written to the log before it. It pins the search_path, see
// primary.PinSQL (O3, S2).
const fenceSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog', true),
       set_config('lock_timeout', $4, true),
       set_config('statement_timeout', $5, true),
       set_config('idle_in_transaction_session_timeout', $6, true),
       set_config('enable_seqscan', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('synchronous_commit',
                  case current_setting('synchronous_commit')
                    when 'off' then 'local'
                    else current_setting('synchronous_commit')
                  end,
                  true),
       onlyonce.hold($1, $2, $3::uuid)`

// fenced runs statements in a transaction that commits only while the lease is ours, followed by
// reads in the same pipeline. It returns nil if and only if the transaction has committed. A check
// that fails raises an error, so the COMMIT and all later statements are skipped (T2). fenced
// checks COMMIT's own tag, and the pipeline's end (T3, O5).
func (h *heldLane) fenced(write, read func(b *pgx.Batch)) error {
	ctx, cancel := h.sink.detached(h.ctx)
	defer cancel()
	ms := guard.Millis(h.sink.dbTimeout)
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed`)
	b.Queue(fenceSQL, h.lease.ID, h.lease.Epoch, h.lease.Nonce, ms, ms, ms).Exec(ignoreTag)
	write(b)
	b.Queue(`commit`).Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return fmt.Errorf("COMMIT was answered with %q: %w", tag, pgx.ErrTxCommitRollback)
		}
		return nil
	})
	queueReads(b, read)
	conn, err := h.sink.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
			clean, cancel := h.sink.detached(h.ctx)
			defer cancel()
			_, _ = conn.Exec(clean, `rollback`) // otherwise the pool throws the connection away
		}
		if guard.SQLState(err) == codeFenceLost {
			return errReplaced
		}
		return err
	}
	return nil
}

// read runs statements that only read; see [readCommitted].
func (h *heldLane) read(queue func(b *pgx.Batch)) error {
	ctx, cancel := h.sink.detached(h.ctx)
	defer cancel()
	return readCommitted(ctx, h.sink.pool, queue)
}

// readCommitted runs statements without sequential scans, and with plans that are made once for
// each connection. The tables may be tiny when the plans are made, and large when they are used
// again. READ COMMITTED: each statement sees what has committed before it.
func readCommitted(ctx context.Context, pool *primary.Pool, queue func(b *pgx.Batch)) error {
	b := &pgx.Batch{}
	queueReads(b, queue)
	return pool.SendBatch(ctx, b).Close()
}

// queueReads queues such a transaction, if there is anything to read.
func queueReads(b *pgx.Batch, queue func(b *pgx.Batch)) {
	reads := &pgx.Batch{}
	queue(reads)
	if reads.Len() == 0 {
		return
	}
	b.Queue(`begin isolation level read committed read only`)
	b.Queue(`
select pg_catalog.set_config('search_path', 'pg_catalog', true),
       set_config('enable_seqscan', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('jit', 'off', true)`)
	b.QueuedQueries = append(b.QueuedQueries, reads.QueuedQueries...)
	b.Queue(`commit`)
}
