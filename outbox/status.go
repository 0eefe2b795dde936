package outbox

import "time"

// SinkStatus is what a relay does for one sink.
type SinkStatus struct {
	Sink string
	// Lanes is how many of the sink's 16 lanes this relay holds.
	Lanes int
	// UnderWay is how many calls, completions and reconciliations are under way in this relay, of
	// at most Concurrency. While a lane looks for calls that are due, those that it may take count
	// too, for example all that are free for a moment.
	UnderWay, Concurrency int
	// Paused is true if an operator has paused the sink.
	Paused bool
	// Open is true if calls may be started: the sink is not paused, and its remote does not hold
	// all of its calls ([HoldsSink]).
	Open bool
	// Failing is the error of the relay's transactions for the sink, or of a lane of it, which are
	// tried again, and FailingSince is when that began. It wraps ErrRebase if a lane has halted.
	// Nil if they work.
	Failing      error
	FailingSince time.Time
}

// Status returns what this relay does, for each of RelayConfig.Sinks in their order. It asks
// nothing of the database, and may be called at any time. What is pending, in all processes, is in
// ops.Sinks and `onlyonce outbox status`.
func (r *Relay) Status() []SinkStatus {
	all := make([]SinkStatus, len(r.senders))
	for i, s := range r.senders {
		all[i] = SinkStatus{Sink: s.name, Lanes: int(s.lanesHeld.Load()), UnderWay: s.slots.inUse(), Concurrency: s.slots.capacity,
			Paused: s.slots.paused.Load(), Open: s.slots.open()}
		if all[i].FailingSince, all[i].Failing = s.link.Trouble(); all[i].Failing == nil {
			all[i].FailingSince, all[i].Failing = s.halts.first()
		}
	}
	return all
}
