package gate

import (
	"math"
	"time"
)

// limit is a relay's state of the rate of a sink, of a tenant of it, or of a prefix.
type limit struct {
	limited   bool  // a rate is set
	prefix    int64 // of a prefix: its stored form
	heldUntil time.Time
	permits   int
	lapse     time.Time // when the permits do
	wanted    int       // permits that are wanted and not there
	takeAt    time.Time // when to ask the database for them

	share // of the calls that may be under way
}

// set notes which limits there are.
func (l *limit) set(limited, bounded bool) {
	if !bounded {
		l.share = share{}
	}
	l.limited = limited
	l.bounded = bounded
}

// used reports whether the relay may have something of it: permits or a share, or has asked for
// some.
func (l *limit) used(now time.Time) bool {
	return l.wanted > 0 || now.Before(l.lapse) || now.Before(l.short) || now.Before(l.share.lapse)
}

// needed reports whether calls need permits.
func (l *limit) needed() bool { return l.limited || l.bounded }

// take takes permits, and returns the grant that they are of.
func (l *limit) take(n int) permit {
	if !l.limited || n == 0 {
		return permit{}
	}
	l.permits -= n
	return permit{l.lapse}
}

// refund gives a permit back that was not used, unless another grant has come since: those of the
// one that it is of would lapse by now (O14).
func (l *limit) refund(p permit) {
	if l.limited && !p.lapse.IsZero() && p.lapse.Equal(l.lapse) {
		l.permits++
	}
}

// permit is one that was taken: it is of the grant that lapses then. The zero value is none.
type permit struct{ lapse time.Time }

// permitted is how many calls there are permits for.
func (l *limit) permitted(now time.Time) int {
	switch {
	case now.Before(l.heldUntil):
		return 0
	case !l.limited:
		return math.MaxInt
	case !now.Before(l.lapse):
		return 0
	}
	return l.permits
}

// available is how many calls may be started beside those that are under way (O15).
func (l *limit) available(now time.Time, underWay int) int {
	n := l.permitted(now)
	if l.bounded {
		n = min(n, max(l.may(now)-underWay, 0))
	}
	return n
}

// limitOf returns one of limits, which it makes if there is none.
func limitOf(limits map[Key]*limit, k Key) *limit {
	l := limits[k]
	if l == nil {
		l = &limit{}
		limits[k] = l
	}
	return l
}
