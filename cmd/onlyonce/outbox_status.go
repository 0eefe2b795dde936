package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func outboxStatusCommand() command {
	return report(command{
		name:    "outbox status",
		args:    "[-postgres URL] [-sink S] [-json]",
		summary: "show calls to be sent, by sink, and who sends them",
		help: `
Shows, from one snapshot of the database: for each sink how many calls are not delivered, wherever
they wait, and the age of the oldest; how many of those are in the log; what is parked by state;
whether the sink is paused, and its rates; its lanes, with their holders; and the segments of the
log, with the reason if one cannot be emptied. It changes nothing and works on a standby too.

NOT DELIVERED counts the calls of the log, those that are under way or tried again (retrying), and
later ones of their ordering keys (blocked). Calls that wait for a decision, and those that are
scheduled for later, are not among them. A call whose attempt failed leaves the log.

LANES is how many lanes relays hold, of how many; "not listed" means that no relay has this sink,
and its calls wait. IN PASS counts those IN LOG that a relay is sending. Lanes are listed if there
is something to say: with -sink all of them. Segments: new calls go to the current one; one is
draining until transactions that may still write into it have ended; closed ones are emptied once
all in them is sent and retention has passed. HELD BY says what a segment waits for, retention
apart: lanes that are behind, a sink that no relay lists (list it, or discard its calls), cursors
that only a relay moves.`,
	}, "reading the outbox", func(fs *flag.FlagSet) reading[reports.OutboxReport] {
		var sink *string
		textVar(fs, &sink, "sink", "only the sink `S`")
		return reading[reports.OutboxReport]{
			read: func(ctx context.Context, a *app, db ops.DB) (*reports.OutboxReport, error) {
				return operate.Outbox(ctx, db, reports.OutboxQuestion{Sink: show.Text(sink), CountLimit: a.countLimit})
			},
			write: func(a *app, r *reports.OutboxReport) { a.writeOutbox(r, sink != nil) },
		}
	})
}

// writeOutbox writes the sinks, their lanes and the log's segments. Lanes without calls to send are
// left out unless all are asked for.
func (a *app) writeOutbox(r *reports.OutboxReport, all bool) {
	a.writeOutboxSinks(r)
	listed := " with calls to send"
	if all {
		listed = ""
	}
	var lanes []reports.OutboxLane
	for i := range r.Sinks {
		for _, l := range r.Sinks[i].Lanes {
			if all || l.Pending != nil && *l.Pending > 0 {
				lanes = append(lanes, *l)
			}
		}
	}
	a.say("\nLanes%s: %d", listed, len(lanes))
	writeRows(a, operate.LaneColumns, lanes)
	a.writeLogSegments(r)
}

func (a *app) writeOutboxSinks(r *reports.OutboxReport) {
	var rows [][]string
	for i := range r.Sinks {
		s := &r.Sinks[i]
		held := 0
		inPass := int64(0)
		for _, l := range s.Lanes {
			if l.Held {
				held++
			}
			if l.InPass != nil {
				inPass += *l.InPass
			}
		}
		relays := fmt.Sprintf("%d of %d held", held, len(s.Lanes))
		if !s.Listed {
			relays = "not listed"
		}
		var parked []string
		for _, p := range s.Parked {
			parked = append(parked, p.Text()+" since "+show.Instant(p.Oldest))
		}
		passing := number(inPass)
		if !r.Counted {
			passing = "-"
		}
		waiting := []string{"-", "-"}
		if u := s.Undelivered; u != nil {
			waiting = []string{number(u.Count), ageOf(u.OldestAgeSeconds)}
		}
		rows = append(
			rows,
			slices.Concat(
				[]string{s.Sink, relays},
				waiting,
				[]string{numberOrDash(s.Pending), passing, strings.Join(parked, ", ")},
			),
		)
	}
	a.say("Sinks: %d", len(r.Sinks))
	a.section([]string{"SINK", "LANES", "NOT DELIVERED", "OLDEST", "IN LOG", "IN PASS", "PARKED"}, rows)
	for i := range r.Sinks {
		s := &r.Sinks[i]
		if s.PausedAt != nil {
			a.say("Sink %s is paused %s",
				cell(s.Sink), oneLine(reports.PauseText(s.PausedAt, s.PausedBy, s.PauseReason)))
		}
		if u := s.Undelivered; u != nil && u.LastError != nil {
			a.say("Sink %s: the oldest call that is tried again: %s", cell(s.Sink), oneLine(*u.LastError))
		}
		for j := range s.Rates {
			a.say("Rate of %s: %s", oneLine(s.Rates[j].Whose()), oneLine(s.Rates[j].String()))
		}
	}
	if !r.Counted {
		a.say("pending calls are not counted: that took over %v", a.countLimit)
	}
}

func (a *app) writeLogSegments(r *reports.OutboxReport) {
	var rows [][]string
	for i := range r.Ring {
		g := &r.Ring[i]
		if g.State == "free" {
			continue
		}
		var held []string
		for j := range g.HeldBy {
			held = append(held, g.HeldBy[j].String())
		}
		rows = append(rows, []string{
			strconv.Itoa(int(g.Slot)),
			g.State,
			show.Size(float64(g.Bytes)),
			ageOf(g.Age),
			strings.Join(held, "; "),
		})
	}
	free := slices.DeleteFunc(slices.Clone(r.Ring), func(g reports.OutboxSegment) bool { return g.State != "free" })
	a.say("\nSegments: %d, and %d free", len(rows), len(free))
	a.section([]string{"SLOT", "STATE", "SIZE", "AGE", "HELD BY"}, rows)
}
