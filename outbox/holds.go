package outbox

import (
	"cmp"

	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// maxRetryAfter bounds how long a remote may make a call wait.
const maxRetryAfter = gate.MaxHold

// holdCalls holds the calls that a result selects, see [RetryAuto], and logs the first time that it
// is so.
func (s *relaySink) holdCalls(tenant string, r Result) {
	d := cmp.Or(r.RetryAfter, r.HoldFor)
	why := storedText(r.HoldReason)
	k := gate.Key{Tenant: tenant}
	if r.RetryScope == RetrySink {
		k = gate.All
	}
	if !s.gate.Hold(k, d, r.RetryScope != RetryTenant, why) {
		return
	}
	s.cfg.Logger.Warn("onlyonce: calls of a sink are held for a time; then one is tried",
		"sink", s.name, "tenant", tenant, "for", min(d, maxRetryAfter),
		"why", cmp.Or(why, "the remote asks for it (Retry-After)"))
}
