package ops

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// Kinds of [Need], in the order in which they are listed.
const (
	needHalt     = "halt"     // a partition is halted
	needFault    = "fault"    // processes cannot work now (see Fault)
	needOffset   = "offset"   // an offset that another program committed to Kafka was ignored
	needCrash    = "crash"    // processes of a scope end again and again
	needConsumer = "consumer" // no process works on a scope
	needParked   = "parked"   // parked rows wait for an operator
	needRelay    = "relay"    // calls are to be sent, and no relay sends them, or those of some lanes
	needRequest  = "request"  // HTTP requests wait for an operator
	needClock    = "clock"    // parked rows got their due time while the database's clock was ahead
)

// Need is work that continues only after a person's action, or a fault that a person should know
// now (needFault).
type Need struct {
	Kind     string   `json:"kind" doc:"halt, fault, offset, crash, consumer, parked, relay, request or clock"`
	Text     string   `json:"text" doc:"the problem, in one sentence"`
	Remedy   string   `json:"remedy" doc:"what to do, in words. Empty: the commands say it"`
	Commands []string `json:"commands" doc:"for a POSIX shell, in their order. WHY, OFFSET and ID are to be filled in"`
	// Where names what it is about: the fields that apply of scope, topic, partition, sink, kind
	// and state.
	Where map[string]string `json:"-"`
}

// mostCommands is how many halted partitions are listed with a command each.
const mostCommands = 3

// needs finds what needs a person, halts first.
func (r *StatusReport) needs() []Need {
	return append(
		[]Need{},
		slices.Concat(
			r.halts(),
			needsOf(r.Faults),
			r.ignored(),
			r.crashes(),
			r.consumers(),
			r.waiting(),
			r.unsent(),
			r.requests(),
			r.timedAhead(),
		)...,
	)
}

// halts groups the halted partitions of a topic that are halted for one reason.
func (r *StatusReport) halts() []Need {
	var groups [][]livingPartition
	for _, h := range living(r.Owners) {
		if h.Halted == "" {
			continue
		}
		at := slices.IndexFunc(groups, func(g []livingPartition) bool {
			return g[0].scope == h.scope && g[0].Topic == h.Topic && g[0].Halted == h.Halted
		})
		if at < 0 {
			at = len(groups)
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], h)
	}
	var all []Need
	for _, g := range groups {
		slices.SortFunc(g, func(a, b livingPartition) int { return int(a.Partition) - int(b.Partition) })
		all = append(all, needOfHalt(g))
	}
	return all
}

// needOfHalt describes partitions of one topic that are halted for one reason.
func needOfHalt(g []livingPartition) Need {
	first := g[0]
	n := Need{
		Kind:     needHalt,
		Commands: []string{},
		Where:    map[string]string{"scope": first.scope, "topic": first.Topic},
	}
	var age float64
	var numbers []string
	for _, h := range g {
		age = max(age, h.HaltedFor+h.seen)
		numbers = append(numbers, strconv.Itoa(int(h.Partition)))
	}
	n.Remedy = first.Remedy
	if len(g) == 1 {
		n.Where["partition"] = numbers[0]
		n.Text = fmt.Sprintf("halted: scope %s, %s/%d, %s for %s: %s",
			first.scope,
			first.Topic,
			first.Partition,
			first.Halted,
			show.Ago(age),
			show.OneLine(first.Detail))
		n.Commands = append(n.Commands, first.Commands...)
		return n
	}
	n.Text = fmt.Sprintf(
		"halted: scope %s, %d partitions of %s (%s), %s for %s; partition %d: %s",
		first.scope,
		len(g),
		first.Topic,
		strings.Join(numbers, ", "),
		first.Halted,
		show.Ago(age),
		first.Partition,
		show.OneLine(first.Detail),
	)
	if len(first.ForTopic) > 0 &&
		!slices.ContainsFunc(g, func(p livingPartition) bool { return !slices.Equal(p.ForTopic, first.ForTopic) }) {
		n.Commands = append(n.Commands, first.ForTopic...)
		return n
	}
	for _, h := range g[:min(len(g), mostCommands)] {
		n.Commands = append(n.Commands, h.Commands...)
	}
	if left := len(g) - mostCommands; left > 0 {
		n.Remedy += fmt.Sprintf("; the same for %s more", show.Count(int64(left), "partition"))
	}
	return n
}

// ignoredWithin is how long an ignored offset is shown: the process may own the partition for
// months.
const ignoredWithin = time.Hour

// ignored finds the topics of which another program had reset or committed offsets in Kafka.
func (r *StatusReport) ignored() []Need {
	var all []Need
	at := map[CursorName]int{}
	more := map[CursorName]int64{}
	for _, p := range living(r.Owners) {
		g := p.Ignored
		if g == nil || g.For+p.seen > ignoredWithin.Seconds() {
			continue
		}
		passed := g.Offset > g.Position && g.Offset <= p.Position
		if passed {
			continue
		}
		topic := CursorName{Scope: p.scope, Topic: p.Topic}
		i, known := at[topic]
		if !known {
			i = len(all)
			at[topic] = len(all)
			all = append(all, Need{
				Kind:     needOffset,
				Where:    map[string]string{"scope": p.scope, "topic": p.Topic},
				Commands: []string{},
				Text: fmt.Sprintf("offset ignored: scope %s, %s/%d: another program set it to %d in Kafka, "+
					"%s ago; the position in the database counts, and was %d", p.scope, p.Topic,
					p.Partition, g.Offset, show.Ago(g.For+p.seen), g.Position),
				Remedy: "if that was meant (otherwise nothing: this line goes after an hour)",
			})
		}
		if len(all[i].Commands) == mostCommands {
			more[topic]++
			continue
		}
		// messages are handled again
		verb := "replay"
		flag := "-from"
		if g.Offset > g.Position {
			// they are skipped
			verb = "cursor adopt"
			flag = "-at"
		}
		all[i].Commands = append(
			all[i].Commands,
			fmt.Sprintf("onlyonce %s -scope %s -topic %s -partition %d %s %d -reason WHY",
				verb, show.Quote(p.scope), show.Quote(p.Topic), p.Partition, flag, g.Offset),
		)
	}
	for topic, n := range more {
		all[at[topic]].Remedy += fmt.Sprintf("; the same for %s more", show.Count(n, "partition"))
	}
	return all
}

const (
	crashWithin = 10 * time.Minute // how long ago a process ended at most
	crashLife   = 2 * time.Minute  // how long it lived at most
	mostCrashes = 2                // how many may end so
	overdue     = 12 * time.Second // age of a report after which the next one, due after 10 s, does not come
)

// ended reports whether a process has ended although it is not silent yet: its next report is
// overdue, and another process of its scope has begun on its host since.
func (r *StatusReport) ended(o *Owner) bool {
	return o.Silent() || o.SeenAgeSeconds > overdue.Seconds() && slices.ContainsFunc(r.Owners, func(n Owner) bool {
		return n.Scope == o.Scope && n.Host == o.Host && n.StartedAt.After(o.SeenAt)
	})
}

// outlives reports whether a process that has begun after these ended lives for longer than any of
// them: what ended them is over.
func (r *StatusReport) outlives(ended []*Owner, last *Owner) bool {
	life := overdue
	for _, o := range ended {
		life = max(life, o.SeenAt.Sub(o.StartedAt)+overdue)
	}
	return slices.ContainsFunc(r.Owners, func(o Owner) bool {
		return o.Scope == last.Scope &&
			!r.ended(&o) &&
			o.StartedAt.After(last.SeenAt) &&
			o.SeenAt.Sub(o.StartedAt) > life
	})
}

// crashes finds scopes whose processes end soon after their start, without a stop.
func (r *StatusReport) crashes() []Need {
	ended := map[string][]*Owner{}
	for i := range r.Owners {
		o := &r.Owners[i]
		recently := o.SeenAgeSeconds > 0 && o.SeenAgeSeconds <= crashWithin.Seconds()
		if recently && r.ended(o) && o.SeenAt.Sub(o.StartedAt) <= crashLife {
			ended[o.Scope] = append(ended[o.Scope], o)
		}
	}
	var all []Need
	for _, scope := range slices.Sorted(maps.Keys(ended)) {
		if len(ended[scope]) <= mostCrashes {
			continue
		}
		last := slices.MinFunc(ended[scope], func(a, b *Owner) int {
			return cmp.Compare(a.SeenAgeSeconds, b.SeenAgeSeconds)
		})
		if r.outlives(ended[scope], last) {
			continue
		}
		n := Need{Kind: needCrash, Where: map[string]string{"scope": scope}, Commands: []string{},
			Text: fmt.Sprintf("crashing: scope %s, %d processes ended without a stop within %s of their "+
				"start; the last one is %s, pid %d, %s ago",
				scope, len(ended[scope]), show.Span(crashLife), last.Host, last.PID, show.Ago(last.SeenAgeSeconds)),
			Remedy: "see its log and how its supervisor says that it ended: os.Exit, out of memory, or a " +
				"kill; a message that ends its process is parked after its attempts"}
		for i := range r.Cursors {
			if c := &r.Cursors[i]; c.Scope == scope && c.AttemptOffset != nil && len(n.Commands) < mostCommands {
				n.Text += fmt.Sprintf("; %s at %s/%d, offset %d",
					show.Count(int64(c.Attempts), "attempt"), c.Topic, c.Partition, *c.AttemptOffset)
				n.Commands = append(
					n.Commands,
					fmt.Sprintf("onlyonce explain -scope %s -topic %s -partition %d -offset %d",
						show.Quote(scope), show.Quote(c.Topic), c.Partition, *c.AttemptOffset),
				)
			}
		}
		all = append(all, n)
	}
	return all
}

// consumers finds scopes with cursors in use and without a living process.
func (r *StatusReport) consumers() []Need {
	var all []Need
	for _, scope := range r.scopes() {
		paused := 0
		partitions := 0
		var example *Cursor
		for i := range r.Cursors {
			if c := &r.Cursors[i]; c.Scope == scope && c.RetiredAt == nil {
				partitions++
				example = c
				if c.Paused != nil {
					paused++
				}
			}
		}
		var last *Owner
		alive := false
		for i := range r.Owners {
			if o := &r.Owners[i]; o.Scope == scope {
				alive = alive || !o.Silent()
				if last == nil || o.SeenAgeSeconds < last.SeenAgeSeconds {
					last = o
				}
			}
		}
		if alive || partitions == 0 || paused == partitions {
			continue
		}
		n := Need{
			Kind:  needConsumer,
			Where: map[string]string{"scope": scope},
			Text: fmt.Sprintf("no consumer runs: scope %s, %s: its processes were stopped",
				scope, show.Count(int64(partitions), "partition")),
			Remedy: "start it; if it is out of use, retire its cursors",
			Commands: []string{fmt.Sprintf("onlyonce cursor retire -scope %s -topic %s -reason WHY",
				show.Quote(scope), show.Quote(example.Topic))},
		}
		if last != nil {
			n.Text = fmt.Sprintf("no consumer runs: scope %s, %s: the last report is of %s, pid %d, %s ago",
				scope,
				show.Count(int64(partitions), "partition"),
				last.Host,
				last.PID,
				show.Ago(last.SeenAgeSeconds))
			n.Remedy = "see why it died or cannot reach this database, and start it"
			n.Commands = []string{}
		}
		all = append(all, n)
	}
	return all
}

// scopes are the scopes of the cursors, in their order.
func (r *StatusReport) scopes() []string {
	var all []string
	for i := range r.Cursors {
		if !slices.Contains(all, r.Cursors[i].Scope) {
			all = append(all, r.Cursors[i].Scope)
		}
	}
	return all
}

// waiting finds parked rows that wait for an operator, by kind, state, and scope or sink.
func (r *StatusReport) waiting() []Need {
	type of struct{ kind, state, at string }
	var order []of
	groups := map[of][]reports.ParkedCount{}
	for _, p := range r.Parked.Groups {
		if !p.NeedsOperator() {
			continue
		}
		k := of{p.Kind, p.State, p.Scope}
		if p.Sink != nil {
			k.at = *p.Sink
		}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], p)
	}
	var all []Need
	for _, k := range order {
		count := int64(0)
		oldest := time.Now()
		var reasons []string
		for _, p := range groups[k] {
			count += p.Count
			reasons = append(reasons, fmt.Sprintf("%d %s", p.Count, p.Reason))
			if p.Oldest.Before(oldest) {
				oldest = p.Oldest
			}
		}
		by := "scope"
		if k.kind == "call" {
			by = "sink"
		}
		where := by + " " + k.at
		flag := "-" + by
		what := "waiting for a decision"
		if k.state == "reconcile" {
			what = "of unknown outcome"
		}
		n := Need{Kind: needParked, Where: map[string]string{by: k.at, "kind": k.kind, "state": k.state},
			Text: fmt.Sprintf("parked: %s, %s %s (%s), the oldest since %s",
				where, show.Count(count, k.kind), what, strings.Join(reasons, ", "), show.Instant(oldest)),
			Commands: []string{fmt.Sprintf("onlyonce parked list %s %s -kind %s -state %s",
				flag, show.Quote(k.at), k.kind, k.state)}}
		for i := range groups[k] {
			if p := &groups[k][i]; p.MayRetry() && len(n.Commands) <= mostCommands {
				n.Remedy = "see why, and retry once the cause is repaired"
				n.Commands = append(n.Commands, "onlyonce parked redrive "+p.Pick())
			}
		}
		all = append(all, n)
	}
	return all
}

// unsent finds sinks with calls to send and without a relay, or without one for some of the lanes.
func (r *StatusReport) unsent() []Need {
	var all []Need
	for _, o := range r.Outbox {
		i := slices.IndexFunc(r.Relays, func(s reports.SinkRelays) bool { return s.Sink == o.Sink })
		if o.Count == 0 || i >= 0 && r.Relays[i].PausedAt != nil {
			continue
		}
		if i >= 0 && (r.Relays[i].Members > 0 || r.Relays[i].LanesHeld > 0) {
			if u := slices.IndexFunc(r.Unheld, func(u reports.UnheldCalls) bool { return u.Sink == o.Sink }); u >= 0 {
				all = append(all, needOfLanes(&r.Relays[i], &r.Unheld[u]))
			}
			continue
		}
		n := Need{
			Kind:  needRelay,
			Where: map[string]string{"sink": o.Sink},
			Text: fmt.Sprintf("no relay: sink %s, %s not delivered%s",
				o.Sink, show.Count(o.Count, "call"), oldest(o.OldestAgeSeconds)),
			Remedy:   "start a relay that lists the sink",
			Commands: []string{"onlyonce outbox status -sink " + show.Quote(o.Sink)},
		}
		if i < 0 {
			n.Remedy = "no relay has ever listed the sink: correct its name in the application, or start a " +
				"relay that lists it"
			n.Commands = []string{"onlyonce outbox list -sink " + show.Quote(o.Sink)}
		}
		all = append(all, n)
	}
	return all
}

// lanesRemedy is what to do about lanes that no relay holds although relays list the sink (O5).
const lanesRemedy = "the logs of the sink's relays say why they do not take these lanes; restart those that " +
	"have stopped working"

// needOfLanes describes calls in lanes that the relays of their sink do not take.
func needOfLanes(s *reports.SinkRelays, u *reports.UnheldCalls) Need {
	return Need{
		Kind: needRelay,
		Text: fmt.Sprintf("lanes without a relay: sink %s, %v; %d of %d lanes are held, by %s",
			u.Sink, u, s.LanesHeld, s.Lanes, show.Count(s.Members, "relay")),
		Remedy:   lanesRemedy,
		Commands: []string{"onlyonce outbox status -sink " + show.Quote(u.Sink)},
		Where:    map[string]string{"sink": u.Sink},
	}
}

// requests finds HTTP requests that wait for an operator.
func (r *StatusReport) requests() []Need {
	q := r.Requests
	var all []Need
	if q.Reconcile > 0 {
		all = append(all, Need{
			Kind:     needRequest,
			Text:     show.Count(q.Reconcile, "HTTP request") + " with a step of unknown outcome",
			Remedy:   "ask the provider what became of the step",
			Commands: []string{"onlyonce request list"},
		})
	}
	if q.Abandoned > 0 {
		all = append(all, Need{
			Kind: needRequest,
			Text: show.Count(q.Abandoned, "HTTP request") +
				" whose steps had their effect, and whose client does not come back",
			Remedy:   "have the client send it again, or close it",
			Commands: []string{"onlyonce request list"},
		})
	}
	return all
}

// timedAhead finds parked rows that wait for a time that was counted while the clock was ahead
// (T9).
func (r *StatusReport) timedAhead() []Need {
	if r.TimedAhead == 0 {
		return nil
	}
	return []Need{{
		Kind: needClock,
		Text: show.Count(r.TimedAhead, "parked row") + " got a due time while the database's clock was ahead",
		Remedy: "make sure that the clock is right; consumers and relays that run give them new due times " +
			"within seconds",
		Commands: []string{"onlyonce doctor"},
	}}
}

// oldest says how old the oldest is, "" if that is not known.
func oldest(age *float64) string {
	if age == nil {
		return ""
	}
	return ", the oldest for " + show.Ago(*age)
}
