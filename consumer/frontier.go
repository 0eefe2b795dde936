package consumer

import (
	"time"
)

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
