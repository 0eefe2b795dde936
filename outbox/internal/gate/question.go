package gate

import (
	"cmp"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// permitLife is how long permits that were granted may be used, by the relay's own clock. Those of
// a relay that was stopped lapse.
const permitLife = 500 * time.Millisecond

// Bounds of the wait between two tries to take permits of a rate, if there are none.
const (
	permitRetryMin = 10 * time.Millisecond
	permitRetryMax = time.Second
)

// maxAsked bounds the limits of one question. Its answer comes when all of their buckets are locked
// and counted, and permits lapse permitLife after the question was sent.
const maxAsked = 128

// never is when to ask if there is nothing to ask for.
var never = time.Unix(1<<40, 0)

// Question is what a relay asks of the database. The zero value asks for nothing.
type Question struct {
	Number int64 // among the relay's questions
	Parts  []Part
}

// Part is what it asks of one limit.
type Part struct {
	Key     Key
	Permits int
	Held    int // of calls under way: how many it may have until now
	Wants   int // and how many it wants to have
}

// Grows reports whether it asks for a larger share: it has to be flushed, because others would get
// the same places after a crash.
func (q *Question) Grows() bool {
	return slices.ContainsFunc(q.Parts, func(p Part) bool { return p.Wants > p.Held })
}

// Grant is the answer to one part.
type Grant struct {
	Key     Key
	Permits int
	Wait    time.Duration // until there is another
	Share   int           // how many calls may be under way
	Shared  bool          // Share counts
}

// add adds a part. The caller has the lock.
func (q *Question) add(g *Gate, k Key, permits int, now time.Time) {
	if q.Number == 0 {
		g.questions++
		q.Number = g.questions
	}
	p := Part{Key: k, Permits: permits}
	if l := g.limits[k]; l != nil && l.bounded {
		p.Held, p.Wants = l.ask(q.Number, now, g.underWay[k], g.slots)
	}
	q.Parts = append(q.Parts, p)
}

// AskFor asks for permits of several limits at once, and for a share of each, for a lane that waits
// for the answer.
func (g *Gate) AskFor(wanted map[Key]int) (q Question) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for k, n := range wanted {
		if l := g.limits[k]; l != nil && l.bounded {
			l.wantMore(now, g.shortFor)
			if !g.hasPlace(k, l, now) {
				n = 0
			}
		}
		q.add(g, k, n, now)
	}
	return q
}

// Want asks for permits of a rate that has none: for several calls in each slot, because some are
// quick.
func (g *Gate) Want(k Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.want(k, time.Now())
}

// want is Want under the lock.
func (g *Gate) want(k Key, now time.Time) {
	l := g.limit(k)
	if l == nil || now.Before(l.heldUntil) {
		return
	}
	if l.limited && l.permitted(now) == 0 && g.hasPlace(k, l, now) {
		l.wanted = 4 * g.slots
		pace.Signal(g.needed)
	}
	if l.bounded && l.may(now) <= g.underWay[k] && l.wantMore(now, g.shortFor) {
		pace.Signal(g.needed)
	}
}

// hasPlace reports whether permits are of use: without a place among the calls that may be under
// way, they would lapse, and the others have fewer. In the sink a call can follow another one in
// its place. The caller has the lock.
func (g *Gate) hasPlace(k Key, l *limit, now time.Time) bool {
	used := g.underWay[k]
	if k == All {
		used = 0
	}
	return !l.bounded || l.may(now) > used
}

// askAt returns when to ask for a limit, and for how many permits then.
func (l *limit) askAt(now time.Time, underWay int) (at time.Time, permits int) {
	at = never
	if l.limited && l.wanted > 0 {
		at = l.takeAt
		permits = l.wanted
	}
	if !l.bounded {
		return at, permits
	}
	if share := l.dueAt(now, underWay); share.Before(at) {
		if now.Before(at) {
			permits = 0
		}
		at = share
	}
	return at, permits
}

// Due returns when to write holds, to ask, or to wake lanes.
func (g *Gate) Due(now time.Time) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.holds) > 0 || g.regained {
		return time.Time{}
	}
	next := never
	for k, l := range g.limits {
		if at, _ := l.askAt(now, g.underWay[k]); at.Before(next) {
			next = at
		}
	}
	return next
}

// dueLimit is a limit to ask for.
type dueLimit struct {
	key     Key
	at      time.Time
	permits int
	first   bool // no call can wait for it
}

// Ask returns what to ask for now: for the sink and the shares of calls under way first, because a
// share that lapses counts no more, and then for the limits that have waited longest (O14, O15).
func (g *Gate) Ask(now time.Time) (q Question) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var due []dueLimit
	for k, l := range g.limits {
		n := g.underWay[k]
		at, permits := l.askAt(now, n)
		if now.Before(at) {
			continue
		}
		shareDue := l.bounded && n > 0 && !now.Before(l.dueAt(now, n))
		due = append(due, dueLimit{k, at, permits, k == All || shareDue})
	}
	slices.SortFunc(due, func(a, b dueLimit) int {
		return cmp.Or(rank(a)-rank(b), a.at.Compare(b.at))
	})
	for _, d := range due[:min(len(due), maxAsked)] {
		q.add(g, d.key, d.permits, now)
	}
	return q
}

func rank(d dueLimit) int {
	if d.first {
		return 0
	}
	return 1
}

// Answer takes in the answer to a question that was sent at a time. If more calls may be started,
// the lanes are to be woken.
func (g *Gate) Answer(q Question, grants []Grant, asked time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	parts := map[Key]Part{}
	for _, p := range q.Parts {
		parts[p.Key] = p
		l := g.limits[p.Key]
		if l == nil {
			continue
		}
		l.asked = asked // if the rate is gone
		if p.Permits > 0 {
			l.takeAt = asked.Add(permitRetryMax)
		}
	}
	more := false
	for _, grant := range grants {
		p, is := parts[grant.Key]
		l := g.limits[grant.Key]
		if !is || l == nil {
			continue
		}
		before := l.share.n
		if grant.Shared && l.share.granted(q.Number, grant.Share, p.Held, asked) {
			more = more || l.share.n > p.Held || before == 0 && l.share.n > 0
		}
		if p.Permits > 0 && l.receive(grant, asked) {
			more = true
		}
	}
	if more {
		g.regain()
	}
}

// receive takes in permits, and reports whether there are some.
func (l *limit) receive(grant Grant, asked time.Time) bool {
	if !asked.Before(l.lapse) {
		l.permits = 0
	}
	if grant.Permits > 0 || grant.Wait > 0 { // else there is no rate any more
		l.takeAt = asked.Add(min(max(grant.Wait, permitRetryMin), permitRetryMax))
	}
	if grant.Permits == 0 {
		return false
	}
	l.permits += grant.Permits
	l.lapse = asked.Add(permitLife)
	l.wanted = 0
	return true
}

// AskedForShares reports whether the relay has asked for shares, and returns whose calls are under
// way: those shares it keeps. A question whose answer was lost counts, because the database may
// have given what it asked for.
func (g *Gate) AskedForShares() (asked bool, busy []Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.limits {
		asked = asked || l.number > 0
	}
	for k := range g.underWay {
		busy = append(busy, k)
	}
	return asked, busy
}
