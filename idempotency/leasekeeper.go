package idempotency

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// heldLease is the lease of a request that this process works on.
type heldLease struct {
	lease  *lease.Lease
	sent   time.Time // when its latest renewal was sent; used by the leaseKeeper only
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	lost error
}

// errLeaseLost ends the context of a handler whose lease could not be renewed in time.
var errLeaseLost = errors.New("idempotency: the request's lease has ended: another process may have taken it over")

// lossError returns errLeaseLost if the lease may have ended, or nil.
func (h *heldLease) lossError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

// markLost ends the handler's context.
func (h *heldLease) markLost() {
	h.mu.Lock()
	h.lost = errLeaseLost
	h.mu.Unlock()
	h.cancel(errLeaseLost)
}

// leaseKeeper renews all leases of a process in one statement. Its goroutine runs while there are
// leases. It has a connection of its own, from the first renewal on, so that handlers which hold
// all connections of the layer's pool do not cost others their leases (H18).
type leaseKeeper struct {
	layer *Layer

	mu   sync.Mutex
	held map[*heldLease]struct{}
	stop chan struct{} // closed when the last lease is removed
}

// startRenewing adds a lease. If it cannot be renewed in time, cancel ends the context of its
// request. The caller ends that with stopRenewing, at the latest when its transaction has ended.
func (k *leaseKeeper) startRenewing(l *lease.Lease, cancel context.CancelCauseFunc) *heldLease {
	h := &heldLease{lease: l, sent: l.Sent, cancel: cancel}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) == 0 {
		k.held = make(map[*heldLease]struct{})
		k.stop = make(chan struct{})
		go k.renewLoop(k.stop)
	}
	k.held[h] = struct{}{}
	return h
}

// stopRenewing removes a lease. It does not give the key back.
func (k *leaseKeeper) stopRenewing(h *heldLease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, there := k.held[h]; !there {
		return
	}
	if delete(k.held, h); len(k.held) == 0 {
		close(k.stop)
	}
}

// renewLoop renews each lease after a third of its TTL. It cancels a handler whose lease may have
// ended, by this process's own clock, counted from when the renewal was sent.
func (k *leaseKeeper) renewLoop(stop <-chan struct{}) {
	ttl := k.layer.cfg.LeaseTTL
	cfg := k.layer.pool.Raw().Config()
	cfg.MinConns = 0
	cfg.MinIdleConns = 0
	cfg.MaxConns = 1
	raw, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil { // only if the configuration is wrong, and the layer's pool has the same
		k.layer.reportError(err)
		return
	}
	defer raw.Close()
	pool := primary.Of(raw, k.layer.cfg.Logger)
	ticker := time.NewTicker(ttl / 6)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		k.mu.Lock()
		due := make([]*heldLease, 0, len(k.held))
		for h := range k.held {
			if time.Since(h.sent) >= ttl/3 && h.lossError() == nil {
				due = append(due, h)
			}
		}
		k.mu.Unlock()
		k.renew(pool, due, ttl)
	}
}

func (k *leaseKeeper) renew(pool *primary.Pool, due []*heldLease, ttl time.Duration) {
	if len(due) == 0 {
		return
	}
	leases := make([]*lease.Lease, len(due))
	for i, h := range due { // copies, because the request may read its own
		leases[i] = &lease.Lease{ID: h.lease.ID, Epoch: h.lease.Epoch, Nonce: h.lease.Nonce, Sent: h.sent}
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl/6)
	lost, err := lease.RenewAll(ctx, pool, leases, ttl)
	cancel()
	if err != nil {
		k.layer.reportError(err)
	}
	for i, h := range due {
		h.sent = leases[i].Sent
		if slices.Contains(lost, leases[i]) || time.Since(h.sent) >= ttl-ttl/6 {
			h.markLost()
		}
	}
}
