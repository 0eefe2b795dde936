package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// leased runs the handler under a lease (H18). expired is a record whose owner's lease has run out,
// or nil.
func (x *exchange) leased(expired *record) reply {
	for range lookLimit {
		l, err := x.take(expired)
		if err != nil {
			return refusal(codeStoreUnavailable, err)
		}
		if l != nil {
			return x.work(l)
		}
		var rep reply // another request was faster
		var known bool
		if expired, rep, known = x.recall(); known {
			return rep
		}
	}
	return inProgress(time.Second)
}

// take claims a free key, or takes it over from an owner whose lease has ended. It returns nil if
// another request was faster.
func (x *exchange) take(rec *record) (*lease.Lease, error) {
	// Not cancelled with the client: a claim that is cut off may have succeeded, and the key would
	// then be locked until the lease ends.
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	l := &lease.Lease{Nonce: x.token.String(), Sent: time.Now()}
	if rec == nil {
		err := x.layer.pool.QueryRow(ctx, claimSQL, uuid.UUID(x.id), x.scope.Tenant, x.subject.Scope, x.fingerprint, x.token, x.ttl, x.layer.cfg.LeaseTTL).Scan(&l.ID, &l.Epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("idempotency: claiming a key: %w", err)
		}
	} else {
		var epoch *int64
		if err := x.layer.pool.QueryRow(ctx, stealSQL, rec.lease, rec.epoch, x.token, x.layer.cfg.LeaseTTL).Scan(&epoch); err != nil {
			return nil, fmt.Errorf("idempotency: taking over a key: %w", err)
		}
		if epoch == nil {
			return nil, nil
		}
		l.ID, l.Epoch = rec.lease, *epoch
	}
	return l, fault.Point(fault.RequestLeased)
}

// work runs the handler under a lease, again if the database asks for it.
func (x *exchange) work(l *lease.Lease) reply {
	limit := x.endpoint.route.MaxResponse
	if x.endpoint.route.TombstoneLarge || x.endpoint.route.NoStoreBody {
		limit = maxStored
	}
	for reruns := 0; ; reruns++ {
		x.aside, x.renewed = false, nil
		out := x.runLeased(l, x.record(limit))
		if x.renewed != nil {
			l = x.renewed
		}
		if !out.rerun {
			return out.reply
		}
		if reruns == rerunLimit || x.held.alive() != nil {
			x.release(l)
			return out.reply
		}
	}
}

// runLeased runs the handler once. Its lease and connection are given back however it ends, also by
// a panic or runtime.Goexit.
func (x *exchange) runLeased(l *lease.Lease, rec *recorder) outcome {
	ctx, cancel := context.WithCancelCause(x.ctx)
	defer cancel(nil)
	x.held = x.layer.keeper.hold(l, cancel)
	defer x.layer.keeper.drop(x.held)
	defer x.endTx()
	returned := false
	defer func() {
		switch {
		case returned:
		case x.aside:
			x.reconcile(l)
		default:
			x.endTx()
			x.release(l)
		}
	}()
	if p := x.call(ctx, rec); p != nil {
		panic(p)
	}
	returned = true
	return x.finish(l, rec)
}

// finish stores the handler's answer, or releases the key.
func (x *exchange) finish(l *lease.Lease, rec *recorder) outcome {
	if err := fault.Point(fault.RequestHandled); err != nil {
		return ended(refusal(codeStoreUnavailable, err))
	}
	if x.held.alive() != nil {
		return ended(inProgress(time.Second)) // the new owner goes on
	}
	if x.aside {
		return ended(x.reconcile(l))
	}
	v := x.verdict(rec)
	if v.keep == keepNothing {
		x.endTx()
		if !v.outcome.rerun {
			x.release(l)
		}
		return v.outcome
	}
	stored, sealed, err := x.envelope(rec)
	if err != nil {
		x.endTx()
		x.release(l)
		return ended(refusal(codeRolledBack, err))
	}
	if v.keep == keepAnswer && x.tx != nil {
		if err := x.tx.Revert(x.ctx); err != nil {
			out := x.failed(err)
			x.endTx()
			if !out.rerun {
				x.release(l)
			}
			return out
		}
	}
	return x.settle(l, answer(Created, rec), stored, sealed)
}

// settle writes the record, in the handler's transaction if it has one. If the answer to COMMIT is
// lost, it writes the record again: the first statement that succeeds ends the lease, and the other
// one fails because of that.
func (x *exchange) settle(l *lease.Lease, rep reply, stored []byte, sealed bool) outcome {
	retry := pauses()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	written := x.tx != nil // the handler's writes are only in the first transaction
	// From here on this transaction locks the lease. If COMMIT hangs, a renewal would wait for it,
	// and all other renewals with it.
	x.layer.keeper.drop(x.held)
	for {
		err := x.settleOnce(l, stored, sealed)
		switch {
		case err == nil:
			return ended(x.withExpiry(rep))
		case toRerun(err):
			if written {
				return outcome{reply: conflicting(err), rerun: true}
			}
		case guard.SQLState(err) == fenceLost:
			return ended(x.afterFence(rep))
		case !x.unanswered(err) && written:
			x.endTx()
			x.release(l)
			return ended(refusal(codeRolledBack, err))
		}
		lost := x.tx != nil && x.tx.Lost()
		x.endTx()
		if written && (lost || errors.Is(err, fault.ErrInjected)) {
			return x.resolveLeased(l, rep, err)
		}
		if time.Now().After(deadline) {
			return ended(refusal(codeCommitUnknown, err))
		}
		time.Sleep(retry.NextBackOff())
	}
}

// unanswered reports whether an error leaves the outcome of a COMMIT open, or means that the server
// could not be reached.
func (x *exchange) unanswered(err error) bool {
	return x.tx == nil || x.tx.Lost() || errors.Is(err, fault.ErrInjected)
}

func (x *exchange) settleOnce(l *lease.Lease, stored []byte, sealed bool) error {
	if x.tx == nil {
		if err := x.acquire(x.ctx, ""); err != nil {
			return err
		}
		x.tx.Engine(stepOpen, openSQL, x.bounds()...)
	}
	x.tx.EngineInto([]any{&x.expires}, stepRecord, finishSQL, uuid.UUID(x.id), l.ID, l.Epoch, l.Nonce, stored, sealed)
	if err := fault.Point(fault.RequestSealing); err != nil {
		return err
	}
	if err := x.tx.Commit(x.layer.cfg.CommitTimeout); err != nil {
		return err
	}
	return fault.Point(fault.RequestCommitted)
}

// resolveLeased finds out whether the COMMIT of a handler's writes succeeded. Raising the lease's
// epoch decides it: that waits for the old transaction, which locks the lease last. If the old
// transaction committed, the lease is gone.
func (x *exchange) resolveLeased(l *lease.Lease, rep reply, cause error) outcome {
	retry := pauses()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	for time.Now().Before(deadline) {
		rec, err := x.layer.look(x.ctx, x.id)
		switch {
		case err != nil:
		case rec != nil && rec.state == stateCompleted && rec.token == x.token:
			rep.expires = rec.expires
			return ended(rep)
		case rec == nil || rec.state != stateRunning || rec.nonce == nil || *rec.nonce != x.token:
			return ended(inProgress(time.Second))
		default:
			sent := time.Now()
			if epoch, err := x.refresh(l); err == nil && epoch != 0 { // the old transaction has not locked the lease, and cannot do so any more
				x.renewed = &lease.Lease{ID: l.ID, Epoch: epoch, Nonce: l.Nonce, Sent: sent}
				return outcome{reply: refusal(codeRolledBack, cause), rerun: true}
			}
		}
		time.Sleep(retry.NextBackOff())
	}
	return ended(refusal(codeCommitUnknown, cause))
}

// refreshSQL raises the epoch of an owner's own lease, so that no statement that the owner has sent
// before can succeed any more. In: lease, epoch, nonce, ttl. Out: the new epoch, or no row. Waits
// for a transaction that holds the lease.
const refreshSQL = `
update onlyonce.leases set epoch = epoch + 1, until = clock_timestamp() + $4 where id = $1 and epoch = $2 and nonce = $3 returning epoch`

func (x *exchange) refresh(l *lease.Lease) (epoch int64, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	err = x.layer.pool.QueryRow(ctx, refreshSQL, l.ID, l.Epoch, l.Nonce, x.layer.cfg.LeaseTTL).Scan(&epoch)
	return epoch, err
}

// afterFence answers if the fence did not hold: either an earlier COMMIT of this request succeeded
// after all, or another process has taken the request over.
func (x *exchange) afterFence(rep reply) reply {
	x.endTx()
	rec, err := x.layer.look(x.ctx, x.id)
	if err == nil && rec != nil && rec.state == stateCompleted && rec.token == x.token {
		rep.expires = rec.expires
		return rep
	}
	return inProgress(time.Second)
}

// release gives the key back, so that the next request runs at once. If it fails, the lease ends by
// itself.
func (x *exchange) release(l *lease.Lease) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	if _, err := x.layer.pool.Exec(ctx, releaseSQL, uuid.UUID(x.id), l.ID, l.Epoch, l.Nonce); err != nil && guard.SQLState(err) != fenceLost {
		x.layer.failed(fmt.Errorf("idempotency: giving a key back: %w", err))
	}
}

// reconcile sets the request aside for an operator.
func (x *exchange) reconcile(l *lease.Lease) reply {
	x.endTx()
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	_, err := x.layer.pool.Exec(ctx, reconcileSQL, uuid.UUID(x.id), l.ID, l.Epoch, l.Nonce)
	return refusal(codeCommitUnknown, err)
}

// held is the lease of a request that this process works on.
type held struct {
	lease  *lease.Lease
	sent   time.Time // when its latest renewal was sent; used by the keeper only
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	lost error
}

// errTaken ends the context of a handler whose lease could not be renewed in time.
var errTaken = errors.New("idempotency: the request's lease has ended: another process may have taken it over")

func (h *held) alive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *held) lose() {
	h.mu.Lock()
	h.lost = errTaken
	h.mu.Unlock()
	h.cancel(errTaken)
}

// keeper renews all leases of a process in one statement, while there are any.
type keeper struct {
	layer *Layer

	mu   sync.Mutex
	held map[*held]struct{}
	none chan struct{} // closed when the last lease is dropped
}

func (k *keeper) hold(l *lease.Lease, cancel context.CancelCauseFunc) *held {
	h := &held{lease: l, sent: l.Sent, cancel: cancel}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) == 0 {
		k.held, k.none = make(map[*held]struct{}), make(chan struct{})
		go k.renewLoop(k.none)
	}
	k.held[h] = struct{}{}
	return h
}

func (k *keeper) drop(h *held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, there := k.held[h]; !there {
		return
	}
	if delete(k.held, h); len(k.held) == 0 {
		close(k.none)
	}
}

// renewLoop renews each lease after a third of its TTL. It cancels a handler whose lease may have
// ended, by this process's own clock, counted from when the renewal was sent.
func (k *keeper) renewLoop(none <-chan struct{}) {
	ttl := k.layer.cfg.LeaseTTL
	tick := time.NewTicker(ttl / 6)
	defer tick.Stop()
	for {
		select {
		case <-none:
			return
		case <-tick.C:
		}
		k.mu.Lock()
		due := make([]*held, 0, len(k.held))
		for h := range k.held {
			if time.Since(h.sent) >= ttl/3 && h.alive() == nil {
				due = append(due, h)
			}
		}
		k.mu.Unlock()
		k.renew(due, ttl)
	}
}

func (k *keeper) renew(due []*held, ttl time.Duration) {
	if len(due) == 0 {
		return
	}
	leases := make([]*lease.Lease, len(due))
	for i, h := range due { // copies, because the request may read its own
		leases[i] = &lease.Lease{ID: h.lease.ID, Epoch: h.lease.Epoch, Nonce: h.lease.Nonce, Sent: h.sent}
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl/6)
	lost, err := lease.RenewAll(ctx, k.layer.pool, leases, ttl)
	cancel()
	if err != nil {
		k.layer.failed(err)
	}
	for i, h := range due {
		h.sent = leases[i].Sent
		if slices.Contains(lost, leases[i]) || time.Since(h.sent) >= ttl-ttl/6 {
			h.lose()
		}
	}
}
