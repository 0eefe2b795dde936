package gate

import (
	"testing"
	"time"
)

// slot returns a blank ticket, whether a call may start or not.
func (g *Gate) slot() *Ticket {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count(All, 1, time.Now())
	g.open++
	return &Ticket{gate: g}
}

// try tries to start a call of a tenant in a slot.
func (g *Gate) try(tenant string) (*Ticket, Verdict, Key) {
	t := g.slot()
	v, waitsFor := t.Admit(Entrant{Tenant: tenant})
	if v != Admitted {
		g.Unused(t)
		return nil, v, waitsFor
	}
	return t, v, waitsFor
}

// admitAll admits calls of a tenant until one may not start.
func admitAll(g *Gate, tenant string) (all []*Ticket, refused Verdict) {
	for {
		t, v, _ := g.try(tenant)
		if v != Admitted {
			return all, v
		}
		all = append(all, t)
		if len(all) > 2*g.slots {
			return all, Admitted
		}
	}
}

// A tenant has at most as many calls under way as slots are free, so each leaves some to others.
// What one gives back, another may take.
func TestO16TenantLeavesSlotsToOthers(t *testing.T) {
	t.Parallel()
	for capacity, want := range map[int][]int{1: {1, 0}, 2: {1, 1, 0}, 3: {2, 1, 0}, 8: {4, 2, 1, 1, 0}, 100: {50, 25, 13, 6, 3, 2, 1, 0}} {
		r := New(capacity, time.Second)
		var first []*Ticket
		for i, n := range want {
			all, _ := admitAll(r, string(rune('a'+i)))
			if len(all) != n {
				t.Errorf("of %d slots, tenant %d may have %d, want %d", capacity, i, len(all), n)
			}
			if i == 0 {
				first = all
			}
		}
		r.Done(first...)
		all, _ := admitAll(r, "")
		if len(all) != want[0] {
			t.Errorf("of %d slots, calls without a tenant may have %d, want the %d that are free", capacity, len(all), want[0])
		}
		if n := New(capacity, time.Second).takes(acme, capacity); n != want[0] {
			t.Errorf("of %d slots, calls that are tried again may have %d, want %d", capacity, n, want[0])
		}
	}
}

// A tenant with a number of calls under way of its own, or of each tenant, has that.
func TestO16RateOfATenantReplacesItsPart(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	r.SetLimits([]Limit{{Key: Key{Each: true}, Shared: true}}, time.Now())
	r.Want(acme)
	q := r.Ask(time.Now())
	r.Answer(q, []Grant{{Key: acme, Share: 6, Shared: true}}, time.Now())
	if all, _ := admitAll(r, "acme"); len(all) != 6 {
		t.Errorf("%d calls, want 6", len(all))
	}
}

// Calls beyond the part of a tenant whose calls are quick wait where they are, and those of a slow
// one are set aside. A call follows another one of its ordering key in its slot unless it is slow.
func TestO16SlowTenantIsSetAside(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	all, refused := admitAll(r, "acme")
	if _, must := r.Waits(Entrant{Tenant: "acme"}); must || refused != NotYet || !r.WaitsForRoom("acme") {
		t.Errorf("the next call of a quick tenant: %v", refused)
	}
	admitAll(r, "other")
	next := all[0]
	if got, _ := next.Follow(Entrant{Tenant: "acme"}); got != Admitted {
		t.Errorf("a call that follows a quick one: %v", got)
	}
	r.loads.of["acme"].active = time.Now().Add(-stalledFor) // none has returned for long
	if of, must := r.Waits(Entrant{Tenant: "acme"}); !must || of != acme || r.WaitsForRoom("acme") {
		t.Errorf("the next call of a slow tenant: must wait %t for %+v", must, of)
	}
	if _, got, of := r.try("acme"); got != SetAside || of != acme {
		t.Errorf("the next call of a slow tenant: %v, for %+v", got, of)
	}
	next.began = time.Now().Add(-time.Minute)
	r.Returned(next)
	if got, _ := next.Follow(Entrant{Tenant: "acme"}); got != SetAside {
		t.Errorf("a call that follows a slow one: %v", got)
	}
	r.loads.of["acme"].active = time.Now()
	r.loads.of["acme"].takes = time.Minute
	if _, got := admitAll(r, "acme"); got != SetAside {
		t.Errorf("after a slow one has returned, the next: %v", got)
	}

	// A tenant that has few slots waits for those of others.
	r = New(100, time.Second)
	r.try("acme")
	r.loads.of["acme"].takes = time.Minute
	for range 98 {
		r.try("")
	}
	if _, must := r.Waits(Entrant{Tenant: "acme"}); must || !r.WaitsForRoom("acme") {
		t.Error("a slow tenant with one of 100 slots, of which one is free, is set aside")
	}
	admitAll(r, "")
	if _, must := r.Waits(Entrant{Tenant: "acme"}); must || r.WaitsForRoom("acme") {
		t.Error("a tenant with one of the slots, all of which are in use, is set aside, or does not wait for a slot")
	}
	if _, got, _ := r.try("acme"); got != NotYet {
		t.Errorf("without a free slot: %v", got)
	}
}

// If the sink's own number of calls under way is less than the slots, a tenant has half of that.
func TestO16PartOfTheSinksNumber(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	r.SetLimits([]Limit{{Key: All, Shared: true}}, time.Now())
	r.Want(All)
	q := r.Ask(time.Now())
	r.Answer(q, []Grant{{Key: All, Share: 4, Shared: true}}, time.Now())
	if all, _ := admitAll(r, "acme"); len(all) != 2 {
		t.Errorf("%d calls, want 2", len(all))
	}
}

// A tenant that makes the remote ask for a pause for all has one call under way afterwards, until
// one is answered for good. The others have all their slots.
func TestO14SuspectHasOneCallUnderWay(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	r.Hold(acme, 0, true, "")
	all, refused := admitAll(r, "acme")
	if len(all) != 1 || refused != SetAside {
		t.Errorf("%d calls, the next: %v", len(all), refused)
	}
	if others, _ := admitAll(r, ""); len(others) != 7 || !r.Open() {
		t.Errorf("%d calls of others", len(others))
	}
	r.Answered("other")
	r.Done(all[0])
	if all, _ = admitAll(r, "acme"); len(all) != 1 {
		t.Errorf("%d calls once another's was answered", len(all))
	}
	r.Answered("acme")
	if r.loads.suspectCalls != 0 || r.loads.tenant("acme").suspect {
		t.Errorf("once it was answered: %+v", r.loads)
	}
}

// The calls of others are held by what those of three tenants say, without one that was answered
// for good in between: two may be one person's. They are held for seconds, whatever the remote asks
// for.
func TestO14SinkIsHeldByThreeTenants(t *testing.T) {
	t.Parallel()
	a := Key{Tenant: "a"}
	b := Key{Tenant: "b"}
	c := Key{Tenant: "c"}
	for name, play := range map[string]struct {
		play   func(r *Gate)
		want   time.Duration // for which the sink is held
		probes bool
	}{
		"one tenant": {func(r *Gate) {
			r.Hold(a, time.Hour, true, "")
			r.Hold(a, time.Hour, true, "")
		}, 0, false},
		"two": {func(r *Gate) {
			r.Hold(a, time.Hour, true, "")
			r.Hold(b, time.Minute, true, "")
			r.Hold(a, time.Hour, true, "")
		}, 0, true},
		"three": {func(r *Gate) {
			r.Hold(a, time.Hour, true, "")
			r.Hold(b, time.Hour, true, "")
			r.Hold(c, time.Hour, true, "")
		}, sinkHold, true},
		"three, for less": {func(r *Gate) {
			r.Hold(a, time.Hour, true, "")
			r.Hold(b, time.Hour, true, "")
			r.Hold(c, 3*time.Second, true, "")
		}, 3 * time.Second, true},
		"one of them by 429": {func(r *Gate) {
			r.Hold(a, time.Hour, false, "")
			r.Hold(b, time.Hour, true, "")
			r.Hold(c, time.Hour, true, "")
		}, 0, true},
		"answered in between": {func(r *Gate) {
			r.Hold(a, time.Hour, true, "")
			r.Hold(b, time.Hour, true, "")
			r.Answered("d")
			r.Hold(c, time.Hour, true, "")
		}, 0, false},
		"the same three again after an answer": {func(r *Gate) {
			for range 3 {
				r.Hold(a, 0, true, "")
				r.Hold(b, 0, true, "")
				r.Answered("d")
				r.Hold(c, time.Hour, true, "")
			}
		}, 0, false},
		"no tenant":     {func(r *Gate) { r.Hold(All, time.Hour, true, "") }, time.Hour, true},
		"no connection": {func(r *Gate) { r.Hold(All, time.Minute, true, "") }, time.Minute, true},
	} {
		r := New(8, time.Second)
		play.play(r)
		var held time.Duration
		if r.held(All, time.Now()) {
			held = time.Until(r.limits[All].heldUntil)
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
	r := New(8, time.Second)
	before, _, _ := r.try("a")
	r.Hold(Key{Tenant: "a"}, 0, true, "")
	r.Hold(Key{Tenant: "b"}, 0, true, "")
	if _, got, _ := r.try("b"); got != SetAside {
		t.Errorf("a second call of a suspect: %v", got)
	}
	if !r.Open() {
		t.Fatal("no call may find out")
	}
	probes := r.Take(8)
	if len(probes) != 1 {
		t.Fatalf("%d calls may find out", len(probes))
	}
	if got, _ := probes[0].Admit(Entrant{Tenant: "c"}); got != Admitted {
		t.Fatal("a call that was under way before, of a suspect, finds out")
	}
	if _, got, _ := r.try("d"); r.Open() || len(r.Take(8)) != 0 || got != NotYet {
		t.Error("two calls find out at once")
	}
	r.Done(before)
	if r.Open() {
		t.Error("a call that was under way before the hold has returned, and counts as the probe")
	}
	_, first, _ := r.try("b")
	if _, second, _ := r.try("a"); first != Admitted || second != SetAside {
		t.Error("not one call of a suspect")
	}
	r.loads.began = time.Now().Add(-probePatience)
	if !r.Open() {
		t.Error("a call that hangs finds out")
	}
	second, got, _ := r.try("d")
	if got != Admitted {
		t.Fatalf("another call beside one that hangs: %v", got)
	}
	r.Done(second, probes[0])
	if !r.Open() {
		t.Error("no call finds out")
	}
	r.Answered("d")
	if all, _ := admitAll(r, "e"); len(all) < 2 {
		t.Errorf("%d calls of a tenant once the remote is back", len(all))
	}
}

// A call that was given up has given its slot back, and gives back only its place when it returns.
func TestO18SlotIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"", "acme"} {
		r := New(1, time.Second)
		take := func(n int) *Ticket {
			if tickets := r.Take(n); len(tickets) == 1 {
				return tickets[0]
			}
			return nil
		}
		abandoned := take(1)
		if abandoned == nil {
			t.Fatal("there is no slot")
		}
		if got, _ := abandoned.Admit(Entrant{Tenant: tenant}); got != Admitted || take(1) != nil {
			t.Fatal("it does not start alone")
		}
		abandoned.Abandon()
		if err := r.Close(); err != nil || r.Abandoned() != 1 {
			t.Errorf("%d abandoned; %v", r.Abandoned(), err)
		}
		other := take(2)
		if other == nil {
			t.Fatal("its slot is not free")
		}
		if got, _ := other.Admit(Entrant{Tenant: "other"}); got != Admitted {
			t.Errorf("another call in its slot: %v", got)
		}
		r.Done(abandoned)
		if take(1) != nil {
			t.Error("it has given back another's slot")
		}
		r.Done(other)
		if len(r.underWay) > 0 || r.loads.total != 0 || len(r.loads.of) > 0 {
			t.Errorf("under way: %v, %+v", r.underWay, r.loads)
		}
		if err := r.Close(); err != nil || r.Abandoned() != 0 {
			t.Errorf("%d abandoned; %v", r.Abandoned(), err)
		}
	}
}

// While two tenants' calls hold them, calls of suspects go one at a time, and none before the hold
// is over. A tenant that is no suspect is not bound by that.
func TestO14SuspectsWaitForTheHold(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &New(8, time.Second).loads
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

// A suspect has one call under way at a time, and one that was given up counts as none: else the
// tenant, and while the relay finds out about the remote each other suspect, waits for a call that
// does not return. Such calls take up no more than as many slots as there are.
func TestO18SuspectsCallIsGivenUp(t *testing.T) {
	t.Parallel()
	r := New(3, time.Second)
	r.Hold(acme, 0, true, "")
	r.Hold(Key{Tenant: "other"}, 0, true, "")
	r.NoteWaiting(acme)
	var abandoned []*Ticket
	for range r.slots {
		one, got, _ := r.try("acme")
		if got != Admitted {
			t.Fatalf("%d calls were given up, and the next: %v", len(abandoned), got)
		}
		if _, got, _ := r.try("acme"); got != SetAside {
			t.Fatalf("a second call beside a suspect's: %v", got)
		}
		r.Regained()
		one.Abandon()
		if !r.Regained() {
			t.Error("the lanes are not woken")
		}
		abandoned = append(abandoned, one)
	}
	if _, got, _ := r.try("acme"); got != SetAside {
		t.Errorf("as many calls were given up as there are slots, and the next: %v", got)
	}
	other, got, _ := r.try("other")
	if got != Admitted {
		t.Errorf("another suspect's call beside those: %v", got)
	}
	r.Answered("acme")
	r.Done(append(abandoned, other)...)
	r.Answered("other")
	good := len(r.underWay) <= 0 &&
		r.loads.total == 0 &&
		len(r.loads.of) <= 0 &&
		r.loads.suspectCalls == 0
	if !good {
		t.Errorf("under way: %v, %+v", r.underWay, r.loads)
	}
}
