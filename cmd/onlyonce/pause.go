package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// stop holds the operator's flags for a pause or its end.
type stop struct {
	cursorFilter
	consent
	resume bool
}

func cursorPauseCommand() command {
	return command{
		name:    "cursor pause",
		args:    "[-postgres URL] -scope S [-topic T -partition N] -reason WHY [-yes]",
		summary: "stop work on a partition, or on a whole scope",
		help: `
Lets the work on a partition, or with -scope alone on everything of that scope, stand still until somebody resumes it. It
outlasts restarts. Whoever works there notices within a second or two, finishes the batch in hand, and keeps the
partition; nothing is lost, and Kafka goes on collecting. Parked messages are not tried meanwhile. "onlyonce cursor show" tells
what is paused.

It asks first, unless -yes is given, and writes an audit row. What is paused already stays so: status 0, nothing is written.

Example:
  onlyonce cursor pause -scope stock -topic orders -partition 3 -reason "stock table is being repaired, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error { return stopFlags(fs, &stop{}) },
	}
}

func cursorResumeCommand() command {
	return command{
		name:    "cursor resume",
		args:    "[-postgres URL] -scope S [-topic T -partition N] -reason WHY [-yes]",
		summary: "end a pause",
		help: `
Ends a pause that was made with the same -scope, -topic and -partition. A pause of the whole scope holds every partition of it
until it is ended itself; pauses of single partitions outlast it. Work goes on within a second or two.

It asks first, unless -yes is given, and writes an audit row. What is not paused stays so: status 0, nothing is written.

Example:
  onlyonce cursor resume -scope stock -topic orders -partition 3 -reason "repaired, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error { return stopFlags(fs, &stop{resume: true}) },
	}
}

func stopFlags(fs *flag.FlagSet, ask *stop) func(context.Context, *app) error {
	address := postgresVar(fs)
	ask.cursorFilter.flags(fs)
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.stop(ctx, *address, ask) }
}

func (a *app) stop(ctx context.Context, address string, ask *stop) error {
	if err := missing(given{"-scope", ask.scope != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	if (ask.topic == nil) != (ask.partition == nil) {
		return usagef("-topic and -partition go together: without both, the whole scope is meant")
	}
	at := ops.Place{Scope: *ask.scope}
	if ask.topic != nil {
		at.Topic, at.Partition = *ask.topic, int32(*ask.partition)
	}
	end, act := "whoever works there stops within a second or two, behind the batch in hand.", ops.PauseCursor
	if ask.resume {
		end, act = "work goes on within a second or two.", ops.ResumeCursor
	}
	return decide(ctx, a, address, ask.consent, "waiting for another transaction", decision[ops.Paused]{
		act: func(ctx context.Context, db *database, by ops.By, _ *ops.Paused) (*ops.Paused, error) {
			return act(ctx, db, by, at)
		},
		write: ask.write,
		after: func(_ context.Context, _ *database, done *ops.Paused) error {
			_, _ = fmt.Fprintf(a.out, "Done; audit row %d: %s\n", done.AuditID, end)
			return nil
		},
	})
}

func (q *stop) write(a *app, d *ops.Paused) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if q.resume {
		say("Resume %s, paused at %s by %s: %s", cell(d.Was.What()), show.Instant(d.Was.PausedAt), cell(d.Was.Actor), oneLine(d.Was.Reason))
		for _, o := range d.Others {
			say("Still paused: %s, by %s: %s", cell(o.What()), cell(o.Actor), oneLine(o.Reason))
		}
		return
	}
	p := ops.Pause{Scope: d.Scope}
	if d.Topic != nil {
		p.Topic, p.Partition = *d.Topic, *d.Partition
	}
	say("Pause %s: %d cursors in use.", cell(p.What()), d.Cursors)
	if d.Cursors == 0 {
		say("Is the name right? There is no such cursor yet; whatever gets one will stand still at once.")
	}
}
