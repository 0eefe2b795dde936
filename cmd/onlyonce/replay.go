package main

import (
	"context"
	"flag"
	"fmt"
	"math"

	"github.com/onlyonce/onlyonce/ops"
)

// replay holds the operator's flags.
type replay struct {
	cursorFilter
	consent
	from, to *int64
	resend   bool
}

func replayCommand() command {
	return command{
		name:    "replay",
		args:    "[-postgres URL] -scope S -topic T -partition N -from OFFSET [-to OFFSET] [-resend] -reason WHY [-yes]",
		summary: "handle messages again, and apply them again",
		help: `
Handles the messages from -from up to, and without, -to once more, although they are done: after a handler was wrong and its
effects were undone. Each of them is applied again, ids or not; copies within the range are still applied once. Then the
work goes on where it is now. It shows what will be done and asks first, unless -yes is given.

The range is all that it knows. A record in the range that is a copy of a message outside of it (an earlier offset, or another
partition) is applied, although that message was applied and is not undone: choose a range that has such a copy's original in it,
or undo the original's effect too. Copies that come after the replay are duplicates, also of messages that only the replay handled.
Messages are applied however old their ids are: Config.TooOld does not count in a replay.

In one transaction the owner is fenced out, the position is set, the replay gets a number that is part of what its messages'
keys are, and an audit row says who did it and why. A consumer that runs begins within seconds by itself; without one, the next
to start does. Meanwhile new messages wait: they come after it. "onlyonce cursor show" tells how far it is, and
"onlyonce cursor adopt -at OFFSET" ends it early. Whether the log still holds the range only a consumer can tell: it halts
if it does not.

Calls that handlers enqueue keep their keys. A call whose row is still in the outbox is not sent again, and one that now asks for
other bytes is a conflict, which fails its message. Where the row is gone the call is written again, under its key: it is sent if the
remote's key window, counted from the time of the message, is still open, and otherwise parked as reconcile. With -resend calls get
keys of their own, so that every remote applies them AGAIN: a charge is charged twice.

It is refused while a replay is under way, and while messages of the range are parked and not settled: redrive or discard them first.

Example:
  onlyonce replay -scope stock -topic orders -partition 0 -from 1200 -to 1300 -reason "held with the wrong sign, INC-7"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask replay
			ask.cursorFilter.flags(fs)
			numberVar(fs, &ask.from, "from", "the first `OFFSET` that is handled again", 0, math.MaxInt64-1)
			numberVar(fs, &ask.to, "to", "the first `OFFSET` that is not (default: the position, which is the most)", 1, math.MaxInt64-1)
			fs.BoolVar(&ask.resend, "resend", false, "give calls that are enqueued new keys: remotes apply them again")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.replay(ctx, *address, &ask) }
		},
	}
}

func (a *app) replay(ctx context.Context, address string, ask *replay) error {
	if err := ask.whole(&ask.consent, given{"-from", ask.from != nil}); err != nil {
		return err
	}
	in := ops.ReplayInput{Place: ask.place(), From: *ask.from, To: given0(ask.to), Resend: ask.resend}
	if err := in.Check(); err != nil {
		return decided(err)
	}
	act := func(ctx context.Context, db *database, by ops.By, shown *ops.Replayed) (*ops.Replayed, error) {
		in.Shown = shown
		return ops.Replay(ctx, db, by, in)
	}
	return decide(ctx, a, address, ask.consent, "waiting for the owner's batch to end", decision[ops.Replayed]{act: act, write: writeReplayed, after: func(_ context.Context, _ *database, done *ops.Replayed) error {
		_, _ = fmt.Fprintf(a.out, "Done: replay %d from offset %d up to %d, then on from %d; audit row %d. A consumer that runs begins within seconds.\n",
			done.Replay, done.From, done.To, done.Resume, done.AuditID)
		return nil
	}})
}

func writeReplayed(a *app, d *ops.Replayed) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	a.writeCursorChange(d.Before, d.After)
	say("Applied AGAIN: every message from offset %d to %d that the log still holds, %d offsets. Their ids do not keep them out; copies within the range are applied once; "+
		"a copy whose original lies outside of the range is applied too, although the original is not undone.",
		d.From, d.To-1, d.To-d.From)
	if d.From < d.Before.StartOffset {
		say("Offsets below %d, where this cursor began, were never handled by it: they are handled for the first time.", d.Before.StartOffset)
	}
	say("Then the work goes on at offset %d. Until then messages from there on wait.", d.Resume)
	if d.Resend {
		say("-resend: calls that their handlers enqueue get NEW keys. Every remote applies them AGAIN: what was charged or sent once is charged or sent twice.")
		return
	}
	say("Calls that their handlers enqueue keep their keys: those whose rows are still in the outbox are not sent again, and one with other bytes is a conflict, which fails its message. A call whose row is gone is written again under its key: sent if the remote's key window, counted from the time of the message, is open, else parked as reconcile.")
}
