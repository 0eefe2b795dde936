package operate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// TopicSum adds up the cursors of one scope and topic, and the reports of living processes about
// them.
type TopicSum struct {
	Scope      string
	Topic      string
	Partitions int      // in use
	Owned      int      // of those, that a living process owns
	Lag        int64    // messages between positions and the log's ends
	AtLeast    bool     // Lag has partitions without an owner, whose log's end is as it was last reported
	LastBatch  *float64 // age of the latest batch in seconds; nil: none since the processes own them

	Halted    int // partitions, as are the following
	Waiting   int
	Paused    int
	Replaying int
	Retired   int
}

// Topics adds up the cursors and the reports of living processes, by scope and topic.
func Topics(r *ops.StatusReport) (all []TopicSum) {
	var sums []*TopicSum
	find := func(scope, topic string) *TopicSum {
		for _, s := range sums {
			if s.Scope == scope && s.Topic == topic {
				return s
			}
		}
		sums = append(sums, &TopicSum{Scope: scope, Topic: topic})
		return sums[len(sums)-1]
	}
	// the log's ends
	owned := r.Owned()
	reported := map[ops.CursorName]int64{}
	for i := range r.Owners {
		o := &r.Owners[i]
		for j := range o.Partitions {
			p := &o.Partitions[j]
			at := ops.CursorName{Scope: o.Scope, Topic: p.Topic, Partition: p.Partition}
			reported[at] = max(reported[at], p.HighWatermark)
		}
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		s := find(c.Scope, c.Topic)
		if c.RetiredAt != nil {
			s.Retired++
			continue
		}
		s.Partitions++
		if c.Paused != nil {
			s.Paused++
		}
		if c.ReplayUntil != nil {
			s.Replaying++
		}
		at := ops.CursorName{Scope: c.Scope, Topic: c.Topic, Partition: c.Partition}
		if end := reported[at]; owned[at] == nil && end > c.Position {
			s.Lag = s.Lag + end - c.Position
			s.AtLeast = true
		}
	}
	for i := range r.Owners {
		o := &r.Owners[i]
		for j := range o.Partitions {
			if p := &o.Partitions[j]; owned[ops.CursorName{
				Scope:     o.Scope,
				Topic:     p.Topic,
				Partition: p.Partition,
			}] == p {
				find(o.Scope, p.Topic).add(p, o.SeenAgeSeconds)
			}
		}
	}
	for _, s := range sums {
		s.Partitions = max(s.Partitions, s.Owned) // a halted partition may have no cursor yet
		all = append(all, *s)
	}
	return all
}

func (s *TopicSum) add(p *ops.OwnedPartition, seen float64) {
	s.Owned++
	s.Lag += p.Lag
	if p.Halted != "" {
		s.Halted++
	}
	if p.WaitingFor > 0 {
		s.Waiting++
	}
	if p.LastBatchAge != nil {
		if age := *p.LastBatchAge + seen; s.LastBatch == nil || age < *s.LastBatch {
			s.LastBatch = &age
		}
	}
}

// State counts the partitions that do not work as usual, for example "1 halted, 2 paused".
func (s *TopicSum) State() string {
	var parts []string
	for _, c := range []struct {
		count int
		name  string
	}{
		{s.Halted, "halted"},
		{s.Waiting, "waiting"},
		{s.Paused, "paused"},
		{s.Replaying, "replaying"},
		{s.Retired, "retired"},
	} {
		if c.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.count, c.name))
		}
	}
	return strings.Join(parts, ", ")
}

// OwnedOf is how many of the partitions a living process owns.
func (s *TopicSum) OwnedOf() string { return fmt.Sprintf("%d of %d", s.Owned, s.Partitions) }

// LagText is the lag, empty if it is not known.
func (s *TopicSum) LagText() string {
	switch {
	case s.AtLeast:
		return fmt.Sprintf("%d or more", s.Lag)
	case s.Owned == 0:
		return ""
	}
	return fmt.Sprint(s.Lag)
}

// Process is a part of a process, for example a consumer, and what it says of itself.
type Process struct {
	What string // of a consumer its scope, of another part what it is and its name
	*ops.Owner
	Reported  string
	Owns      int
	Lag       int64
	LastBatch *float64
	Halted    int
	Kinds     string
}

// Processes are the living processes, and those silent for at most 5 minutes.
func Processes(r *ops.StatusReport) (all []Process) {
	for _, o := range r.Processes() {
		p := Process{
			What:     o.Scope,
			Owner:    o,
			Owns:     len(o.Partitions),
			Reported: show.Ago(o.SeenAgeSeconds) + " ago",
			Kinds:    faultKinds(o),
		}
		if o.Part != "consumer" {
			p.What = strings.TrimSpace(o.Part + " " + o.Scope)
		}
		if o.Silent() {
			p.Reported += " (silent)"
		}
		var sum TopicSum
		for i := range o.Partitions {
			sum.add(&o.Partitions[i], o.SeenAgeSeconds)
		}
		p.Lag = sum.Lag
		p.LastBatch = sum.LastBatch
		p.Halted = sum.Halted
		all = append(all, p)
	}
	return all
}

// SinkSum is a sink's calls that are not delivered, and the relays that send them.
type SinkSum struct {
	Sink        string
	Undelivered *int64 // that are not delivered; nil: not counted
	Retrying    *int64
	Blocked     *int64
	Oldest      *float64
	Relays      int64
	Lanes       string
	State       string
	LastError   *string
}

// Sinks are the sinks that a relay lists or that have calls, and how many calls are not delivered.
func Sinks(r *ops.StatusReport) (sinks []SinkSum, pending int64) {
	for _, l := range r.Relays {
		s := SinkSum{Sink: l.Sink, Relays: l.Members, Lanes: fmt.Sprintf("%d of %d", l.LanesHeld, l.Lanes)}
		if r.OutboxCounted {
			s.Undelivered = new(int64)
			s.Retrying = new(int64)
			s.Blocked = new(int64)
		}
		if l.PausedAt != nil {
			s.State = "paused since " + show.Instant(*l.PausedAt)
		}
		sinks = append(sinks, s)
	}
	for i := range r.Outbox {
		o := &r.Outbox[i]
		pending += o.Count
		at := slices.IndexFunc(sinks, func(s SinkSum) bool { return s.Sink == o.Sink })
		if at < 0 {
			at = len(sinks)
			sinks = append(sinks, SinkSum{Sink: o.Sink, State: "no relay lists it"})
		}
		s := &sinks[at]
		s.Undelivered = &o.Count
		s.Retrying = &o.Retrying
		s.Blocked = &o.Blocked
		s.Oldest = o.OldestAgeSeconds
		s.LastError = o.LastError
	}
	slices.SortFunc(sinks, func(a, b SinkSum) int { return strings.Compare(a.Sink, b.Sink) })
	return sinks, pending
}
