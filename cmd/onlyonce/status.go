package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func statusCommand() command {
	return report(command{
		name:    "status",
		args:    "[-postgres URL] [-v] [-json]",
		summary: "show what needs you, and where the work is",
		help: `
Begins with what needs a person, halts first, each with the next commands; or with "Nothing needs you". Then it shows, from the same snapshot of the database:
positions, by scope and topic; the consumer processes; what is parked and not settled; and the calls that are to be sent. It changes nothing, and works on a standby too.

What needs a person: a partition that is halted; what keeps processes from their work now, by their own report, which is at most 10 s old (they cannot join their group,
read the log or apply messages, a handler hangs), by the partitions that no process owns although some run, or because the database is read-only; a scope that no process works on; parked work that waits for a decision; calls to be sent without a relay; HTTP requests
of unknown outcome. What is paused is listed with its sums, because a person has decided that.

Cursors: OWNED is how many of the partitions a living process owns, LAG how many messages they are behind the log, LAST BATCH when a batch was committed last. STATE counts
partitions that are halted, paused, replaying, waiting for an open Kafka transaction, or retired.
Processes: each consumer process describes itself every 10 s (REPORTED). One that has not for 30 s is silent: it was killed, or cannot reach this database. Kafka is not asked.

-v lists each partition too. In a command that is shown, fill in WHY, OFFSET and ID.`,
	}, "reading the status", func(fs *flag.FlagSet) reading[ops.StatusReport] {
		each := fs.Bool("v", false, "list each partition too")
		return reading[ops.StatusReport]{
			read: func(ctx context.Context, a *app, db ops.DB) (*ops.StatusReport, error) {
				return ops.Status(ctx, db, ops.StatusQuestion{CountLimit: a.countLimit})
			},
			write: func(a *app, r *ops.StatusReport) { a.writeStatus(r, *each) },
		}
	})
}

func (a *app) writeStatus(r *ops.StatusReport, each bool) {
	a.writeNeeds(r.Needs)
	a.writeSums(r, each)
	a.writeOwners(r)
	a.writeParkedCounts(&r.Parked)
	a.writeSinks(r)
	a.say("\nschema version %d", r.SchemaVersion)
	if r.Standby {
		a.say("This server is a standby: what it shows may be late, and nothing can be decided here.")
	}
}

// writeNeeds begins the status: it is read by people who have just woken up.
func (a *app) writeNeeds(needs []ops.Need) {
	switch len(needs) {
	case 0:
		a.say("Nothing needs you.")
		return
	case 1:
		a.say("1 thing needs you:")
	default:
		a.say("%d things need you:", len(needs))
	}
	for _, n := range needs {
		a.say("- %s", cell(n.Text))
		if n.Remedy != "" {
			a.say("  %s%s", oneLine(n.Remedy), map[bool]string{true: ":"}[len(n.Commands) > 0])
		}
		for _, c := range n.Commands {
			a.paste(cell(c))
		}
	}
}

func (a *app) writeSums(r *ops.StatusReport, each bool) {
	partitions := 0
	var rows, all [][]string
	for _, s := range r.Topics() {
		partitions += s.Partitions
		lag := number(s.Lag)
		switch {
		case s.AtLeast:
			lag += " or more"
		case s.Owned == 0:
			lag = ""
		}
		rows = append(rows, []string{s.Scope, s.Topic, strconv.Itoa(s.Partitions), fmt.Sprintf("%d of %d", s.Owned, s.Partitions), lag, agoText(s.LastBatch), s.State()})
	}
	a.say("\nCursors: %s", show.Count(int64(partitions), "partition"))
	a.section([]string{"SCOPE", "TOPIC", "PARTITIONS", "OWNED", "LAG", "LAST BATCH", "STATE"}, rows)
	if !each {
		return
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		all = append(all, []string{c.Scope, c.Topic, strconv.Itoa(int(c.Partition)), number(c.Position), show.OrDash(c.Group),
			number(c.Epoch), yesNo(c.Clean), c.Tried(), c.State()})
	}
	a.say("")
	a.section([]string{"SCOPE", "TOPIC", "PARTITION", "POSITION", "GROUP", "EPOCH", "CLEAN", "ATTEMPTS", "STATE"}, all)
}

// writeOwners shows a line for each process, and one for each partition that waits for a Kafka
// transaction or for a single message.
func (a *app) writeOwners(r *ops.StatusReport) {
	owners := r.Processes()
	var rows [][]string
	var waits []string
	for _, o := range owners {
		lag, halted := int64(0), 0
		var youngest *float64
		for _, p := range o.Partitions {
			lag += p.Lag
			if p.LastBatchAge != nil {
				if age := *p.LastBatchAge + o.SeenAgeSeconds; youngest == nil || age < *youngest {
					youngest = &age
				}
			}
			if p.Halted != "" {
				halted++
			}
			if p.WaitingFor > 0 && !o.Silent() {
				waits = append(waits, fmt.Sprintf("waiting: %s %s/%d, at offset %d for %s: a Kafka transaction is open", cell(o.Scope), cell(p.Topic), p.Partition, p.LastStable, show.Ago(p.WaitingFor+o.SeenAgeSeconds)))
			}
			if b := p.BlockedBy; b != nil && b.For >= 1 && !o.Silent() {
				waits = append(waits, fmt.Sprintf("blocked: %s %s/%d, by the message at offset %d (ordering key %s) for %s: %s above it done", cell(o.Scope), cell(p.Topic), p.Partition,
					b.Offset, cmp.Or(b.Key, "none"), show.Ago(b.For+o.SeenAgeSeconds), show.Count(int64(b.Done), "message")))
			}
		}
		seen := show.Ago(o.SeenAgeSeconds) + " ago"
		if o.Silent() {
			seen += " (silent)"
		}
		rows = append(rows, []string{o.Scope, o.Host, strconv.Itoa(int(o.PID)), seen, strconv.Itoa(len(o.Partitions)), number(lag), agoText(youngest), strconv.Itoa(halted), o.FaultKinds()})
	}
	a.say("\nProcesses: %d", len(owners))
	a.section([]string{"SCOPE", "HOST", "PID", "REPORTED", "PARTITIONS", "LAG", "LAST BATCH", "HALTED", "FAULTS"}, rows)
	if ended := r.Ended(); ended > 0 {
		a.say("%d more ended without a stop, over 5 minutes ago", ended)
	}
	for _, w := range waits {
		a.say("%s", w)
	}
}

// agoText shows an age in seconds, "" if it is not known.
func agoText(age *float64) string {
	if age == nil {
		return ""
	}
	return show.Ago(*age) + " ago"
}

func (a *app) writeParkedCounts(t *ops.ParkedTotals) {
	total := int64(0)
	var rows [][]string
	for _, p := range t.Groups {
		total += p.Count
		at := p.Scope
		if p.Sink != nil {
			at = *p.Sink
		}
		rows = append(rows, []string{number(p.Count), p.Kind, p.State, p.Reason, at, show.Instant(p.Oldest)})
	}
	a.say("\nParked: %d not settled%s", total, settledText(t))
	a.section([]string{"COUNT", "KIND", "STATE", "REASON", "SCOPE OR SINK", "OLDEST SINCE"}, rows)
	if !t.Counted {
		a.say("what is parked is left out: counting it took over %v", a.countLimit)
	}
}

// settledText says how many rows are settled.
func settledText(t *ops.ParkedTotals) string {
	switch {
	case t.Settled == nil || *t.Settled == 0:
		return ""
	case t.SettledMore:
		return fmt.Sprintf(", over %d settled", *t.Settled)
	}
	return fmt.Sprintf(", %d settled", *t.Settled)
}

// writeSinks shows calls to be sent and the relays that send them, a line for each sink.
func (a *app) writeSinks(r *ops.StatusReport) {
	pending := int64(0)
	sinks := map[string][]string{}
	for _, l := range r.Relays {
		state := ""
		if l.PausedAt != nil {
			state = "paused since " + show.Instant(*l.PausedAt)
		}
		sinks[l.Sink] = []string{l.Sink, "0", "", number(l.Members), fmt.Sprintf("%d of %d", l.LanesHeld, l.Lanes), state}
	}
	for _, o := range r.Outbox {
		pending += o.Count
		row := sinks[o.Sink]
		if row == nil {
			row = []string{o.Sink, "", "", "0", "", "no relay lists it"}
			sinks[o.Sink] = row
		}
		row[1], row[2] = number(o.Count), ageOf(o.OldestAgeSeconds)
	}
	var rows [][]string
	for _, row := range sinks {
		if !r.OutboxCounted {
			row[1] = ""
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	a.say("\nCalls: %d to send, %s", pending, show.Count(int64(len(rows)), "sink"))
	a.section([]string{"SINK", "TO SEND", "OLDEST", "RELAYS", "LANES HELD", "STATE"}, rows)
	if !r.OutboxCounted {
		a.say("calls to send are left out: counting them took over %v", a.countLimit)
	}
}
