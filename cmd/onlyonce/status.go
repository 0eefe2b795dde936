package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func statusCommand() command {
	return report(command{
		name:    "status",
		args:    "[-postgres URL] [-v] [-json]",
		summary: "show what needs you, and where the work is",
		help: `
Begins with what needs a person, each with the next commands; or with "Nothing needs you". Then it
shows, from the same snapshot of the database: positions, by scope and topic; the processes; what is
parked and not settled; and the calls that are not delivered. It changes nothing, and works on a
standby too.

What needs a person, in this order:
  halted           a partition on which no work is done until you decide: run the command that is shown
  cannot ...       processes cannot join their group, read the log, apply messages, deliver calls to
                   a sink, receive from a queue or store webhooks; by their own report, at most 10 s
                   old
  calls are ...    a sink refuses nearly all calls alike: they wait
  wrong secret     a process of the HTTP layer has another secret than those before it
  not running      a relay, receiver, endpoint or HTTP layer was killed, and none like it runs; shown for a day
  no such topic    the topic was deleted
  handler          a handler does not return
  no owner         no process works on a partition, although some run
  read-only        the database takes no writes
  offset ignored   another program has set an offset in Kafka, which moves nothing; shown for an hour
  crashing         processes end again and again, within 2 minutes of their start
  no consumer      no process works on the scope
  parked           messages, events or calls wait for your decision
  no relay         calls are to be sent, and no relay sends them
  HTTP requests    of unknown outcome, or given up by their clients
Paused work is not listed, because a person paused it; see STATE.

Cursors: OWNED is how many of the partitions a living process owns. LAG is how many messages they
are behind the log: "or more" where a partition has no owner. LAST BATCH is when a batch was
committed last. STATE counts partitions that are halted, paused, replaying, waiting for an open
Kafka transaction, or retired.

Processes: each consumer, relay (of each sink), receiver of a queue, webhook endpoint and HTTP layer
describes itself every 10 s (REPORTED). One that has not for 30 s is silent: it was killed, or
cannot reach this database. After 5 minutes it is only counted. Kafka is not queried.

Calls: those that are not delivered and wait for no decision, wherever they are: in the log, tried
again (RETRIED), or BEHIND another one of their ordering key. OLDEST is since the oldest was
enqueued, LAST ERROR that of the oldest that is tried again.

In a command that is shown, fill in WHY, OFFSET and ID.`,
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
		a.say("This server is a standby: its data may lag, and nothing can be decided here.")
	}
}

// writeNeeds begins the status: it is read by people who have just woken up.
func (a *app) writeNeeds(needs []ops.Need) {
	if len(needs) == 0 {
		a.say("%s.", operate.Needing(0))
		return
	}
	a.say("%s:", operate.Needing(len(needs)))
	for _, n := range needs {
		a.say("- %s", cell(n.Text))
		if n.Remedy != "" {
			end := ""
			if len(n.Commands) > 0 {
				end = ":"
			}
			a.say("  %s%s", oneLine(n.Remedy), end)
		}
		for _, c := range n.Commands {
			a.paste(cell(c))
		}
	}
}

func (a *app) writeSums(r *ops.StatusReport, each bool) {
	partitions := 0
	sums := operate.Topics(r)
	for _, s := range sums {
		partitions += s.Partitions
	}
	a.say("\nCursors: %s", show.Count(int64(partitions), "partition"))
	writeRows(a, operate.TopicColumns, sums)
	if each {
		a.say("")
		writeRows(a, operate.CursorColumns, r.Cursors)
	}
}

// writeOwners shows a line for each process, and one for each partition that waits for a Kafka
// transaction or for a single message.
func (a *app) writeOwners(r *ops.StatusReport) {
	owners := operate.Processes(r)
	a.say("\nProcesses: %d", len(owners))
	writeRows(a, operate.ProcessColumns, owners)
	if ended := r.Ended(); ended > 0 {
		a.say("%d more ended without a stop, over 5 minutes ago", ended)
	}
	for _, o := range owners {
		for _, w := range operate.Waits(o.Owner) {
			a.say("%s", cell(w))
		}
	}
}

func (a *app) writeParkedCounts(t *reports.ParkedTotals) {
	a.say("\nParked: %d not settled%s", t.Total(), settledText(t))
	writeRows(a, operate.ParkedCountColumns, t.Groups)
	if text := operate.Captured(t); text != "" {
		a.say("Captured: %s", text)
	}
	if !t.Counted {
		a.say("parked rows are left out: counting them took over %v", a.countLimit)
	}
}

// settledText says how many rows are settled.
func settledText(t *reports.ParkedTotals) string {
	switch {
	case t.Settled == nil || *t.Settled == 0:
		return ""
	case t.SettledMore:
		return fmt.Sprintf(", over %d settled", *t.Settled)
	}
	return fmt.Sprintf(", %d settled", *t.Settled)
}

// writeSinks shows the calls that are not delivered and the relays that send them, a line for each
// sink.
func (a *app) writeSinks(r *ops.StatusReport) {
	sinks, pending := operate.Sinks(r)
	a.say("\nCalls: %d not delivered, %s", pending, show.Count(int64(len(sinks)), "sink"))
	writeRows(a, operate.SinkColumns, sinks)
	if !r.OutboxCounted {
		a.say("calls are left out: counting them took over %v", a.countLimit)
	}
}
