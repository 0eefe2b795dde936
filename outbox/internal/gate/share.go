package gate

import "time"

// A relay's share is its own for shareLife, by its own clock. It asks again every shareRenew, and
// every shareRetry while it has none, or has no call under way. It asks at once, but not more often
// than every shareSoon, when it wants more, and when a call has returned for which others wait.
const (
	shareLife  = 10 * time.Second // as onlyonce.take_share has it
	shareRenew = 1 * time.Second
	shareRetry = 250 * time.Millisecond
	shareSoon  = 50 * time.Millisecond
)

// share is a relay's part of the calls of a sink, a tenant or a prefix that may be under way at
// once in all relays (O15). The database has the parts of all, and their sum is the number that was
// set. The zero value is of a relay that has not asked yet.
type share struct {
	bounded bool // a number is set
	n       int
	lapse   time.Time
	asked   time.Time // zero: never
	short   time.Time // until when more is wanted
	soon    bool      // it is to ask at once
	debt    bool      // the database still counts more than n, because so many were under way
	peak    int       // most calls under way since it asked
	number  int64     // of the last question; 0: there was none
	wanted  int       // what it asked for
}

// may is how many calls may be under way.
func (s *share) may(now time.Time) int {
	if now.Before(s.lapse) {
		return s.n
	}
	return 0
}

// wantMore notes that calls wait for a larger share, and reports whether that is new.
func (s *share) wantMore(now time.Time, shortFor time.Duration) (fresh bool) {
	fresh = !now.Before(s.short)
	s.short = now.Add(shortFor)
	s.soon = s.soon || fresh
	return fresh
}

// dueAt returns when to ask the database.
func (s *share) dueAt(now time.Time, underWay int) time.Time {
	short := now.Before(s.short)
	idle := s.n == 0 && underWay == 0 && s.wanted == 0
	switch {
	case s.asked.IsZero() && (short || underWay > 0):
		return time.Time{}
	case s.asked.IsZero():
		return never
	case s.soon, s.owes(underWay):
		return s.asked.Add(shareSoon)
	case !short && idle: // else the database keeps a place for it
		return never
	case underWay == 0, short && s.n == 0:
		return s.asked.Add(shareRetry)
	}
	return s.asked.Add(shareRenew)
}

// owes reports whether the database counts calls that have returned, and others wait for them.
func (s *share) owes(underWay int) bool { return s.debt && underWay <= s.n }

// ask returns what to ask for: how many calls the relay may have under way until the answer, and
// how many it wants to have. Lanes ask beside each other, and a question may arrive late: only the
// answer to the last one counts, and the database ignores those before it (O15).
func (s *share) ask(number int64, now time.Time, underWay, capacity int) (held, wants int) {
	s.number = number
	wants = max(s.peak, underWay)
	if now.Before(s.short) {
		wants = max(capacity, underWay)
	}
	s.n = min(s.may(now), wants) // it gives up what it does not want, before the database knows
	s.peak = underWay
	s.soon = false
	s.wanted = wants
	return max(s.n, underWay), wants
}

// granted takes in the answer to a question that was asked at a time. It reports whether the answer
// counts.
func (s *share) granted(number int64, n, held int, asked time.Time) bool {
	if number != s.number {
		return false
	}
	s.n = n
	s.asked = asked
	s.lapse = asked.Add(shareLife)
	s.debt = n < held
	return true
}
