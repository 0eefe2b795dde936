package outbox

import (
	"context"
	"fmt"
)

// Reconciliation is what became of a call whose outcome the relay does not know.
type Reconciliation int

// Reconciliations. The zero value is none of them and is treated as Unknown.
const (
	// Applied: the remote has applied the call.
	Applied Reconciliation = iota + 1
	// NotApplied: the remote has not applied the call, and no call is under way that it could still
	// apply. The relay sends the call again.
	NotApplied
	// Unknown: it is not known yet. The relay asks again later.
	Unknown
)

// String is the name in lower case.
func (r Reconciliation) String() string {
	switch r {
	case Applied:
		return "applied"
	case NotApplied:
		return "not applied"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("Reconciliation(%d)", int(r))
}

// reconcile asks RelayConfig.Reconcile whether a call whose key the remote may have forgotten was
// applied.
func (c *laneCalls) reconcile(ctx context.Context, a *callAttempt) {
	a.decision, a.result = Unknown, RetryLater("RelayConfig.Reconcile does not know", nil)
	if !c.openBody(a) {
		return
	}
	decision, err := c.lane.sink.cfg.Reconcile(ctx, &a.Delivery)
	switch {
	case err != nil:
		a.result = RetryLater("RelayConfig.Reconcile: "+err.Error(), err)
	case decision == Applied, decision == NotApplied:
		a.decision = decision
	}
}
