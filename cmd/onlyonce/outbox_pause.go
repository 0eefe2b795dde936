package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/ops"
)

// sinkStop holds the operator's flags for a pause of a sink or its end.
type sinkStop struct {
	consent
	sink     *string
	resume   bool
	unlisted bool
}

func outboxPauseCommand() command {
	return command{
		name:    "outbox pause",
		args:    "[-postgres URL] -sink S [-unlisted] -reason WHY [-yes]",
		summary: "stop calls to a sink",
		help: `
Has relays start no more calls to a sink until somebody resumes it: while a remote is being repaired, say, or must not be called.
It outlasts restarts. Calls that are under way end; relays keep their lanes. Applications go on enqueueing, and nothing is lost, but keys
age: what was called before without a final answer goes to state reconcile if the remote may have forgotten its key meanwhile.

A sink that no relay has listed is refused, because its name may be misspelt. -unlisted pauses it all the same: ahead of its first relay, which then starts no call.

It asks first, unless -yes is given, and writes an audit row. What is paused already stays so: status 0, nothing is written.

Example:
  onlyonce outbox pause -sink payments -reason "the bank asks us to stop, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			ask := &sinkStop{}
			fs.BoolVar(&ask.unlisted, "unlisted", false, "although no relay has listed the sink yet")
			return sinkStopFlags(fs, ask)
		},
	}
}

func outboxResumeCommand() command {
	return command{
		name:    "outbox resume",
		args:    "[-postgres URL] -sink S -reason WHY [-yes]",
		summary: "end the pause of a sink",
		help: `
Ends a pause that "onlyonce outbox pause" began. Relays go on within a second or two.

It asks first, unless -yes is given, and writes an audit row. What is not paused stays so: status 0, nothing is written.

Example:
  onlyonce outbox resume -sink payments -reason "the bank is back, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			return sinkStopFlags(fs, &sinkStop{resume: true})
		},
	}
}

func sinkStopFlags(fs *flag.FlagSet, ask *sinkStop) func(context.Context, *app) error {
	address := postgresVar(fs)
	textVar(fs, &ask.sink, "sink", "the sink `S`")
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.stopSink(ctx, *address, ask) }
}

func (a *app) stopSink(ctx context.Context, address string, ask *sinkStop) error {
	if err := missing(given{"-sink", ask.sink != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	end := "relays start no more calls to it within a second or two; those under way end."
	if ask.resume {
		end = "relays go on within a second or two."
	}
	return decide(ctx, a, address, ask.consent, "waiting for another transaction", decision[ops.Sink]{act: ask.act, write: ask.write, after: func(_ context.Context, _ *database, done *ops.Sink) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d: %s\n", done.AuditID, end)
		return nil
	}})
}

func (q *sinkStop) act(ctx context.Context, db *database, by ops.By, _ *ops.Sink) (*ops.Sink, error) {
	if q.resume {
		return ops.ResumeSink(ctx, db, by, *q.sink)
	}
	return ops.PauseSink(ctx, db, by, ops.PauseSinkInput{Sink: *q.sink, Unlisted: q.unlisted})
}

func (q *sinkStop) write(a *app, s *ops.Sink) {
	if q.resume {
		_, _ = fmt.Fprintf(a.out, "Resume sink %s, paused %s\n", cell(s.Name), oneLine(s.Paused()))
		return
	}
	_, _ = fmt.Fprintf(a.out, "Pause sink %s: no call to it is started until it is resumed.\n", cell(s.Name))
}
