package outbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/lease"
)

var acme = callsOf{tenant: "acme"}

// keysOf are what a call's rate is found by, of a tenant or an ordering key of a prefix.
func keysOf(of callsOf) (tenant string, prefix int64) {
	if of.prefix != "" {
		prefix = codec.OrderPrefix("payments", of.prefix)
	}
	return of.tenant, prefix
}

func permitsOf(of callsOf) *permitRequest {
	return &permitRequest{limits: []callsOf{of}, permits: []int32{1}, held: []int32{0}, wants: []int32{0}}
}

// Permits of a relay that was stopped lapse, so that it starts no calls that others have made up
// for.
func TestO14PermitsLapse(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	now := time.Now()
	r.read([]storedRate{{CallsOf: "tenant acme", Limited: true}}, now)
	r.granted(permitsOf(acme), []permitGrant{{CallsOf: "tenant acme", Granted: 5}}, now.Add(-permitLife))
	if n := r.take(acme, 3); n != 0 {
		t.Errorf("%d calls by permits that have lapsed", n)
	}
	r.granted(permitsOf(acme), []permitGrant{{CallsOf: "tenant acme", Granted: 2}}, now.Add(time.Hour))
	if n := r.take(acme, 3); n != 2 {
		t.Errorf("%d calls by two permits", n)
	}
}

// A tenant's new calls queue behind those that wait.
func TestO14NewCallsDoNotOvertake(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	now := time.Now()
	r.read([]storedRate{{CallsOf: "tenant acme", Limited: true}}, now)
	r.granted(permitsOf(acme), []permitGrant{{CallsOf: "tenant acme", Granted: 5}}, now.Add(time.Hour))
	mustWait := func(of callsOf) bool {
		_, must := r.mustWait(keysOf(of))
		return must
	}
	if mustWait(acme) {
		t.Error("it waits behind nobody")
	}
	r.setWaiting(map[callsOf]bool{acme: true})
	if !mustWait(acme) {
		t.Error("it overtakes others")
	}
	if mustWait(callsOf{tenant: "other"}) || mustWait(allCalls) {
		t.Error("calls without a rate wait")
	}
}

// A call counts for its prefix if that has a rate, or else for its tenant.
func TestO14WhoseRate(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	prefix := codec.OrderPrefix("payments", "a:")
	r.read([]storedRate{{CallsOf: "key a:", Prefix: &prefix}, {CallsOf: "tenant acme", Limited: true}}, time.Now())
	if of := r.of("acme", prefix); of != acme {
		t.Errorf("without a rate of its prefix it counts for %+v", of)
	}
	r.read([]storedRate{{CallsOf: "key a:", Prefix: &prefix, Bounded: true}, {CallsOf: "tenant acme", Limited: true}}, time.Now())
	if of := r.of("acme", prefix); of != (callsOf{prefix: "a:"}) {
		t.Errorf("it counts for %+v", of)
	}
	r.hold(acme, time.Minute, RetryTenant, "")
	if of := r.of("acme", prefix); of != acme {
		t.Errorf("while the remote wants no calls of its tenant, it counts for %+v", of)
	}
	for _, of := range []callsOf{allCalls, acme, {tenant: "key a:"}, {prefix: "tenant :"}, {each: true}, {tenant: "s"}} {
		if got := parseCallsOf(of.stored()); got != of {
			t.Errorf("%+v became %+v", of, got)
		}
	}
}

// A tenant's limit by the rate of each tenant is kept while it is in use, ends with that rate, and
// holds what the remote asks for.
func TestO14LimitByTheRateOfEachTenant(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	each := []storedRate{{CallsOf: "tenants", Limited: true}, {CallsOf: "tenant own", Bounded: true}}
	r.read(each, time.Now())
	if n := r.take(acme, 3); n != 0 {
		t.Errorf("%d calls without a permit", n)
	}
	if l := r.limit(callsOf{tenant: "own"}); l.limited || !l.bounded {
		t.Errorf("a tenant with a rate of its own has %+v", l)
	}
	if r.limit(allCalls) != nil {
		t.Error("calls without a tenant have a limit")
	}
	if l := r.limited(); !l.each || len(l.tenants) != 0 {
		t.Errorf("limited: %+v", l)
	}
	r.want(acme)
	r.read(each, time.Now())
	if r.limits[acme] == nil {
		t.Error("a poll forgot that permits are wanted")
	}
	q := r.ask(time.Now().Add(time.Second))
	r.granted(&q, []permitGrant{{CallsOf: "tenant acme", Granted: 1}}, time.Now())
	r.read(each, time.Now())
	if n := r.take(acme, 3); n != 1 {
		t.Errorf("%d calls by one permit", n)
	}
	r.hold(acme, time.Minute, RetryTenant, "")
	r.read(each, time.Now())
	if l := r.limits[acme]; !l.limited || !r.lockedHeld(acme) {
		t.Errorf("held: %+v", l)
	}
	clear(r.holds) // written
	held := time.Minute.Microseconds()
	r.read(append(slices.Clone(each), storedRate{CallsOf: "tenant acme", Held: &held}), time.Now())
	if l := r.limits[acme]; !l.limited || !r.lockedHeld(acme) {
		t.Errorf("held, as is written: %+v", l)
	}
	r.returned(acme, 1)
	r.read(each, time.Now().Add(permitLife))
	if r.limits[acme] != nil {
		t.Error("it is not forgotten")
	}
	r.limit(acme)
	r.read(nil, time.Now())
	if n := r.take(acme, 3); n != 3 {
		t.Errorf("%d calls of 3 without a rate", n)
	}
}

// Tenants that always have calls under way, more than a question is for, do not keep a tenant that
// has none from being asked for: only shares that are due come first.
func TestO14TenantBesideBusyOnes(t *testing.T) {
	t.Parallel()
	r := newRelayRates(1000, time.Second)
	now, share := time.Now(), int32(2)
	r.read([]storedRate{{CallsOf: "tenants", Limited: true, Bounded: true}}, now)
	asks := func(late callsOf, granted int32) bool {
		now = now.Add(15 * time.Millisecond)
		for i := range 3 * maxAsked {
			r.want(callsOf{tenant: fmt.Sprint("busy", i)})
		}
		q := r.ask(now)
		var all []permitGrant
		for _, of := range q.limits {
			all = append(all, permitGrant{CallsOf: of.stored(), Granted: granted, Wait: 20_000, Share: &share})
		}
		r.granted(&q, all, now)
		return slices.Contains(q.limits, late)
	}
	for range 8 { // for a share, and then for permits
		asks(callsOf{}, 1)
	}
	for i := range 3 * maxAsked {
		r.take(callsOf{tenant: fmt.Sprint("busy", i)}, 1)
	}
	late := callsOf{tenant: "late"}
	r.want(late)
	for range 200 {
		if asks(late, 0) {
			return
		}
	}
	t.Error("it was never asked for")
}

// A question is for a bounded number of limits, in turn: the answer to one about thousands came
// when its permits had lapsed, each time anew. Those that calls cannot wait for come first.
func TestO14QuestionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	r.read([]storedRate{{CallsOf: "", Limited: true}, {CallsOf: "tenants", Limited: true}, {CallsOf: "tenant busy", Bounded: true}}, time.Now())
	const n = 10 * maxAsked
	for i := range n {
		r.want(callsOf{tenant: fmt.Sprint("t", i)})
	}
	busy := callsOf{tenant: "busy"}
	r.count(busy, 1)
	now, asked := time.Now().Add(time.Second), map[callsOf]bool{}
	first := r.ask(now)
	r.granted(&first, nil, now.Add(-2*shareRenew))
	for _, of := range first.limits {
		asked[of] = true
	}
	r.want(allCalls)
	for i := range n/maxAsked + 1 {
		if !r.due(now).Before(now) {
			t.Fatal("no further question is due")
		}
		q := r.ask(now)
		if most := maxAsked; len(q.limits) > most || i < n/most-1 && len(q.limits) < most {
			t.Fatalf("question %d is for %d limits", i, len(q.limits))
		}
		if i == 0 && !(slices.Contains(q.limits, allCalls) && slices.Contains(q.limits, busy)) {
			t.Error("the sink, or the tenant with a call under way, has to wait")
		}
		for _, of := range q.limits {
			asked[of] = true
		}
		r.granted(&q, nil, now)
	}
	if len(asked) != n+2 {
		t.Errorf("%d of %d limits were asked for", len(asked), n+2)
	}
}

// A call under way counts for the rate by which it was started, whatever rates are set meanwhile.
func TestO15CallUnderWayWhenItsPrefixGetsARate(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	prefix := codec.OrderPrefix("payments", "a:")
	a := &callAttempt{Delivery: Delivery{Tenant: "acme"}, orderPrefix: prefix}
	if got := r.admit(a); got != admitted {
		t.Fatalf("it may not be made: %d", got)
	}
	r.read([]storedRate{{CallsOf: "key a:", Prefix: &prefix, Bounded: true}}, time.Now())
	if of, must := r.mustWait(a.Tenant, a.orderPrefix); must || of.prefix != "a:" {
		t.Errorf("a new one waits (%t) for %+v", must, of)
	}
	r.release(a)
	if len(r.underWay) > 0 {
		t.Errorf("under way: %v", r.underWay)
	}
}

// What a remote asks for holds at once, and outlasts a poll that does not know of it yet. The
// database's word counts once it is written.
func TestO14HoldBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	r.hold(allCalls, 24*time.Hour, RetryTenant, "")
	if !r.lockedHeld(allCalls) || time.Until(r.limits[allCalls].heldUntil) > maxRetryAfter {
		t.Error("it does not hold, or for too long")
	}
	r.read(nil, time.Now())
	if !r.lockedHeld(allCalls) {
		t.Error("a poll ended it")
	}
	clear(r.holds) // written
	r.read(nil, time.Now())
	if r.lockedHeld(allCalls) {
		t.Error("it holds, although the database knows of none")
	}
}

// A lane whose sink is held does not loop because parked calls are due: it looks again at each
// poll.
func TestLaneOfAHeldSinkWithDueCallsIsIdle(t *testing.T) {
	t.Parallel()
	rates := newRelayRates(8, time.Hour)
	sink := &relaySink{cfg: RelayConfig{PollInterval: time.Hour, LeaseTTL: 2 * time.Hour}, rates: rates}
	o := newLaneOwner(t.Context(), sink, &lease.Lease{Sent: time.Now()}, 0) // some parked calls are due
	o.pass.reader.state, o.promotions.swept, o.promotions.sweepAt = passOver, true, never
	if wait := time.Until(o.clocks.next(time.Now())); wait > 0 {
		t.Errorf("it waits for %v, although the sink takes calls", wait)
	}
	rates.hold(allCalls, time.Hour, RetryAuto, "")
	if rates.open() {
		t.Error("calls may be started")
	}
	if wait := time.Until(o.clocks.next(time.Now())); wait < 30*time.Minute {
		t.Errorf("it waits for %v, with an hour between polls", wait)
	}
}

// bounded returns what a relay knows of a tenant of whose calls it may have n under way.
func bounded(n int32) *relayRates {
	r := newRelayRates(8, time.Second)
	r.read([]storedRate{{CallsOf: "tenant acme", Bounded: true}}, time.Now())
	r.want(acme)
	q := r.ask(time.Now())
	r.granted(&q, []permitGrant{{CallsOf: "tenant acme", Share: &n}}, time.Now())
	r.takeRegained() // the lanes were woken
	return r
}

// A relay has no more calls under way than its share, whatever became of those that it has started.
func TestO15UnderWayWithinTheShare(t *testing.T) {
	t.Parallel()
	r := bounded(3)
	if n := r.take(acme, 2); n != 2 {
		t.Fatalf("%d of 2", n)
	}
	if n := r.take(acme, 2); n != 1 {
		t.Errorf("%d beside two, of a share of three", n)
	}
	r.giveBack(acme, 1) // was not made
	r.returned(acme, 1) // was
	if n := r.take(acme, 9); n != 2 {
		t.Errorf("%d beside one, of a share of three", n)
	}
	if n := r.take(callsOf{tenant: "other"}, 9); n != 3 { // half of the slots that are free
		t.Errorf("%d calls of a tenant without a limit", n)
	}
}

// The share of a relay that was stopped lapses, and what it has under way is all that it still
// claims.
func TestO15ShareLapses(t *testing.T) {
	t.Parallel()
	r := bounded(3)
	r.take(acme, 1)
	r.limits[acme].share.lapse = time.Now()
	if n := r.take(acme, 1); n != 0 {
		t.Errorf("%d calls after the share has lapsed", n)
	}
	r.limits[acme].asked = time.Now().Add(-time.Hour)
	if q := r.ask(time.Now()); len(q.limits) != 1 || q.held[0] != 1 {
		t.Errorf("it claims %+v, and has one under way", q)
	}
}

// A relay that has no place takes no permits, which would lapse. One that wants nothing any more
// says so, because the database keeps a place for it. A rate that is gone is asked for once a
// second.
func TestO15WhatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRelayRates(8, time.Second)
	now := time.Now()
	r.read([]storedRate{{CallsOf: "tenant acme", Limited: true, Bounded: true}}, now)
	l := r.limits[acme]
	none, some := int32(0), int32(2)
	r.want(acme)
	q := r.ask(now.Add(time.Second))
	if len(q.permits) != 1 || q.permits[0] != 0 || q.wants[0] != 8 {
		t.Errorf("without a place it asks %+v", q)
	}
	r.granted(&q, []permitGrant{{CallsOf: "tenant acme", Share: &none}}, now)
	l.short = time.Time{}
	if at := l.dueAt(now, 0); at.After(now.Add(shareRenew)) {
		t.Errorf("it wants nothing any more, and says so at %v", at.Sub(now))
	}
	q = r.ask(now.Add(time.Second))
	if len(q.wants) != 1 || q.wants[0] != 0 || q.held[0] != 0 {
		t.Errorf("it asks %+v", q)
	}
	r.granted(&q, []permitGrant{{CallsOf: "tenant acme", Share: &some}}, now)
	r.want(acme)
	if l.wanted == 0 {
		t.Error("it has a place, and asks for no permits")
	}
	q = r.ask(now.Add(time.Second))
	r.granted(&q, []permitGrant{{CallsOf: "tenant acme", Share: &some}}, now)
	if l.takeAt.Before(now.Add(permitRetryMax)) {
		t.Errorf("there is no rate any more, and it asks again after %v", l.takeAt.Sub(now))
	}
}

// A number that is not set any more is not asked for again and again until the relay knows.
func TestO15NumberIsGone(t *testing.T) {
	t.Parallel()
	r := bounded(1)
	r.take(acme, 1)
	r.want(acme)
	q := r.ask(time.Now().Add(shareLife))
	if len(q.limits) != 1 {
		t.Fatalf("asks %+v", q)
	}
	now := time.Now()
	r.granted(&q, nil, now)
	if next := r.due(now); !next.After(now) {
		t.Errorf("asks again at %v", next.Sub(now))
	}
}

// A relay gives up what it does not want before the database knows, and starts no call in what was
// taken from it although the database still counts it.
func TestO15ShareIsGivenUpFirst(t *testing.T) {
	t.Parallel()
	r := bounded(5)
	l := r.limits[acme]
	r.take(acme, 2)
	l.short, l.asked = time.Time{}, time.Now().Add(-time.Hour)
	q := r.ask(time.Now())
	if len(q.limits) != 1 || q.held[0] != 2 || q.wants[0] != 2 || r.take(acme, 9) != 0 {
		t.Fatalf("it claims %+v, and has two under way", q)
	}
	one, three := int32(1), int32(3)
	r.granted(&q, []permitGrant{{CallsOf: "tenant acme", Share: &one}}, time.Now())
	before := permitsOf(acme)
	before.number = q.number - 1
	r.granted(before, []permitGrant{{CallsOf: "tenant acme", Share: &three}}, time.Now())
	if n := r.take(acme, 1); n != 0 {
		t.Errorf("%d more, beside two of a share of one; the answer to an earlier question came later", n)
	}
	r.returned(acme, 1)
	if !l.owes(1) || r.due(time.Now()).After(time.Now().Add(shareSoon)) {
		t.Error("it does not report that a call has returned")
	}
}

// A relay keeps the limit of a tenant while it may have something of it, or has asked for it.
func TestO15UsedLimits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	later := now.Add(time.Second)
	for name, l := range map[string]rateLimit{
		"permits are wanted":      {wanted: 1},
		"permits are held":        {lapse: later},
		"the share was too small": {share: share{short: later}},
		"a share is held":         {share: share{lapse: later}},
	} {
		if !l.used(now) {
			t.Errorf("%s: not used", name)
		}
		if name != "permits are wanted" && l.used(later) {
			t.Errorf("%s: used when that is over", name)
		}
	}
	if (&rateLimit{}).used(now) {
		t.Error("used without anything")
	}
}
