package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// leaseHolder holds a request's key by a lease, which outlives transactions, so that its handler
// may call remotes (H18).
type leaseHolder struct {
	lease *lease.Lease // nil until it is claimed
	held  *heldLease   // as the latest run holds it; nil after its epoch was raised: see fate
}

// claim claims a free key, or takes it over from an owner whose lease has ended. A further run goes
// on under the same lease.
func (h *leaseHolder) claim(run *handlerRun, found lookup) (out runOutcome, ours bool) {
	if h.lease != nil {
		if h.held != nil && h.held.lossError() != nil { // the new owner goes on
			return finalOutcome(inProgressReply(time.Second)), false
		}
		return out, true
	}
	// Not cancelled with the client: a claim that is cut off may have succeeded, and the key would
	// then be locked until the lease ends.
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	l := &lease.Lease{Nonce: run.token.String(), Sent: time.Now()}
	claim := run.claimLease
	if found.kind == lookupLeaseEnded {
		l.ID = found.record.lease
		l.Epoch = found.record.epoch
		claim = run.takeLeaseOver
	}
	switch err := claim(ctx, l); {
	case errors.Is(err, pgx.ErrNoRows): // another request was faster
		return runOutcome{reply: inProgressReply(time.Second), recorded: true}, false
	case err != nil:
		return finalOutcome(problemReply(codeStoreUnavailable, err)), false
	}
	h.lease = l
	return out, true
}

// claimLease claims a free key. It returns pgx.ErrNoRows if the key is not free.
func (req *servedRequest) claimLease(ctx context.Context, l *lease.Lease) error {
	err := req.layer.pool.QueryRow(ctx, claimSQL, codec.UUID(req.id), req.scope.Tenant, req.subject.Scope,
		req.fingerprint, codec.UUID(req.token), req.ttl, req.layer.cfg.LeaseTTL, req.home()).Scan(&l.ID, &l.Epoch)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		req.layer.forgetPlace(req.scope.Tenant, err)
		return fmt.Errorf("idempotency: claiming a key: %w", err)
	}
	return err
}

// takeLeaseOver takes a lease over that has ended. It returns pgx.ErrNoRows if another request was
// faster.
func (req *servedRequest) takeLeaseOver(ctx context.Context, l *lease.Lease) error {
	var epoch *int64
	err := req.layer.pool.QueryRow(ctx, takeOverSQL, l.ID, l.Epoch, codec.UUID(req.token), req.layer.cfg.LeaseTTL,
		req.home()).Scan(&epoch)
	if err != nil {
		return fmt.Errorf("idempotency: taking over a key: %w", err)
	}
	if epoch == nil {
		return pgx.ErrNoRows
	}
	l.Epoch = *epoch
	return nil
}

// work renews the lease while the handler runs. If it is lost, the handler's context ends.
func (h *leaseHolder) work(run *handlerRun) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(run.work)
	h.held = run.layer.leases.startRenewing(h.lease, cancel)
	run.held = h.held
	return ctx, func() {
		run.layer.leases.stopRenewing(h.held)
		cancel(nil)
	}
}

// holds reports whether the lease is still this process's. A request with a step that an operator
// has to decide is set aside.
func (h *leaseHolder) holds(run *handlerRun) (rep reply, ours bool) {
	if h.held.lossError() != nil { // the new owner goes on
		return inProgressReply(time.Second), false
	}
	if run.openStep() == stepAside {
		run.endTx()
		return problemReply(codeCommitUnknown, h.setAside(run)), false
	}
	return rep, true
}

// store writes the record, in the handler's transaction if it has one. From its first call on the
// transaction locks the lease. If COMMIT hung, a renewal would wait for it, and all other renewals
// with it; so the lease is not renewed any more.
func (h *leaseHolder) store(run *handlerRun, answer recordedAnswer) error {
	run.layer.leases.stopRenewing(h.held)
	if run.tx == nil {
		ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
		err := run.beginTx(ctx, "")
		cancel()
		if err != nil {
			return err
		}
		run.tx.Engine(stepOpen, openSQL, append(slices.Clip(run.layer.timeoutArgs), nil)...)
	}
	l := h.lease
	run.tx.SealBy([]any{&run.expires}, stepRecord, finishSQL, codec.UUID(run.id), l.ID, l.Epoch, l.Nonce,
		answer.bytes, answer.sealed, run.lookInterval(), run.callKeys, run.callSinks, run.callLanes, answer.refusal)
	return run.tx.Commit(run.layer.cfg.Timeouts.Commit)
}

// fate looks at the record first. While it still runs under this lease, raising the lease's epoch
// decides: that waits for the old transaction, which locks the lease last. If the old transaction
// committed, the lease is gone; if it has not locked the lease, it cannot do so any more.
func (h *leaseHolder) fate(run *handlerRun, _ time.Time) (fate, *time.Time) {
	rec, err := run.layer.findRecord(run.ctx, run.id)
	switch {
	case err != nil:
		return fateOpen, nil
	case rec != nil && rec.state == stateCompleted && rec.token == run.token:
		return fateStored, rec.expires
	}
	held := rec != nil && rec.state == stateRunning
	if !held || rec.nonce == nil || *rec.nonce != run.token {
		return fateTaken, nil
	}
	sent := time.Now()
	epoch, err := h.raiseEpoch(run)
	if err != nil {
		return fateOpen, nil
	}
	h.lease = &lease.Lease{ID: h.lease.ID, Epoch: epoch, Nonce: h.lease.Nonce, Sent: sent}
	h.held = nil // a renewal under the former epoch that is still under way finds it lost
	return fateUndone, nil
}

// raiseOwnEpochSQL raises the epoch of an owner's own lease, so that no statement that the owner
// has sent before can succeed any more. In: lease, epoch, nonce, ttl. Out: the new epoch, or no
// row. Waits for a transaction that holds the lease.
const raiseOwnEpochSQL = `
update onlyonce.leases
   set epoch = epoch + 1, until = clock_timestamp() + $4
 where id = $1 and epoch = $2 and nonce = $3
returning epoch`

func (h *leaseHolder) raiseEpoch(run *handlerRun) (epoch int64, err error) {
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	l := h.lease
	err = run.layer.pool.QueryRow(ctx, raiseOwnEpochSQL, l.ID, l.Epoch, l.Nonce, run.layer.cfg.LeaseTTL).Scan(&epoch)
	return epoch, err
}

// release gives the key back, or sets the request aside if a step has no outcome. If that fails,
// the lease ends by itself.
func (h *leaseHolder) release(run *handlerRun) {
	if h.lease == nil {
		return
	}
	if run.openStep() == stepAside {
		_ = h.setAside(run) // the next request finds the lease's end, and looks at the step again
		return
	}
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	l := h.lease
	_, err := run.layer.pool.Exec(ctx, releaseSQL, codec.UUID(run.id), l.ID, l.Epoch, l.Nonce)
	if err != nil && guard.SQLState(err) != fenceLost {
		run.layer.reportError(fmt.Errorf("idempotency: releasing a key: %w", err))
	}
}

// setAside sets the request aside for an operator.
func (h *leaseHolder) setAside(run *handlerRun) error {
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	l := h.lease
	_, err := run.layer.pool.Exec(ctx, reconcileSQL, codec.UUID(run.id), l.ID, l.Epoch, l.Nonce)
	return err
}
