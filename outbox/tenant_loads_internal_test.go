package outbox

import (
	"testing"
	"time"
)

// callOf is a call of a tenant that is about to be made.
func callOf(tenant string) *callAttempt { return &callAttempt{Delivery: Delivery{Tenant: tenant}} }

// admitAll admits calls of a tenant until one may not start.
func admitAll(r *relayRates, tenant string) (all []*callAttempt, refused admission) {
	for {
		a := callOf(tenant)
		if refused = r.admit(a); refused != admitted {
			return all, refused
		}
		all = append(all, a)
		if len(all) > 2*r.capacity {
			return all, admitted
		}
	}
}

// A tenant has at most as many calls under way as slots are free, so each leaves some to others.
// What one gives back, another may take.
func TestO16TenantLeavesSlotsToOthers(t *testing.T) {
	t.Parallel()
	for capacity, want := range map[int][]int{1: {1, 0}, 2: {1, 1, 0}, 3: {2, 1, 0}, 8: {4, 2, 1, 1, 0}, 100: {50, 25, 13, 6, 3, 2, 1, 0}} {
		r := newRelayRates(capacity, time.Second)
		var first []*callAttempt
		for i, n := range want {
			all, _ := admitAll(r, string(rune('a'+i)))
			if len(all) != n {
				t.Errorf("of %d slots, tenant %d may have %d, want %d", capacity, i, len(all), n)
			}
			if i == 0 {
				first = all
			}
		}
		for _, a := range first {
			r.release(a)
			r.release(a) // again: it has nothing any more
		}
		all, _ := admitAll(r, "")
		if len(all) != want[0] {
			t.Errorf("of %d slots, calls without a tenant may have %d, want the %d that are free", capacity, len(all), want[0])
		}
		if n := newRelayRates(capacity, time.Second).take(acme, capacity); n != want[0] {
			t.Errorf("of %d slots, calls that are tried again may have %d, want %d", capacity, n, want[0])
		}
	}
}

// A tenant with a number of calls under way of its own, or of each tenant, has that.
func TestO16RateOfATenantReplacesItsPart(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	six := int32(6)
	r.read([]storedRate{{CallsOf: "tenants", Bounded: true}}, time.Now())
	r.want(acme)
	q := r.ask(time.Now())
	r.granted(&q, []permitGrant{{CallsOf: acme.stored(), Share: &six}}, time.Now())
	if all, _ := admitAll(r, "acme"); len(all) != 6 {
		t.Errorf("%d calls, want 6", len(all))
	}
}

// Calls beyond the part of a tenant whose calls are quick wait where they are, and those of a slow
// one are set aside. A call follows another one of its ordering key in its slot unless it is slow.
func TestO16SlowTenantIsSetAside(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	all, refused := admitAll(r, "acme")
	if _, must := r.mustWait("acme", 0); must || refused != notYet || !r.waitsForRoom(callOf("acme")) {
		t.Errorf("the next call of a quick tenant: %v", refused)
	}
	admitAll(r, "other")
	next := callOf("acme")
	if got := r.follow(all[0], next); got != admitted {
		t.Errorf("a call that follows a quick one: %v", got)
	}
	r.loads.of["acme"].active = time.Now().Add(-chunkPatience) // none has returned for long
	a := callOf("acme")
	if of, must := r.mustWait("acme", 0); !must || of != acme || r.admit(a) != setAside || a.rated != acme || r.waitsForRoom(a) {
		t.Errorf("the next call of a slow tenant: must wait %t for %+v", must, of)
	}
	next.startedAt = time.Now().Add(-time.Minute)
	r.ended(next)
	if got := r.follow(next, callOf("acme")); got != setAside {
		t.Errorf("a call that follows a slow one: %v", got)
	}
	r.loads.of["acme"].active = time.Now()
	r.loads.of["acme"].takes = time.Minute
	for got := admitted; got != setAside; got = r.admit(callOf("acme")) {
		if got == notYet {
			t.Fatal("after a slow one has returned, the next waits where it is")
		}
	}

	// A tenant that has few slots waits for those of others.
	r = newRelayRates(100, time.Second)
	first := callOf("acme")
	r.admit(first)
	r.loads.of["acme"].takes = time.Minute
	for range 98 {
		r.admit(callOf(""))
	}
	if _, must := r.mustWait("acme", 0); must || !r.waitsForRoom(callOf("acme")) {
		t.Error("a slow tenant with one of 100 slots, of which one is free, is set aside")
	}
	admitAll(r, "")
	if _, must := r.mustWait("acme", 0); must || r.waitsForRoom(callOf("acme")) {
		t.Error("a tenant with one of the slots, all of which are in use, is set aside, or does not wait for a slot")
	}
	if got := r.admit(callOf("acme")); got != notYet {
		t.Errorf("without a free slot: %v", got)
	}
}

// If the sink's own number of calls under way is less than the slots, a tenant has half of that.
func TestO16PartOfTheSinksNumber(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	four := int32(4)
	r.read([]storedRate{{CallsOf: "", Bounded: true}}, time.Now())
	r.want(allCalls)
	q := r.ask(time.Now())
	r.granted(&q, []permitGrant{{CallsOf: "", Share: &four}}, time.Now())
	if all, _ := admitAll(r, "acme"); len(all) != 2 {
		t.Errorf("%d calls, want 2", len(all))
	}
}

// A tenant that makes the remote ask for a pause for all has one call under way afterwards, until
// one is answered for good. The others have all their slots.
func TestO14SuspectHasOneCallUnderWay(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	r.hold(acme, 0, RetryAuto, "")
	all, refused := admitAll(r, "acme")
	if len(all) != 1 || refused != setAside {
		t.Errorf("%d calls, the next: %v", len(all), refused)
	}
	if others, _ := admitAll(r, ""); len(others) != 7 || !r.open() {
		t.Errorf("%d calls of others", len(others))
	}
	r.noteAnswered("other")
	r.release(all[0])
	if all, _ = admitAll(r, "acme"); len(all) != 1 {
		t.Errorf("%d calls once another's was answered", len(all))
	}
	r.noteAnswered("acme")
	if r.loads.suspectCalls != 0 || r.loads.load("acme").suspect {
		t.Errorf("once it was answered: %+v", r.loads)
	}
}

// The calls of others are held by what those of three tenants say, without one that was answered
// for good in between: two may be one person's. They are held for seconds, whatever the remote asks
// for.
func TestO14SinkIsHeldByThreeTenants(t *testing.T) {
	t.Parallel()
	a, b, c := callsOf{tenant: "a"}, callsOf{tenant: "b"}, callsOf{tenant: "c"}
	for name, play := range map[string]struct {
		play   func(r *relayRates)
		want   time.Duration // for which the sink is held
		probes bool
	}{
		"one tenant": {func(r *relayRates) {
			r.hold(a, time.Hour, RetryAuto, "")
			r.hold(a, time.Hour, RetryAuto, "")
		}, 0, false},
		"two": {func(r *relayRates) {
			r.hold(a, time.Hour, RetryAuto, "")
			r.hold(b, time.Minute, RetryAuto, "")
			r.hold(a, time.Hour, RetryAuto, "")
		}, 0, true},
		"three": {func(r *relayRates) {
			r.hold(a, time.Hour, RetryAuto, "")
			r.hold(b, time.Hour, RetryAuto, "")
			r.hold(c, time.Hour, RetryAuto, "")
		}, sinkHold, true},
		"three, for less": {func(r *relayRates) {
			r.hold(a, time.Hour, RetryAuto, "")
			r.hold(b, time.Hour, RetryAuto, "")
			r.hold(c, 3*time.Second, RetryAuto, "")
		}, 3 * time.Second, true},
		"one of them by 429": {func(r *relayRates) {
			r.hold(a, time.Hour, RetryTenant, "")
			r.hold(b, time.Hour, RetryAuto, "")
			r.hold(c, time.Hour, RetryAuto, "")
		}, 0, true},
		"answered in between": {func(r *relayRates) {
			r.hold(a, time.Hour, RetryAuto, "")
			r.hold(b, time.Hour, RetryAuto, "")
			r.noteAnswered("d")
			r.hold(c, time.Hour, RetryAuto, "")
		}, 0, false},
		"the same three again after an answer": {func(r *relayRates) {
			for range 3 {
				r.hold(a, 0, RetryAuto, "")
				r.hold(b, 0, RetryAuto, "")
				r.noteAnswered("d")
				r.hold(c, time.Hour, RetryAuto, "")
			}
		}, 0, false},
		"no tenant":     {func(r *relayRates) { r.hold(allCalls, time.Hour, RetryAuto, "") }, time.Hour, true},
		"no connection": {func(r *relayRates) { r.hold(a, time.Minute, RetrySink, "") }, time.Minute, true},
	} {
		r := newRelayRates(8, time.Second)
		play.play(r)
		var held time.Duration
		if r.lockedHeld(allCalls) {
			held = time.Until(r.limits[allCalls].heldUntil)
		}
		if held > play.want || held < play.want-time.Second || r.loads.probing != play.probes {
			t.Errorf("%s: the sink is held for %v, want %v; probing %t", name, held, play.want, r.loads.probing)
		}
	}
}

// While the relay finds out whether the remote is back, one call at a time does, of a tenant that
// is no suspect: none that was under way before, and none that hangs. Calls of suspects go one at a
// time beside it.
func TestO14WhoFindsOut(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	before := callOf("a")
	r.admit(before)
	r.hold(callsOf{tenant: "a"}, 0, RetryAuto, "")
	r.hold(callsOf{tenant: "b"}, 0, RetryAuto, "")
	if got := r.admit(callOf("b")); got != setAside {
		t.Errorf("a second call of a suspect: %v", got)
	}
	probe := callOf("c")
	if !r.open() || r.acquire(8) != 1 || r.admit(probe) != admitted {
		t.Fatal("a call that was under way before, of a suspect, finds out")
	}
	if r.open() || r.acquire(8) != 0 || r.admit(callOf("d")) != notYet {
		t.Error("two calls find out at once")
	}
	r.release(before)
	if r.open() {
		t.Error("a call that was under way before the hold has returned, and counts as the probe")
	}
	if suspect := callOf("b"); r.admit(suspect) != admitted || r.admit(callOf("a")) != setAside {
		t.Error("not one call of a suspect")
	}
	r.loads.began = time.Now().Add(-probePatience)
	second := callOf("d")
	if !r.open() || r.admit(second) != admitted {
		t.Error("a call that hangs finds out")
	}
	r.release(second)
	r.release(probe)
	if !r.open() {
		t.Error("no call finds out")
	}
	r.noteAnswered("d")
	if all, _ := admitAll(r, "e"); len(all) < 2 {
		t.Errorf("%d calls of a tenant once the remote is back", len(all))
	}
}

// A call that was given up has given its slot back, and gives back only its place when it returns.
func TestO18SlotIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"", "acme"} {
		r := newRelayRates(1, time.Second)
		a := callOf(tenant)
		if r.acquire(1) != 1 || r.admit(a) != admitted || r.acquire(1) != 0 {
			t.Fatal("it does not start alone")
		}
		a.gaveUp.Store(true)
		r.abandon(a)
		other := callOf("other")
		if r.acquire(2) != 1 || r.admit(other) != admitted {
			t.Error("its slot is not free")
		}
		r.leaveSlot(a)
		if r.acquire(1) != 0 {
			t.Error("it has given back another's slot")
		}
		r.leaveSlot(other)
		if len(r.underWay) > 0 || r.loads.total != 0 || len(r.loads.of) > 0 {
			t.Errorf("under way: %v, %+v", r.underWay, r.loads)
		}
	}
}

// While two tenants' calls hold them, calls of suspects go one at a time, and none before the hold
// is over. A tenant that is no suspect is not bound by that.
func TestO14SuspectsWaitForTheHold(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &newRelayRates(8, time.Second).loads
	l.failed("a", now.Add(time.Second))
	if n := l.room("a", 8, false, now); n != 1 {
		t.Errorf("one suspect alone may have %d calls under way, want 1", n)
	}
	l.failed("b", now.Add(time.Minute))
	for _, c := range []struct {
		tenant string
		at     time.Duration
		want   int
	}{{"a", 0, 0}, {"b", 0, 0}, {"c", 0, 4}, {"a", time.Minute, 1}, {"b", time.Hour, 1}} {
		if n := l.room(c.tenant, 8, false, now.Add(c.at)); n != c.want {
			t.Errorf("after %v there is room for %d calls of %s, want %d", c.at, n, c.tenant, c.want)
		}
	}
	l.add("a", 1, now.Add(time.Minute))
	if n := l.room("b", 8, false, now.Add(time.Minute)); n != 0 {
		t.Errorf("beside another suspect's call there is room for %d", n)
	}
}
