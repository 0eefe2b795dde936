package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/ops"
)

// retirement holds the operator's flags.
type retirement struct {
	cursorFilter
	consent
}

func cursorRetireCommand() command {
	return command{
		name:    "cursor retire",
		args:    "[-postgres URL] -scope S -topic T -partition N -reason WHY [-yes]",
		summary: "take a cursor out of use",
		help: `
Takes a cursor out of use: of a topic that is gone, or of a consumer that will not come back. In one transaction its
owner is fenced out, the cursor is marked, and an audit row says who did it and why. It shows what was and what will be, and
asks first, unless -yes is given.

Nobody works on a retired cursor, and it holds back retention for one horizon more (it may be moved with its keys, or brought
back), and then none. A consumer that gets its partition halts, with reason
"retired". Nothing at or behind its position is handled, and nothing of what is parked there is tried again. The row stays, so
that nobody starts the partition over by mistake: "onlyonce cursor adopt -at OFFSET" brings it back.

Example:
  onlyonce cursor retire -scope stock -topic orders-2023 -partition 0 -reason "topic deleted, OPS-12"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask retirement
			ask.cursorFilter.flags(fs)
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.retire(ctx, *address, &ask) }
		},
	}
}

func (a *app) retire(ctx context.Context, address string, ask *retirement) error {
	if err := ask.whole(&ask.consent); err != nil {
		return err
	}
	act := func(ctx context.Context, db *database, by ops.By, shown *ops.Retired) (*ops.Retired, error) {
		return ops.RetireCursor(ctx, db, by, ops.RetireInput{Place: ask.place(), Shown: shown})
	}
	return decide(ctx, a, address, ask.consent, "waiting for the owner's batch to end", decision[ops.Retired]{act: act, write: writeRetired, after: func(_ context.Context, _ *database, done *ops.Retired) error {
		_, _ = fmt.Fprintf(a.out, "Done: retired at offset %d; audit row %d.\n", done.After.Position, done.AuditID)
		return nil
	}})
}

func writeRetired(a *app, d *ops.Retired) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	a.writeCursorChange(d.Before, d.After)
	say("It is out of use from then on: nothing at or behind offset %d is handled, until `onlyonce cursor adopt -at OFFSET` brings it back.", d.Before.Position)
	if d.Parked > 0 {
		say("%d parked messages of it are not settled. None is tried again: discard them, or settle them before you retire it.", d.Parked)
	}
	if !d.Before.Clean {
		say("Its last owner has not let go in order: it died, is halted, or still works. If it works it will halt.")
	}
	if d.Before.ReplayUntil != nil {
		say("A replay is under way, which interrupted the work at offset %d.", *d.Before.ReplayResume)
	}
}
