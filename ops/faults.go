package ops

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// Kinds of [Fault]. Consumers report the first five, and other parts those up to faultStore.
const (
	faultGroup    = "group"     // processes are no members of their group
	faultRead     = "read"      // cursors or logs cannot be read: brokers or the database are away
	faultTopic    = "topic"     // the topic does not exist
	faultApply    = "apply"     // messages cannot be applied, and are tried again
	faultHandler  = "handler"   // a handler does not return
	faultRemote   = "remote"    // relays: no call to the sink is delivered
	faultRefused  = "refused"   // relays: nearly all calls to the sink are refused alike, and wait
	faultHalted   = "halted"    // relays: a lane stands still until an operator has decided
	faultStuck    = "stuck"     // relays: calls do not return
	faultDatabase = "database"  // relays: transactions fail
	faultReceive  = "receive"   // receivers: nothing is received: the broker, or the database, is away
	faultFull     = "full"      // receivers: the broker's queue takes no more messages
	faultStore    = "store"     // endpoints: no event is stored
	faultSecret   = "secret"    // layers: a process has another secret than those before it
	faultGone     = "gone"      // a part was killed, and none like it runs
	faultUnowned  = "unowned"   // partitions have no owner although processes live
	faultReadOnly = "read-only" // the database takes no writes
)

// Fault is a present problem that keeps processes from their work (S3). It ends with its cause.
type Fault struct {
	Kind string `json:"kind"`
	// the part that has it: consumer, relay, receiver, endpoint or layer; empty: the database
	Part string `json:"part" doc:"above"`
	// of a relay: a sink; of a receiver or an endpoint: its name; empty: the whole database
	Scope      string  `json:"scope" doc:"above"`
	Topic      string  `json:"topic" doc:"empty: all topics, or not known"`
	Processes  int     `json:"processes"`
	Partitions int     `json:"partitions"`
	For        float64 `json:"for" doc:"seconds, of the oldest"`
	Text       string  `json:"text"`

	// Late is how many more processes have reported lately, but not when they should have.
	Late int `json:"late,omitempty"`

	// Of kind remote: the calls to the sink that are not delivered, wherever they wait.
	Calls  int64   `json:"calls,omitempty"`
	Oldest float64 `json:"oldest,omitempty" doc:"seconds since the oldest of them was enqueued"`
}

// unownedAfter is how many seconds a partition may have no owner: it changes hands.
const unownedAfter = 5

// findFaults adds up what living processes report, by scope, kind and topic, and adds what only
// the database shows (S3).
func (r *StatusReport) findFaults(readOnly bool) []Fault {
	all := []Fault{}
	add := func(f Fault) {
		at := slices.IndexFunc(all, func(o Fault) bool {
			return o.Part == f.Part && o.Scope == f.Scope && o.Kind == f.Kind && o.Topic == f.Topic
		})
		if at < 0 {
			all = append(all, f)
			return
		}
		o := &all[at]
		o.Processes += f.Processes
		o.Partitions += f.Partitions
		if f.For > o.For {
			o.For = f.For
			o.Text = f.Text
		}
	}
	alive := map[string]int{}
	late := map[string]int{}
	inUse := map[[2]string]bool{}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		inUse[[2]string{c.Scope, c.Topic}] = inUse[[2]string{c.Scope, c.Topic}] || c.RetiredAt == nil
	}
	for i := range r.Owners {
		o := &r.Owners[i]
		if o.Silent() {
			continue
		}
		if !r.ended(o) { // else another one has begun in its place
			alive[o.Scope]++
			if o.SeenAgeSeconds > overdue.Seconds() {
				late[o.Scope]++
			}
		}
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
			add(Fault{
				Kind:       faultUnowned,
				Part:       presence.Consumer,
				Scope:      c.Scope,
				Topic:      c.Topic,
				Partitions: 1,
				For:        max(*age, 0),
				Text:       "no process works on it",
			})
		}
	}
	for _, f := range r.faultsOfParts() {
		add(f)
	}
	for i := range all {
		if all[i].Kind == faultUnowned {
			all[i].Processes = alive[all[i].Scope] - late[all[i].Scope]
			all[i].Late = late[all[i].Scope]
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

// faultsOfParts returns what keeps relays, receivers, endpoints and layers from their work, by
// their own report, and those that were killed if no other one runs. A part that stops in order
// leaves no row.
func (r *StatusReport) faultsOfParts() (all []Fault) {
	type name struct{ part, scope string }
	alive := map[name]bool{}
	last := map[name]*Owner{}
	var order []name
	for i := range r.Parts {
		o := &r.Parts[i]
		of := name{o.Part, o.Scope}
		if math.Abs(o.SeenAgeSeconds) <= overdue.Seconds() {
			alive[of] = true
			for _, f := range o.Faults {
				f.For += o.SeenAgeSeconds
				all = append(all, f)
			}
		}
		if last[of] == nil {
			order = append(order, of)
		}
		if last[of] == nil || o.SeenAt.After(last[of].SeenAt) {
			last[of] = o
		}
	}
	for _, of := range order {
		if o := last[of]; !alive[of] && o.SeenAgeSeconds > 0 {
			all = append(all, Fault{
				Kind:      faultGone,
				Part:      of.part,
				Scope:     of.scope,
				Processes: 1,
				For:       o.SeenAgeSeconds,
				Text:      fmt.Sprintf("the last report is of %s, pid %d", o.Host, o.PID),
			})
		}
	}
	return all
}

// countUndelivered adds the number of waiting calls to the relays' reports of a remote. Without any
// there is no fault: the relay does not know that the last one was given up. A sink that an
// operator has paused sends nothing.
func (r *StatusReport) countUndelivered() {
	r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool {
		return f.Kind == faultRemote &&
			slices.ContainsFunc(r.Relays, func(s reports.SinkRelays) bool {
				return s.Sink == f.Scope && s.PausedAt != nil
			})
	})
	for i := range r.Faults {
		f := &r.Faults[i]
		at := slices.IndexFunc(r.Outbox, func(o reports.PendingCalls) bool { return o.Sink == f.Scope })
		if f.Kind != faultRemote || at < 0 {
			continue
		}
		o := &r.Outbox[at]
		f.Calls = o.Count
		if o.OldestAgeSeconds != nil {
			f.Oldest = *o.OldestAgeSeconds
		}
	}
	if r.OutboxCounted {
		r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool { return f.Kind == faultRemote && f.Calls == 0 })
	}
}

// unownedFor returns how many seconds a partition has had no owner: since its owner released it, or
// reported for the last time. Nil: it has one, which may not have reported it yet.
func (r *StatusReport) unownedFor(c *Cursor) *float64 {
	age := c.ReleasedAge
	for i := range r.Owners {
		o := &r.Owners[i]
		if o.Scope != c.Scope ||
			!slices.ContainsFunc(o.Partitions, func(p OwnedPartition) bool {
				return p.Topic == c.Topic && p.Partition == c.Partition
			}) {
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
		n := Need{
			Kind:     needFault,
			Text:     f.String(),
			Remedy:   faultRemedies[f.Kind],
			Commands: []string{},
			Where:    map[string]string{},
		}
		if f.Kind == faultRead && (names.IsReceived(f.Topic) || names.IsReceiver(f.Scope)) {
			n.Remedy = "check that the database answers, which has the events; the process continues by itself"
		}
		switch {
		case f.Part == presence.Relay:
			n.Where["sink"] = f.Scope
			n.Commands = append(n.Commands, "onlyonce outbox status -sink "+show.Quote(f.Scope))
		case f.Part == presence.Consumer && f.Scope != "":
			n.Where["scope"] = f.Scope
		}
		if f.Topic != "" {
			n.Where["topic"] = f.Topic
		}
		if f.Kind == faultTopic {
			n.Commands = append(
				n.Commands,
				fmt.Sprintf("onlyonce cursor retire -scope %s -topic %s -reason WHY",
					show.Quote(f.Scope), show.Quote(f.Topic)),
			)
		}
		all = append(all, n)
	}
	return all
}

var faultRemedies = map[string]string{
	faultGroup: "check that the brokers answer, and that the group admits the process; it continues by itself",
	faultRead:  "check that the brokers answer; the process continues by itself",
	faultTopic: "if it was deleted by mistake, create it again, and its partitions say how to go on; " +
		"otherwise remove it from the consumer's topics, and retire its cursors",
	faultApply:   "see the log of the process: the message is tried again until it is applied or parked",
	faultHandler: "restart the process: only that frees the handler's goroutine",
	faultRemote: "check that the remote answers, and that its address and credentials are right; the calls " +
		"then go out by themselves, each under its key",
	faultRefused: "see why the remote refuses them, for example an expired token; when one is delivered, the " +
		"others follow by themselves",
	faultHalted: "run the command that the text names",
	faultStuck: "restart the relay: only that frees the sink's goroutines; the calls are sent again " +
		"under their keys",
	faultDatabase: "see the log of the relay: it tries again",
	faultReceive: "check that the broker and the database answer; the receiver continues by itself, and the " +
		"broker keeps the messages meanwhile",
	faultFull: "make room, or raise the limit at the broker: it refuses new messages, and producers must " +
		"send them again; a full queue that is being read gets room by itself",
	faultStore: "check that the database answers; senders deliver the events again",
	faultSecret: "give the process the secret that it had, or give the new secret an id of its own in " +
		"FingerprintKeys and keep the old one for the longest TTL",
	faultGone:    "see why it ended without a stop, and start it; if it is out of use, this line goes after a day",
	faultUnowned: "see whether processes join the group; if the topic is out of use, retire its cursors",
	faultReadOnly: "nothing is applied, and no process can report: let the database take writes, or connect " +
		"to the primary",
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
	if f.Part != presence.Consumer && f.Part != "" {
		return f.ofPart(processes, since, text)
	}
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
		return fmt.Sprintf("no owner: scope %s, %s, although %s%s", f.Scope, partitions, f.running(processes), since)
	case faultReadOnly:
		return "the database is read-only: " + text
	}
	return fmt.Sprintf("%s: scope %s, %s%s: %s", f.Kind, f.Scope, processes, since, text)
}

// running says which processes run although a partition has no owner. A process that was killed
// counts for a while as one that is late.
func (f *Fault) running(processes string) string {
	run := processes + " run"
	if f.Processes == 1 {
		run += "s"
	}
	late := show.Count(int64(f.Late), "process")
	if f.Late != 1 {
		late = fmt.Sprintf("%d processes", f.Late)
	}
	switch {
	case f.Late == 0:
		return run
	case f.Processes == 0:
		return fmt.Sprintf("%s reported until a moment ago", late)
	}
	return fmt.Sprintf("%s, and %s reported until a moment ago", run, late)
}

// partNames are what the parts of processes are called before their scope.
var partNames = map[string]string{
	presence.Relay:    "sink ",
	presence.Receiver: "receiver of queue ",
	presence.Endpoint: "endpoint ",
	presence.Layer:    "HTTP layer",
}

// ofPart describes a problem of a relay, a receiver, an endpoint or a layer.
func (f *Fault) ofPart(processes, since, text string) string {
	whose := partNames[f.Part] + f.Scope
	switch f.Kind {
	case faultRemote:
		waiting := ""
		if f.Calls > 0 {
			waiting = fmt.Sprintf(", %s not delivered, the oldest for %s",
				show.Count(f.Calls, "call"), show.Ago(f.Oldest))
		}
		return fmt.Sprintf("cannot deliver: %s%s: %s (%s%s)", whose, waiting, text, processes, since)
	case faultRefused:
		return fmt.Sprintf("calls are refused: %s, %s%s: %s", whose, processes, since, text)
	case faultReceive:
		return fmt.Sprintf("cannot receive: %s, %s%s: %s", whose, processes, since, text)
	case faultFull:
		return fmt.Sprintf("the queue is full: %s, %s%s: %s", whose, processes, since, text)
	case faultStore:
		return fmt.Sprintf("cannot store: %s, %s%s: %s", whose, processes, since, text)
	case faultSecret:
		return "wrong secret: HTTP layer: " + text
	case faultGone:
		if f.Part == presence.Relay {
			whose = "relay of " + whose
		}
		return fmt.Sprintf("not running: %s was killed, or cannot reach this database: %s, %s ago",
			whose, text, show.Ago(f.For))
	}
	return fmt.Sprintf("%s: %s, %s%s: %s", f.Kind, whose, processes, since, text)
}
