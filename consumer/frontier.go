package consumer

import "time"

// sampleEvery is how often the owner of a partition asks how far it is in the time of its log. Horizons are of hours and days.
const sampleEvery = 30 * time.Second

// seen is what a fetch that has returned tells of the log's end.
type seen struct {
	began time.Time // before it was sent
	end   int64     // high watermark
}

// sample is one look at the database's clock, and then at the end of the log. In this order: what was appended before the first lies below the second.
// (Records that were appended and are not replicated yet lie above the high watermark, for as long as replication is behind: seconds, where
// the horizon is days.) When the position has passed that end, the frontier is the sample's time (K6).
type sample struct {
	at    time.Time // by the database's clock, which each poll answers
	asked time.Time // when that answer was here; zero: there is no sample
	end   int64     // -1: no fetch that began behind asked has returned yet
	last  time.Time // when the latest frontier was written
}

// mark takes the next step of a sample, if it is there to be taken, with what a poll has answered. None of the steps waits.
func (r *retrier) mark(a polled) {
	s := &r.sample
	switch {
	case r.c.events: // keys of events are claimed when they are appended
	case a.noted:
		s.asked, s.last = time.Time{}, time.Now()
		r.asks.note(nil)
	case s.asked.IsZero():
		if s.last.IsZero() || time.Since(s.last) >= sampleEvery {
			s.at, s.asked, s.end = a.now, a.asked, -1
		}
	case s.at.After(a.now): // the clock went back: the database refuses that time until the clock is there again
		s.asked = time.Time{}
		r.asks.note(nil)
	case s.end < 0:
		if latest := r.state.seen.Load(); latest != nil && latest.began.After(s.asked) {
			s.end = latest.end
		}
	}
	if !s.asked.IsZero() && s.end >= 0 && r.state.position.Load() >= s.end {
		at := s.at
		r.asks.note(&at)
	}
}
