package idempotency

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/lease"
)

// heldLease is the lease of a request that this process works on.
type heldLease struct {
	lease  *lease.Lease
	sent   time.Time // when its latest renewal was sent; used by the keeper only
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	lost error
}

// errLeaseLost ends the context of a handler whose lease could not be renewed in time.
var errLeaseLost = errors.New("idempotency: the request's lease has ended: another process may have taken it over")

func (h *heldLease) lossError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *heldLease) markLost() {
	h.mu.Lock()
	h.lost = errLeaseLost
	h.mu.Unlock()
	h.cancel(errLeaseLost)
}

// leaseKeeper renews all leases of a process in one statement, while there are any.
type leaseKeeper struct {
	layer *Layer

	mu   sync.Mutex
	held map[*heldLease]struct{}
	none chan struct{} // closed when the last lease is dropped
}

func (k *leaseKeeper) hold(l *lease.Lease, cancel context.CancelCauseFunc) *heldLease {
	h := &heldLease{lease: l, sent: l.Sent, cancel: cancel}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) == 0 {
		k.held, k.none = make(map[*heldLease]struct{}), make(chan struct{})
		go k.renewLoop(k.none)
	}
	k.held[h] = struct{}{}
	return h
}

func (k *leaseKeeper) release(h *heldLease) {
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
func (k *leaseKeeper) renewLoop(none <-chan struct{}) {
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
		due := make([]*heldLease, 0, len(k.held))
		for h := range k.held {
			if time.Since(h.sent) >= ttl/3 && h.lossError() == nil {
				due = append(due, h)
			}
		}
		k.mu.Unlock()
		k.renew(due, ttl)
	}
}

func (k *leaseKeeper) renew(due []*heldLease, ttl time.Duration) {
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
		k.layer.reportError(err)
	}
	for i, h := range due {
		h.sent = leases[i].Sent
		if slices.Contains(lost, leases[i]) || time.Since(h.sent) >= ttl-ttl/6 {
			h.markLost()
		}
	}
}
