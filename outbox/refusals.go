package outbox

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/brake"
)

// Brake holds the calls of a sink, or of a tenant, if nearly all of the last ones were refused
// alike: 90 % of the last 50, and at least 20, with one reason, for example "status 404". The calls
// wait then and are not parked. One is tried now and then, and when one is delivered, the others go
// on. A call that has a tenant counts for its tenant, and for the sink as one of that tenant's
// only. So one customer's broken endpoint holds up no other customer.
type Brake struct {
	// Off switches the brake off: each call that is refused is parked. Defaults to false.
	Off bool

	// ProbeInterval is how often a call is tried while the others wait: 1 ms to 1 hour. Defaults to
	// 30 s.
	ProbeInterval time.Duration
}

// The brake considers as many calls as the consumer's does (D7).
const (
	brakeWindow  = 50
	brakePercent = 90
	brakeLeast   = 20
	// mostBraked is how many tenants' refusals are remembered. More refuse their calls at once only
	// if the sink is at fault.
	mostBraked = 10_000
)

// refusals is the brake of one sink in this relay (O17). Calls may return at once.
type refusals struct {
	cfg  Brake
	sink string
	log  *slog.Logger

	mu      sync.Mutex
	of      map[string]*brake.Window // by tenant, of those with refusals; "": of the sink
	counted int                      // how many ends count for the sink so far
	last    map[string]int           // at which of them a tenant's refusal counted last
	why     error                    // why the calls of the sink wait; nil: they do not
	since   time.Time
}

func newRefusals(cfg Brake, sink string, log *slog.Logger) *refusals {
	return &refusals{cfg: cfg, sink: sink, log: log, of: map[string]*brake.Window{}, last: map[string]int{}}
}

// window returns the window of a tenant, or of the sink. The caller has the lock.
func (b *refusals) window(tenant string) *brake.Window {
	w := b.of[tenant]
	if w == nil {
		if len(b.of) >= mostBraked {
			maps.DeleteFunc(b.of, func(of string, w *brake.Window) bool { return of != "" && !w.Stopped() })
		}
		all := func(string) bool { return true }
		w = &brake.Window{
			Off:     b.cfg.Off,
			Size:    brakeWindow,
			Percent: brakePercent,
			Least:   brakeLeast,
			Counts:  all,
			Alike:   true,
		}
		b.of[tenant] = w
	}
	return w
}

// judge returns the result of a call, and for a refusal that is one of too many alike a
// postponement, which holds the others.
func (b *refusals) judge(tenant string, r Result) Result {
	if b.cfg.Off {
		return r
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch r.Outcome {
	case Delivered:
		b.delivered(tenant)
	case Rejected, Never:
		switch {
		case b.why != nil:
			return b.postponed(r, RetrySink, "the sink's")
		case tenant != "" && b.refused(tenant, r.Reason):
			return b.postponed(r, RetryTenant, "the tenant's")
		case b.countsForSink(tenant) && b.refused("", r.Reason):
			return b.postponed(r, RetrySink, "the sink's")
		}
	}
	return r
}

// delivered notes that a call was delivered, which lets the others go on. The caller has the lock,
// as in the methods below.
func (b *refusals) delivered(tenant string) {
	if w := b.of[tenant]; tenant != "" && w != nil && w.Record("") {
		b.log.Info("onlyonce: a call was delivered: the tenant's calls go on", "sink", b.sink, "tenant", tenant)
		delete(b.of, tenant)
	}
	b.counted++
	if b.window("").Record("") {
		b.why = nil
		b.log.Info("onlyonce: a call was delivered: the sink's calls go on", "sink", b.sink)
	}
}

// refused notes a refusal, and reports whether it is one of too many alike.
func (b *refusals) refused(of, reason string) bool {
	w := b.window(of)
	was := w.Stopped()
	if _, stops := w.StopsAt(nil, reason); !stops {
		w.Record(reason)
		return false
	}
	if was {
		return true
	}
	judged := len(w.Trip())
	why := fmt.Errorf(
		"nearly all of the last %d calls were refused alike (%s): they wait and are not "+
			"parked; one is tried every %v, and when it is delivered, the others go on",
		judged,
		reason,
		b.cfg.ProbeInterval,
	)
	if of == "" {
		b.why = why
		b.since = time.Now()
		b.log.Error("onlyonce: the calls of a sink are refused", "sink", b.sink, "error", why)
		return true
	}
	b.log.Warn("onlyonce: the calls of a tenant are refused", "sink", b.sink, "tenant", of, "error", why)
	return true
}

// countsForSink reports whether a refusal counts for the sink. Those of one tenant count once among
// as many as the brake considers: so the refusals of one customer do not hold up the others.
func (b *refusals) countsForSink(tenant string) bool {
	if tenant != "" {
		at, before := b.last[tenant]
		if before && b.counted-at < brakeWindow {
			return false
		}
		maps.DeleteFunc(b.last, func(_ string, at int) bool { return b.counted-at >= brakeWindow })
		b.last[tenant] = b.counted
	}
	b.counted++
	return true
}

func (b *refusals) postponed(r Result, holds RetryScope, whose string) Result {
	r.Outcome = Postponed
	r.RetryScope = holds
	r.HoldFor = b.cfg.ProbeInterval
	r.RetryAfter = 0
	r.HoldReason = "nearly all calls are refused alike: " + r.Reason
	r.Reason = fmt.Sprintf("%s; nearly all calls fail so: %s calls wait", r.Reason, whose)
	return r
}

// waiting returns why the calls of the sink wait, and since when; nil if they do not. It takes the
// lock itself.
func (b *refusals) waiting() (since time.Time, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.since, b.why
}
