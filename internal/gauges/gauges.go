// Package gauges turns what Measure read from a database into values of metrics. onlyonce
// exporter and telemetry.Observe serve the same values, because both call it.
package gauges

import (
	"strconv"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// MostPartitions is up to how many partitions of a topic have values of their own in
// metrics.ConsumerLag and metrics.ConsumerStalled. A topic with more has one value for all, under
// the partition "all": the sum of the lags, and the longest time.
const MostPartitions = 100

// samples collects the samples of one database.
type samples struct {
	database string
	all      []metrics.Sample
}

func (s *samples) add(m *metrics.Metric, value float64, values ...string) {
	s.all = append(s.all, metrics.Sample{Metric: m, Values: append([]string{s.database}, values...), Value: value})
}

// Of returns the samples of one database, under a name for it. metrics.DatabaseUp and
// metrics.ObserveFailed are the caller's: they are about questions that had no answer too.
func Of(database string, m *Measures) []metrics.Sample {
	s := &samples{database: database}
	s.partitions(m.Status)
	s.lags(m.Status)
	s.scopes(m)
	s.faults(m.Status.Faults)
	s.parked(&m.Status.Parked)
	s.outbox(m)
	s.rings(m)
	for _, o := range m.Overdue {
		s.add(metrics.RetentionOverdue, o.Seconds, o.Rows)
	}
	s.add(metrics.HTTPOpen, float64(m.Status.Requests.Reconcile), "reconcile")
	s.add(metrics.HTTPOpen, float64(m.Status.Requests.Abandoned), "abandoned")
	s.add(metrics.OldestTransaction, orZero(m.OldestTransaction))
	return s.all
}

// faults adds what keeps processes from their work, and that the database takes writes.
func (s *samples) faults(all []ops.Fault) {
	readOnly := 0.0
	for _, f := range all {
		if f.Kind == "read-only" {
			readOnly = 1
			continue
		}
		s.add(metrics.Faults, float64(f.Processes), f.Part, f.Scope, f.Topic, f.Kind)
	}
	s.add(metrics.Faults, readOnly, "", "", "", "read-only")
}

// partitions counts the partitions in use by what they do.
func (s *samples) partitions(r *ops.StatusReport) {
	owned := r.Owned()
	type state struct{ scope, state, reason string }
	counts := map[state]int{}
	var order []state
	count := func(of state, n int) {
		if _, ok := counts[of]; !ok {
			order = append(order, of)
		}
		counts[of] += n
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		for _, always := range []string{"working", "halted", "unowned"} {
			count(state{c.Scope, always, ""}, 0) // so that an alert sees it rise from 0
		}
		at := ops.CursorName{Scope: c.Scope, Topic: c.Topic, Partition: c.Partition}
		p := owned[at]
		delete(owned, at)
		if p == nil && c.RetiredAt != nil {
			continue
		}
		what, reason := stateOf(p, c.Paused != nil)
		count(state{c.Scope, what, reason}, 1)
	}
	for at, p := range owned { // halted before it had a cursor
		what, reason := stateOf(p, false)
		count(state{at.Scope, what, reason}, 1)
	}
	for _, of := range order {
		s.add(metrics.ConsumerPartitions, float64(counts[of]), of.scope, of.state, of.reason)
	}
}

// stateOf returns what an owned partition does. Nil: no process owns it.
func stateOf(p *ops.OwnedPartition, paused bool) (state, reason string) {
	switch {
	case p != nil && p.Halted != "":
		return "halted", p.Halted
	case paused || p != nil && p.Paused:
		return "paused", ""
	case p == nil:
		return "unowned", ""
	case p.WaitingFor > 0:
		return "waiting", ""
	}
	return "working", ""
}

// lags adds the lag of each partition of processes that are alive.
func (s *samples) lags(r *ops.StatusReport) {
	type topic struct{ scope, name string }
	sizes := map[topic]int{}
	for _, o := range r.Owners {
		for _, p := range o.Partitions {
			sizes[topic{o.Scope, p.Topic}]++
		}
	}
	type total struct{ lag, stalled, blocked float64 }
	folded := map[topic]total{}
	owned := r.Owned()
	for i := range r.Owners {
		o := &r.Owners[i]
		for j := range o.Partitions {
			p := &o.Partitions[j]
			if owned[ops.CursorName{Scope: o.Scope, Topic: p.Topic, Partition: p.Partition}] != p {
				continue
			}
			at := topic{o.Scope, p.Topic}
			lag := float64(p.Lag)
			stalled := stalledFor(o, p)
			blocked := blockedFor(o, p)
			if sizes[at] > MostPartitions {
				folded[at] = total{
					folded[at].lag + lag,
					max(folded[at].stalled, stalled),
					max(folded[at].blocked, blocked),
				}
				continue
			}
			partition := strconv.Itoa(int(p.Partition))
			s.add(metrics.ConsumerLag, lag, o.Scope, p.Topic, partition)
			s.add(metrics.ConsumerStalled, stalled, o.Scope, p.Topic, partition)
			s.add(metrics.ConsumerBlocked, blocked, o.Scope, p.Topic, partition)
		}
	}
	for at, sum := range folded {
		s.add(metrics.ConsumerLag, sum.lag, at.scope, at.name, "all")
		s.add(metrics.ConsumerStalled, sum.stalled, at.scope, at.name, "all")
		s.add(metrics.ConsumerBlocked, sum.blocked, at.scope, at.name, "all")
	}
}

// stalledFor returns how long ago the partition's last commit was, if it has lag. If its owner has
// not committed yet, it counts from the owner's start.
func stalledFor(o *ops.Owner, p *ops.OwnedPartition) float64 {
	switch {
	case p.Lag == 0 || p.Paused:
		return 0
	case p.LastBatchAge != nil:
		return *p.LastBatchAge + o.SeenAgeSeconds
	}
	return o.SeenAt.Sub(o.StartedAt).Seconds() + o.SeenAgeSeconds
}

// blockedFor returns how long one message has held up the partition's position although later ones
// are done.
func blockedFor(o *ops.Owner, p *ops.OwnedPartition) float64 {
	if p.BlockedBy == nil {
		return 0
	}
	return p.BlockedBy.For + o.SeenAgeSeconds
}

// scopes adds what is known of each scope.
func (s *samples) scopes(m *Measures) {
	alive := map[string]int{}
	for i := range m.Status.Owners {
		if o := &m.Status.Owners[i]; !o.Silent() {
			alive[o.Scope]++
		}
	}
	counted := map[string]bool{}
	for i := range m.Status.Cursors {
		c := &m.Status.Cursors[i]
		if c.RetiredAt == nil && !counted[c.Scope] {
			counted[c.Scope] = true
			s.add(metrics.ConsumerProcesses, float64(alive[c.Scope]), c.Scope)
		}
	}
	for _, f := range m.Scopes {
		if f.Behind != nil {
			s.add(metrics.ConsumerFrontier, *f.Behind, f.Scope)
		}
	}
}

func (s *samples) parked(t *reports.ParkedTotals) {
	for i := range t.Groups {
		g := &t.Groups[i]
		sink := show.Text(g.Sink)
		s.add(metrics.Parked, float64(g.Count), g.Kind, g.Scope, sink, g.State, g.Reason)
		s.add(metrics.ParkedAge, g.OldestAgeSeconds, g.Kind, g.Scope, sink, g.State, g.Reason)
	}
}

// outbox adds what is known of each sink. A sink that only has calls and that no relay lists has
// them too.
func (s *samples) outbox(m *Measures) {
	oldest := map[string]float64{}
	pending := map[string]reports.PendingCalls{}
	unheld := map[string]float64{}
	var unlisted []string
	for _, o := range m.Oldest {
		oldest[o.Sink] = o.AgeSeconds
		if !o.Listed {
			unlisted = append(unlisted, o.Sink)
		}
	}
	for _, o := range m.Status.Outbox {
		pending[o.Sink] = o
		oldest[o.Sink] = max(oldest[o.Sink], orZero(o.OldestAgeSeconds))
	}
	for _, u := range m.Status.Unheld {
		unheld[u.Sink] = float64(u.Calls)
	}
	add := func(sink string, relays int64, paused bool) {
		s.add(metrics.OutboxOldest, oldest[sink], sink)
		if m.Status.OutboxCounted {
			o := pending[sink]
			s.add(metrics.OutboxPending, float64(o.Log), sink, "log")
			s.add(metrics.OutboxPending, float64(o.Retrying), sink, "retrying")
			s.add(metrics.OutboxPending, float64(o.Blocked), sink, "blocked")
			s.add(metrics.OutboxUnheld, unheld[sink], sink)
		}
		s.add(metrics.OutboxRelays, float64(relays), sink)
		s.add(metrics.OutboxPaused, oneIf(paused), sink)
	}
	for i := range m.Status.Relays {
		r := &m.Status.Relays[i]
		add(r.Sink, r.Members, r.PausedAt != nil)
	}
	for _, sink := range unlisted {
		add(sink, 0, false)
	}
	for _, w := range m.Windows {
		s.add(metrics.OutboxWindow, w.WindowSeconds, w.Sink)
		if w.LeftSeconds != nil {
			s.add(metrics.OutboxWindowLeft, *w.LeftSeconds, w.Sink)
		}
	}
}

func (s *samples) rings(m *Measures) {
	for _, r := range m.Rings {
		s.add(metrics.SegmentsFree, float64(r.Free), r.Ring)
		s.add(metrics.SegmentsSize, float64(r.Bytes), r.Ring)
	}
	for i := range m.Keys {
		k := &m.Keys[i]
		if k.Horizon == nil {
			continue
		}
		left := *k.Horizon / 7 // a ring opens a segment each seventh of its horizon
		for _, g := range k.Segments {
			if g.State == "current" && g.Opened != nil && g.Bytes > 0 {
				left -= *g.Opened
			}
		}
		s.add(metrics.InboxHorizonLeft, left, k.Ring)
	}
}

func orZero(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

// oneIf is the value of a gauge that says yes or no.
func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
