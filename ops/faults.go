package ops

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/internal/show"
)

// Kinds of [Fault]. Processes report the first five.
const (
	faultGroup    = "group"     // processes are no members of their group
	faultRead     = "read"      // cursors or logs cannot be read: brokers or the database are away
	faultTopic    = "topic"     // the topic does not exist
	faultApply    = "apply"     // messages cannot be applied, and are tried again
	faultHandler  = "handler"   // a handler does not return
	faultUnowned  = "unowned"   // partitions have no owner although processes live
	faultReadOnly = "read-only" // the database takes no writes
)

// Fault is a present problem that keeps processes from their work (S3). It ends with its cause.
type Fault struct {
	Kind       string  `json:"kind"`
	Scope      string  `json:"scope" doc:"empty: the whole database"`
	Topic      string  `json:"topic" doc:"empty: all topics, or not known"`
	Processes  int     `json:"processes"`
	Partitions int     `json:"partitions"`
	For        float64 `json:"for" doc:"seconds, of the oldest"`
	Text       string  `json:"text"`
}

// unownedAfter is for how many seconds a partition may have no owner: it changes hands.
const unownedAfter = 5

// findFaults adds up what living processes report, by scope, kind and topic, and adds what only
// the database shows (S3).
func (r *StatusReport) findFaults(readOnly bool) []Fault {
	all := []Fault{}
	add := func(f Fault) {
		at := slices.IndexFunc(all, func(o Fault) bool { return o.Scope == f.Scope && o.Kind == f.Kind && o.Topic == f.Topic })
		if at < 0 {
			all = append(all, f)
			return
		}
		o := &all[at]
		o.Processes += f.Processes
		o.Partitions += f.Partitions
		if f.For > o.For {
			o.For, o.Text = f.For, f.Text
		}
	}
	alive, inUse := map[string]int{}, map[[2]string]bool{}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		inUse[[2]string{c.Scope, c.Topic}] = inUse[[2]string{c.Scope, c.Topic}] || c.RetiredAt == nil
	}
	for i := range r.Owners {
		o := &r.Owners[i]
		if o.Silent() {
			continue
		}
		alive[o.Scope]++
		for _, f := range o.Faults {
			if used, known := inUse[[2]string{o.Scope, f.Topic}]; f.Kind == faultTopic && known && !used {
				continue // an operator has taken it out of use
			}
			f.For += o.SeenAgeSeconds
			add(f)
		}
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		if alive[c.Scope] == 0 || c.RetiredAt != nil || c.Paused != nil {
			continue
		}
		// An age below 0: the clock has been set back since.
		if age := r.unownedFor(c); age != nil && (*age < 0 || *age >= unownedAfter) {
			add(Fault{Kind: faultUnowned, Scope: c.Scope, Topic: c.Topic, Partitions: 1, For: max(*age, 0), Text: "no process works on it"})
		}
	}
	for i := range all {
		if all[i].Kind == faultUnowned {
			all[i].Processes = alive[all[i].Scope]
		}
	}
	if r.Standby && len(r.Owners) > 0 && len(alive) == 0 { // no replica that keeps up
		add(Fault{Kind: faultReadOnly, Text: "this server is a standby, and no process reports"})
	} else if readOnly {
		add(Fault{Kind: faultReadOnly, Text: "default_transaction_read_only is on"})
	}
	slices.SortStableFunc(all, func(a, b Fault) int { return cmp.Compare(a.Scope, b.Scope) })
	return all
}

// unownedFor returns for how many seconds a partition has had no owner: since its owner released
// it, or reported for the last time. Nil: it has one, which may not have reported it yet.
func (r *StatusReport) unownedFor(c *Cursor) *float64 {
	age := c.ReleasedAge
	for i := range r.Owners {
		o := &r.Owners[i]
		if o.Scope != c.Scope || !slices.ContainsFunc(o.Partitions, func(p OwnedPartition) bool { return p.Topic == c.Topic && p.Partition == c.Partition }) {
			continue
		}
		if !o.Silent() {
			return nil
		}
		if age == nil || o.SeenAgeSeconds < *age {
			age = &o.SeenAgeSeconds
		}
	}
	return age
}

// needsOf describes faults as needs.
func needsOf(faults []Fault) []Need {
	var all []Need
	for _, f := range faults {
		n := Need{Kind: needFault, Text: f.String(), Remedy: faultRemedies[f.Kind], Commands: []string{}, Where: map[string]string{}}
		if f.Scope != "" {
			n.Where["scope"] = f.Scope
		}
		if f.Topic != "" {
			n.Where["topic"] = f.Topic
		}
		if f.Kind == faultTopic {
			n.Commands = append(n.Commands, fmt.Sprintf("onlyonce cursor retire -scope %s -topic %s -reason WHY", show.Quote(f.Scope), show.Quote(f.Topic)))
		}
		all = append(all, n)
	}
	return all
}

var faultRemedies = map[string]string{
	faultGroup:    "see that the brokers answer, and that the group admits the process; it goes on by itself",
	faultRead:     "see that the brokers answer; it goes on by itself",
	faultTopic:    "if it was deleted by mistake, create it again, and its partitions say how to go on; otherwise take it out of the consumer's topics, and retire its cursors",
	faultApply:    "see the log of the process: the message is tried again until it is applied or parked",
	faultHandler:  "restart the process: only that frees the handler's goroutine",
	faultUnowned:  "see whether processes join the group; if the topic is out of use, retire its cursors",
	faultReadOnly: "nothing is applied, and no process can report: let the database take writes, or connect to the primary",
}

// String describes the problem, its place and its duration.
func (f *Fault) String() string {
	processes := show.Count(int64(f.Processes), "process")
	if f.Processes != 1 {
		processes = fmt.Sprintf("%d processes", f.Processes)
	}
	partitions := show.Count(int64(f.Partitions), "partition")
	if f.Topic != "" {
		partitions += " of " + f.Topic
	}
	since := ", for " + show.Ago(f.For)
	text := show.OneLine(f.Text)
	switch f.Kind {
	case faultGroup:
		return fmt.Sprintf("cannot join: scope %s, %s%s: %s", f.Scope, processes, since, text)
	case faultRead:
		return fmt.Sprintf("cannot read: scope %s, %s (%s)%s: %s", f.Scope, partitions, processes, since, text)
	case faultTopic:
		return fmt.Sprintf("no such topic: scope %s, %s (%s)%s: %s", f.Scope, partitions, processes, since, text)
	case faultApply:
		return fmt.Sprintf("cannot apply: scope %s, %s (%s)%s: %s", f.Scope, partitions, processes, since, text)
	case faultUnowned:
		return fmt.Sprintf("no owner: scope %s, %s, although %s run%s%s", f.Scope, partitions, processes, map[bool]string{true: "s"}[f.Processes == 1], since)
	case faultReadOnly:
		return "the database is read-only: " + text
	}
	return fmt.Sprintf("%s: scope %s, %s%s: %s", f.Kind, f.Scope, processes, since, text)
}
