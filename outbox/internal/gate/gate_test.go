package gate

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var acme = Key{Tenant: "acme"}

// prefixA is the stored form of the prefix "a:".
const prefixA = int64(4711)

// entrantOf is a call that counts for a limit.
func entrantOf(k Key) Entrant {
	e := Entrant{Tenant: k.Tenant}
	if k.Prefix != "" {
		e.Prefix = prefixA
	}
	return e
}

// inA is a call of acme whose ordering key has the prefix "a:".
var inA = Entrant{Tenant: "acme", Prefix: prefixA}

// asksFor reports whether a question asks for a limit.
func (q *Question) asksFor(k Key) bool {
	return slices.ContainsFunc(q.Parts, func(p Part) bool { return p.Key == k })
}

func permitsOf(k Key) Question { return Question{Parts: []Part{{Key: k, Permits: 1}}} }

// takes takes permits and places of a limit, and returns how many it has got.
func (g *Gate) takes(k Key, n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	n, _ = g.take(k, min(n, g.available(k, now)), now)
	return n
}

// gives gives back places of calls that have returned.
func (g *Gate) gives(k Key, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count(k, -n, time.Now())
}

// Permits of a relay that was stopped lapse, so that it starts no calls that others have made up
// for.
func TestO14PermitsLapse(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	now := time.Now()
	r.SetLimits([]Limit{{Key: Key{Tenant: "acme"}, Rated: true}}, now)
	r.Answer(permitsOf(acme), []Grant{{Key: Key{Tenant: "acme"}, Permits: 5}}, now.Add(-permitLife))
	if n := r.takes(acme, 3); n != 0 {
		t.Errorf("%d calls by permits that have lapsed", n)
	}
	r.Answer(permitsOf(acme), []Grant{{Key: Key{Tenant: "acme"}, Permits: 2}}, now.Add(time.Hour))
	if n := r.takes(acme, 3); n != 2 {
		t.Errorf("%d calls by two permits", n)
	}
}

// A tenant's new calls queue behind those that wait.
func TestO14NewCallsDoNotOvertake(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	now := time.Now()
	r.SetLimits([]Limit{{Key: Key{Tenant: "acme"}, Rated: true}}, now)
	r.Answer(permitsOf(acme), []Grant{{Key: Key{Tenant: "acme"}, Permits: 5}}, now.Add(time.Hour))
	mustWait := func(of Key) bool {
		_, must := r.Waits(entrantOf(of))
		return must
	}
	if mustWait(acme) {
		t.Error("it waits behind nobody")
	}
	r.SetWaiting(map[Key]bool{acme: true})
	if !mustWait(acme) {
		t.Error("it overtakes others")
	}
	if mustWait(Key{Tenant: "other"}) || mustWait(All) {
		t.Error("calls without a rate wait")
	}
}

// A call counts for its prefix if that has a rate, or else for its tenant.
func TestO14WhoseRate(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	r.SetLimits([]Limit{{Key: Key{Prefix: "a:"}, Prefix: prefixA}, {Key: Key{Tenant: "acme"}, Rated: true}}, time.Now())
	if of := r.keyOf(inA, time.Now()); of != acme {
		t.Errorf("without a rate of its prefix it counts for %+v", of)
	}
	r.SetLimits([]Limit{{Key: Key{Prefix: "a:"}, Prefix: prefixA, Shared: true}, {Key: Key{Tenant: "acme"}, Rated: true}}, time.Now())
	if of := r.keyOf(inA, time.Now()); of != (Key{Prefix: "a:"}) {
		t.Errorf("it counts for %+v", of)
	}
	r.Hold(acme, time.Minute, false, "")
	if of := r.keyOf(inA, time.Now()); of != acme {
		t.Errorf("while the remote wants no calls of its tenant, it counts for %+v", of)
	}
}

// A tenant's limit by the rate of each tenant is kept while it is in use, ends with that rate, and
// holds what the remote asks for.
func TestO14LimitByTheRateOfEachTenant(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	each := []Limit{{Key: Key{Each: true}, Rated: true}, {Key: Key{Tenant: "own"}, Shared: true}}
	r.SetLimits(each, time.Now())
	if n := r.takes(acme, 3); n != 0 {
		t.Errorf("%d calls without a permit", n)
	}
	if l := r.limit(Key{Tenant: "own"}); l.limited || !l.bounded {
		t.Errorf("a tenant with a rate of its own has %+v", l)
	}
	if r.limit(All) != nil {
		t.Error("calls without a tenant have a limit")
	}
	if l := r.Limited(); !l.Each || len(l.Tenants) != 0 {
		t.Errorf("limited: %+v", l)
	}
	r.Want(acme)
	r.SetLimits(each, time.Now())
	if r.limits[acme] == nil {
		t.Error("a poll forgot that permits are wanted")
	}
	q := r.Ask(time.Now().Add(time.Second))
	r.Answer(q, []Grant{{Key: Key{Tenant: "acme"}, Permits: 1}}, time.Now())
	r.SetLimits(each, time.Now())
	if n := r.takes(acme, 3); n != 1 {
		t.Errorf("%d calls by one permit", n)
	}
	r.Hold(acme, time.Minute, false, "")
	r.SetLimits(each, time.Now())
	if l := r.limits[acme]; !l.limited || !r.held(acme, time.Now()) {
		t.Errorf("held: %+v", l)
	}
	clear(r.holds) // written
	r.SetLimits(append(slices.Clone(each), Limit{Key: acme, Held: time.Minute}), time.Now())
	if l := r.limits[acme]; !l.limited || !r.held(acme, time.Now()) {
		t.Errorf("held, as is written: %+v", l)
	}
	r.gives(acme, 1)
	r.SetLimits(each, time.Now().Add(permitLife))
	if r.limits[acme] != nil {
		t.Error("it is not forgotten")
	}
	r.limit(acme)
	r.SetLimits(nil, time.Now())
	if n := r.takes(acme, 3); n != 3 {
		t.Errorf("%d calls of 3 without a rate", n)
	}
}

// Tenants that always have calls under way, more than a question is for, do not keep a tenant that
// has none from being asked for: only shares that are due come first.
func TestO14TenantBesideBusyOnes(t *testing.T) {
	t.Parallel()
	r := New(1000, time.Second)
	now := time.Now()
	r.SetLimits([]Limit{{Key: Key{Each: true}, Rated: true, Shared: true}}, now)
	asks := func(late Key, granted int) bool {
		now = now.Add(15 * time.Millisecond)
		for i := range 3 * maxAsked {
			r.Want(Key{Tenant: fmt.Sprint("busy", i)})
		}
		q := r.Ask(now)
		var all []Grant
		for _, p := range q.Parts {
			all = append(all, Grant{Key: p.Key, Permits: granted, Wait: 20 * time.Millisecond, Share: 2, Shared: true})
		}
		r.Answer(q, all, now)
		return q.asksFor(late)
	}
	for range 8 { // for a share, and then for permits
		asks(Key{}, 1)
	}
	for i := range 3 * maxAsked {
		r.takes(Key{Tenant: fmt.Sprint("busy", i)}, 1)
	}
	late := Key{Tenant: "late"}
	r.Want(late)
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
	r := New(8, time.Second)
	r.SetLimits([]Limit{{Key: All, Rated: true}, {Key: Key{Each: true}, Rated: true}, {Key: Key{Tenant: "busy"}, Shared: true}}, time.Now())
	const n = 10 * maxAsked
	for i := range n {
		r.Want(Key{Tenant: fmt.Sprint("t", i)})
	}
	busy := Key{Tenant: "busy"}
	r.count(busy, 1, time.Now())
	now := time.Now().Add(time.Second)
	asked := map[Key]bool{}
	first := r.Ask(now)
	r.Answer(first, nil, now.Add(-2*shareRenew))
	for _, p := range first.Parts {
		asked[p.Key] = true
	}
	r.Want(All)
	for i := range n/maxAsked + 1 {
		if !r.Due(now).Before(now) {
			t.Fatal("no further question is due")
		}
		q := r.Ask(now)
		if most := maxAsked; len(q.Parts) > most || i < n/most-1 && len(q.Parts) < most {
			t.Fatalf("question %d is for %d limits", i, len(q.Parts))
		}
		if i == 0 && !(q.asksFor(All) && q.asksFor(busy)) {
			t.Error("the sink, or the tenant with a call under way, has to wait")
		}
		for _, p := range q.Parts {
			asked[p.Key] = true
		}
		r.Answer(q, nil, now)
	}
	if len(asked) != n+2 {
		t.Errorf("%d of %d limits were asked for", len(asked), n+2)
	}
}

// A call under way counts for the rate by which it was started, whatever rates are set meanwhile.
func TestO15CallUnderWayWhenItsPrefixGetsARate(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	ticket := r.slot()
	if got, _ := ticket.Admit(inA); got != Admitted {
		t.Fatalf("it may not be made: %d", got)
	}
	r.SetLimits([]Limit{{Key: Key{Prefix: "a:"}, Prefix: prefixA, Shared: true}}, time.Now())
	if of, must := r.Waits(inA); must || of.Prefix != "a:" {
		t.Errorf("a new one waits (%t) for %+v", must, of)
	}
	r.Done(ticket)
	if len(r.underWay) > 0 {
		t.Errorf("under way: %v", r.underWay)
	}
}

// What a remote asks for holds at once, and outlasts a poll that does not know of it yet. The
// database's word counts once it is written.
func TestO14HoldBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	r.Hold(All, 24*time.Hour, false, "")
	if !r.held(All, time.Now()) || time.Until(r.limits[All].heldUntil) > MaxHold {
		t.Error("it does not hold, or for too long")
	}
	r.SetLimits(nil, time.Now())
	if !r.held(All, time.Now()) {
		t.Error("a poll ended it")
	}
	clear(r.holds) // written
	r.SetLimits(nil, time.Now())
	if r.held(All, time.Now()) {
		t.Error("it holds, although the database knows of none")
	}
	r.Hold(acme, time.Second, false, "")
	r.SetLimits([]Limit{{Key: acme, Held: time.Minute}}, time.Now())
	if !r.held(acme, time.Now().Add(time.Minute-time.Second)) {
		t.Error("a hold that is not written yet has cut another relay's short")
	}
}

// A relay gives back its shares when it stops, also if the answer to its only question was lost:
// the database may have given it some.
func TestO15QuestionWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	r.SetLimits([]Limit{{Key: acme, Shared: true}}, time.Now())
	if asked, _ := r.AskedForShares(); asked {
		t.Error("it has asked for nothing")
	}
	r.AskFor(map[Key]int{acme: 1})
	if asked, _ := r.AskedForShares(); !asked {
		t.Error("it leaves what the database may have given it")
	}
}

// bounded returns what a relay knows of a tenant of whose calls it may have n under way.
func bounded(n int) *Gate {
	r := New(8, time.Second)
	r.SetLimits([]Limit{{Key: Key{Tenant: "acme"}, Shared: true}}, time.Now())
	r.Want(acme)
	q := r.Ask(time.Now())
	r.Answer(q, []Grant{{Key: Key{Tenant: "acme"}, Share: n, Shared: true}}, time.Now())
	r.Regained() // the lanes were woken
	return r
}

// A relay has no more calls under way than its share, whatever became of those that it has started.
func TestO15UnderWayWithinTheShare(t *testing.T) {
	t.Parallel()
	r := bounded(3)
	if n := r.takes(acme, 2); n != 2 {
		t.Fatalf("%d of 2", n)
	}
	if n := r.takes(acme, 2); n != 1 {
		t.Errorf("%d beside two, of a share of three", n)
	}
	r.gives(acme, 2)
	if n := r.takes(acme, 9); n != 2 {
		t.Errorf("%d beside one, of a share of three", n)
	}
	if n := r.takes(Key{Tenant: "other"}, 9); n != 3 { // half of the slots that are free
		t.Errorf("%d calls of a tenant without a limit", n)
	}
}

// The share of a relay that was stopped lapses, and what it has under way is all that it still
// claims.
func TestO15ShareLapses(t *testing.T) {
	t.Parallel()
	r := bounded(3)
	r.takes(acme, 1)
	r.limits[acme].share.lapse = time.Now()
	if n := r.takes(acme, 1); n != 0 {
		t.Errorf("%d calls after the share has lapsed", n)
	}
	r.limits[acme].asked = time.Now().Add(-time.Hour)
	if q := r.Ask(time.Now()); len(q.Parts) != 1 || q.Parts[0].Held != 1 {
		t.Errorf("it claims %+v, and has one under way", q)
	}
}

// A relay that has no place takes no permits, which would lapse. One that wants nothing any more
// says so, because the database keeps a place for it. A rate that is gone is asked for once a
// second.
func TestO15WhatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := New(8, time.Second)
	now := time.Now()
	r.SetLimits([]Limit{{Key: Key{Tenant: "acme"}, Rated: true, Shared: true}}, now)
	l := r.limits[acme]
	none := 0
	some := 2
	r.Want(acme)
	q := r.Ask(now.Add(time.Second))
	if len(q.Parts) != 1 || q.Parts[0].Permits != 0 || q.Parts[0].Wants != 8 {
		t.Errorf("without a place it asks %+v", q)
	}
	r.Answer(q, []Grant{{Key: Key{Tenant: "acme"}, Share: none, Shared: true}}, now)
	l.short = time.Time{}
	if at := l.dueAt(now, 0); at.After(now.Add(shareRenew)) {
		t.Errorf("it wants nothing any more, and says so at %v", at.Sub(now))
	}
	q = r.Ask(now.Add(time.Second))
	if len(q.Parts) != 1 || q.Parts[0].Wants != 0 || q.Parts[0].Held != 0 {
		t.Errorf("it asks %+v", q)
	}
	r.Answer(q, []Grant{{Key: Key{Tenant: "acme"}, Share: some, Shared: true}}, now)
	r.Want(acme)
	if l.wanted == 0 {
		t.Error("it has a place, and asks for no permits")
	}
	q = r.Ask(now.Add(time.Second))
	r.Answer(q, []Grant{{Key: Key{Tenant: "acme"}, Share: some, Shared: true}}, now)
	if l.takeAt.Before(now.Add(permitRetryMax)) {
		t.Errorf("there is no rate any more, and it asks again after %v", l.takeAt.Sub(now))
	}
}

// A number that is not set any more is not asked for again and again until the relay knows.
func TestO15NumberIsGone(t *testing.T) {
	t.Parallel()
	r := bounded(1)
	r.takes(acme, 1)
	r.Want(acme)
	q := r.Ask(time.Now().Add(shareLife))
	if len(q.Parts) != 1 {
		t.Fatalf("asks %+v", q)
	}
	now := time.Now()
	r.Answer(q, nil, now)
	if next := r.Due(now); !next.After(now) {
		t.Errorf("asks again at %v", next.Sub(now))
	}
}

// A relay gives up what it does not want before the database knows, and starts no call in what was
// taken from it although the database still counts it.
func TestO15ShareIsGivenUpFirst(t *testing.T) {
	t.Parallel()
	r := bounded(5)
	l := r.limits[acme]
	r.takes(acme, 2)
	l.short = time.Time{}
	l.asked = time.Now().Add(-time.Hour)
	q := r.Ask(time.Now())
	good := len(q.Parts) == 1 &&
		q.Parts[0].Held == 2 &&
		q.Parts[0].Wants == 2 &&
		r.takes(acme, 9) == 0
	if !good {
		t.Fatalf("it claims %+v, and has two under way", q)
	}
	one := 1
	three := 3
	r.Answer(q, []Grant{{Key: Key{Tenant: "acme"}, Share: one, Shared: true}}, time.Now())
	before := permitsOf(acme)
	before.Number = q.Number - 1
	r.Answer(before, []Grant{{Key: Key{Tenant: "acme"}, Share: three, Shared: true}}, time.Now())
	if n := r.takes(acme, 1); n != 0 {
		t.Errorf("%d more, beside two of a share of one; the answer to an earlier question came later", n)
	}
	r.gives(acme, 1)
	if !l.owes(1) || r.Due(time.Now()).After(time.Now().Add(shareSoon)) {
		t.Error("it does not report that a call has returned")
	}
}

// A relay keeps the limit of a tenant while it may have something of it, or has asked for it.
func TestO15UsedLimits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	later := now.Add(time.Second)
	for name, l := range map[string]limit{
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
	if (&limit{}).used(now) {
		t.Error("used without anything")
	}
}

// What waited while an operator had paused the sink is woken when the sink is resumed, and not only
// at a poll.
func TestResumeWakesTheLanes(t *testing.T) {
	t.Parallel()
	g := New(8, time.Hour)
	if g.SetPaused(false) || g.Regained() {
		t.Error("lanes are woken although nothing was paused")
	}
	if !g.SetPaused(true) || g.Regained() {
		t.Error("a pause wakes lanes")
	}
	if !g.SetPaused(false) || !g.Regained() || !g.Due(time.Now()).After(time.Now()) {
		t.Error("a resume wakes no lanes, or does so for ever")
	}
}
