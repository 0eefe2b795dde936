package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/ops"
)

func statusCommand() command {
	return command{
		name:    "status",
		args:    "[-postgres URL] [-json]",
		summary: "show what needs you, and where the work is",
		help: `
Shows, from one snapshot of the database: the version of the schema; each cursor, that is the position in a
partition; how much is parked; how many outbound calls are still to be sent, with the age of the oldest; and which relays hold their sink. It changes nothing and works on a standby too.

A cursor's group is the Kafka group that owns it; "-" means that the next one to come will. "clean" says that
the last owner let go in order; while somebody works it reads "no". "attempts" are those at a message that stands
alone because it failed, with its offset. STATE says whether a cursor is retired, paused or replayed: a retired one
stands still for good, and is counted apart.

Processes are the consumers that work on this database, as each has written itself, at most 10 s ago: how many
partitions it owns, how far it is behind the log in messages, when it committed a batch last, and how many of its
partitions are halted, with a line for each; one that waits for an open Kafka transaction has a line too. "silent" is a process that has not written for 30 s: it was killed, or
cannot reach this database. Kafka is not asked.

With -json, one object:
  schema_version  number
  cursors         list, as in "onlyonce cursor show -json"
  parked          list of {kind, reason, state, count, oldest}
  outbox          list of {sink, count, oldest_age_seconds}: calls that are still to be sent
  outbox_counted  false: counting them took over 5 s, so outbox is empty
  relays          list of {sink, epoch, until (null: given back), held (until has not come), lanes, lanes_held, members (relays that
                  list it)}; of a sink's lanes the highest epoch, the latest until, and whether any is held
  owners          list of {scope, host, pid, started_at, seen_at, seen_age_seconds, partitions}; partitions is a list of {topic,
                  partition, epoch, position, high_watermark, lag, last_stable, paused, halted, detail, halted_for,
                  last_batch_age, waiting_for}, where what is absent is false or not known, and ages are in seconds at seen_at
"onlyonce outbox status" shows more of the outbox.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			return func(ctx context.Context, a *app) error {
				var report *ops.StatusReport
				err := a.ask(ctx, *address, "reading the status", func(ctx context.Context, db ops.DB) (err error) {
					report, err = ops.Status(ctx, db, ops.StatusQuestion{CountLimit: a.countLimit})
					return err
				})
				if err != nil {
					return err
				}
				if *asJSON {
					return a.writeJSON(report)
				}
				a.writeStatus(report)
				a.writeOwners(report.Owners)
				return nil
			}
		},
	}
}

func (a *app) writeStatus(r *ops.StatusReport) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }
	say("schema version %d\n", r.SchemaVersion)

	outOfUse := 0
	for i := range r.Cursors {
		if r.Cursors[i].RetiredAt != nil {
			outOfUse++
		}
	}
	say("\nCursors: %d%s\n", len(r.Cursors)-outOfUse, some(outOfUse, " and %d retired"))
	var rows [][]string
	for _, c := range r.Cursors {
		rows = append(rows, []string{c.Scope, c.Topic, strconv.Itoa(int(c.Partition)), number(c.Position), orDash(c.Group),
			number(c.Epoch), yesNo(c.Clean), attempts(&c), c.State()})
	}
	a.section([]string{"SCOPE", "TOPIC", "PARTITION", "POSITION", "GROUP", "EPOCH", "CLEAN", "ATTEMPTS", "STATE"}, rows)

	total, rows := int64(0), nil
	for _, p := range r.Parked {
		total += p.Count
		rows = append(rows, []string{p.Kind, p.Reason, p.State, number(p.Count), instant(p.Oldest)})
	}
	say("\nParked: %d\n", total)
	a.section([]string{"KIND", "REASON", "STATE", "COUNT", "OLDEST"}, rows)

	pending, rows := int64(0), nil
	for _, o := range r.Outbox {
		pending += o.Count
		age := ""
		if o.OldestAgeSeconds != nil {
			age = time.Duration(*o.OldestAgeSeconds * float64(time.Second)).Round(time.Second).String()
		}
		rows = append(rows, []string{o.Sink, number(o.Count), age})
	}
	say("\nOutbox: %d pending\n", pending)
	a.section([]string{"SINK", "COUNT", "OLDEST"}, rows)
	if !r.OutboxCounted {
		say("pending calls are left out: counting them took over %v\n", a.countLimit)
	}

	rows = nil
	for _, l := range r.Relays {
		until := ""
		if l.Until != nil {
			until = instant(*l.Until)
		}
		held := fmt.Sprintf("%d of %d lanes", l.LanesHeld, l.Lanes)
		switch {
		case l.Members > 0:
			held += fmt.Sprintf(", by %d relays", l.Members)
		case l.LanesHeld == 0:
			held += ", by no relay"
		}
		rows = append(rows, []string{l.Sink, number(l.Epoch), until, held})
	}
	say("\nSinks: %d\n", len(r.Relays))
	a.section([]string{"SINK", "EPOCH", "UNTIL", "HELD"}, rows)
}
