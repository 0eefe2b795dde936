package outbox

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// A lane whose sink is held does not loop because parked calls are due: it looks again at each
// poll.
func TestLaneOfAHeldSinkWithDueCallsIsIdle(t *testing.T) {
	t.Parallel()
	g := gate.New(8, time.Hour)
	sink := &relaySink{cfg: RelayConfig{PollInterval: time.Hour, LeaseTTL: 2 * time.Hour}, gate: g}
	o := newLaneOwner(t.Context(), sink, &lease.Lease{Sent: time.Now()}, 0) // some parked calls are due
	o.pass.reader.state = passOver
	o.promotions.swept = true
	o.promotions.sweepAt = never
	if wait := time.Until(o.clocks.next(time.Now())); wait > 0 {
		t.Errorf("it waits for %v, although the sink takes calls", wait)
	}
	g.Hold(gate.All, time.Hour, true, "")
	if g.Open() {
		t.Error("calls may be started")
	}
	if wait := time.Until(o.clocks.next(time.Now())); wait < 30*time.Minute {
		t.Errorf("it waits for %v, with an hour between polls", wait)
	}
}

// Whose calls a rate is for is stored as onlyonce.rates.calls_of has it.
func TestO14WhoseCallsAreStored(t *testing.T) {
	t.Parallel()
	for _, k := range []gate.Key{gate.All, {Tenant: "acme"}, {Tenant: "key a:"}, {Prefix: "tenant :"}, {Each: true}, {Tenant: "s"}} {
		if got := parseCallsOf(storedCallsOf(k)); got != k {
			t.Errorf("%+v became %+v", k, got)
		}
	}
}
