package outbox

import (
	"testing"
	"time"
)

// Permits of a relay that was stopped lapse, so that it starts no calls that others have made up
// for.
func TestO14PermitsLapse(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8)
	now := time.Now()
	r.read([]storedRate{{Tenant: "acme", Limited: true}}, now)
	r.granted([]string{"acme"}, []permitGrant{{Tenant: "acme", Granted: 5}}, now.Add(-permitLife))
	if n := r.take("acme", 3); n != 0 {
		t.Errorf("%d calls by permits that have lapsed", n)
	}
	r.granted([]string{"acme"}, []permitGrant{{Tenant: "acme", Granted: 2}}, now.Add(time.Hour))
	if n := r.take("acme", 3); n != 2 {
		t.Errorf("%d calls by two permits", n)
	}
}

// A tenant's new calls queue behind those that wait.
func TestO14NewCallsDoNotOvertake(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8)
	now := time.Now()
	r.read([]storedRate{{Tenant: "acme", Limited: true}}, now)
	r.granted([]string{"acme"}, []permitGrant{{Tenant: "acme", Granted: 5}}, now.Add(time.Hour))
	if r.mustWait("acme") {
		t.Error("it waits behind nobody")
	}
	r.setWaiting(map[string]bool{"acme": true})
	if !r.mustWait("acme") {
		t.Error("it overtakes others")
	}
	if r.mustWait("other") || r.mustWait("") {
		t.Error("calls without a rate wait")
	}
}

// What a remote asks for holds at once, and outlasts a poll that does not know of it yet. The
// database's word counts once it is written.
func TestO14HoldBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8)
	r.hold("", 24*time.Hour)
	if !r.held("") || time.Until(r.limits[""].heldUntil) > maxRetryAfter {
		t.Error("it does not hold, or for too long")
	}
	r.read(nil, time.Now())
	if !r.held("") {
		t.Error("a poll ended it")
	}
	clear(r.holds) // written
	r.read(nil, time.Now())
	if r.held("") {
		t.Error("it holds, although the database knows of none")
	}
}
