package outbox

import "context"

// decision is what RelayConfig.Reconcile has found out about a call.
type decision int

const (
	wasApplied decision = iota + 1
	wasNotApplied
	notKnown
)

// reconcile asks RelayConfig.Reconcile whether a call whose key the remote may have forgotten was
// applied.
func (c *laneCalls) reconcile(ctx context.Context, a *callAttempt) {
	a.decision = notKnown
	if !c.openBody(a) {
		return
	}
	applied, err := c.lane.sink.cfg.Reconcile(ctx, &a.Delivery)
	switch {
	case err != nil:
		a.result = Failure("RelayConfig.Reconcile: "+err.Error(), err)
	case applied:
		a.decision = wasApplied
	default:
		a.decision = wasNotApplied
	}
}
