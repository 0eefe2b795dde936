package ops

import (
	"fmt"
	"strings"
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

	Halted, Waiting, Paused, Replaying, Retired int // partitions
}

// Topics adds up the cursors and the reports of living processes, by scope and topic.
func (r *StatusReport) Topics() []*TopicSum {
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
	}
	for _, p := range living(r.Owners) {
		find(p.scope, p.Topic).add(p.OwnedPartition, p.seen)
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		if end := r.lastEnd(c); c.RetiredAt == nil && end > c.Position {
			s := find(c.Scope, c.Topic)
			s.Lag, s.AtLeast = s.Lag+end-c.Position, true
		}
	}
	for _, s := range sums {
		s.Partitions = max(s.Partitions, s.Owned) // a halted partition may have no cursor yet
	}
	return sums
}

// lastEnd is the log's end as silent processes have reported it last, 0 if a living one reports the
// partition or none has.
func (r *StatusReport) lastEnd(c *Cursor) (end int64) {
	for i := range r.Owners {
		o := &r.Owners[i]
		for j := range o.Partitions {
			if p := &o.Partitions[j]; o.Scope == c.Scope && p.Topic == c.Topic && p.Partition == c.Partition {
				if !o.Silent() {
					return 0
				}
				end = max(end, p.HighWatermark)
			}
		}
	}
	return end
}

func (s *TopicSum) add(p *OwnedPartition, seen float64) {
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
	}{{s.Halted, "halted"}, {s.Waiting, "waiting"}, {s.Paused, "paused"}, {s.Replaying, "replaying"}, {s.Retired, "retired"}} {
		if c.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.count, c.name))
		}
	}
	return strings.Join(parts, ", ")
}
