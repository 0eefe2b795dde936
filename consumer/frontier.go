package consumer

import "time"

// sampleEvery is how often the owner of a partition samples how far it is in the time of its log.
// Horizons are hours and days.
const sampleEvery = 30 * time.Second

// logEnd is what a completed fetch shows of the log's end.
type logEnd struct {
	began time.Time // before it was sent
	end   int64     // high watermark
}

// frontierSample is one reading of the database's clock, followed by one of the log's end. In this
// order, records that were appended before the clock was read are below the end. (Records that were
// appended but are not replicated yet are above the high watermark. Replication is late by seconds,
// while the horizon is days.) When the position has passed that end, the frontier is the sample's
// time (K6).
type frontierSample struct {
	at    time.Time // by the database's clock, from a poll's answer
	asked time.Time // when that answer arrived; zero: there is no sample
	end   int64     // -1: no fetch that began after asked has returned yet
	last  time.Time // when the latest frontier was written
}

// sampleFrontier takes the next step of a sample, if one is possible, with the answer of a poll. No
// step waits.
func (r *retrier) sampleFrontier(a pollAnswer) {
	s := &r.sample
	switch {
	case r.c.events: // keys of events are claimed when they are appended
	case a.frontierRecorded:
		s.asked, s.last = time.Time{}, time.Now()
		r.polled.setFrontier(nil)
	case s.asked.IsZero():
		if s.last.IsZero() || time.Since(s.last) >= sampleEvery {
			s.at, s.asked, s.end = a.clock, a.arrived, -1
		}
	// The clock went back: the database refuses that time until the clock has reached it.
	case s.at.After(a.clock):
		s.asked = time.Time{}
		r.polled.setFrontier(nil)
	case s.end < 0:
		if latest := r.state.lastLogEnd.Load(); latest != nil && latest.began.After(s.asked) {
			s.end = latest.end
		}
	}
	if !s.asked.IsZero() && s.end >= 0 && r.state.position.Load() >= s.end {
		at := s.at
		r.polled.setFrontier(&at)
	}
}
