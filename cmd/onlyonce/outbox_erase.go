package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/ops"
)

// erasure holds the operator's flags.
type erasure struct {
	consent
	key *string
}

func outboxEraseCommand() command {
	return command{
		name:    "outbox erase",
		args:    "[-postgres URL] -key KEY -reason WHY [-yes]",
		summary: "erase the body of a call that is settled",
		help: `
Erases the body of a call, in the log and where it was parked, and what the remote answered: for a person who asks to be forgotten. The
call must be delivered or discarded; what is still to be sent needs its body ("onlyonce parked discard" gives it up). The row stays, with
target, headers and the rest, until its segment of the log is dropped, so that the call is recognised when it is enqueued again. What
was erased cannot be redriven. Backups, and standbys that lag, hold the body longer.

KEY is the idempotency key, a UUID, as the remote saw it. It asks first, unless -yes is given, and writes an audit row. What is erased
already stays so: status 0, nothing is written.

Example:
  onlyonce outbox erase -key 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a -reason "GDPR request 118"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			ask := &erasure{}
			textVar(fs, &ask.key, "key", "the call's idempotency key, `KEY`")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.erase(ctx, *address, ask) }
		},
	}
}

func (a *app) erase(ctx context.Context, address string, ask *erasure) error {
	if err := missing(given{"-key", ask.key != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	in := ops.EraseCallInput{Key: *ask.key}
	if err := in.Check(); err != nil {
		return decided(err)
	}
	act := func(ctx context.Context, db *database, by ops.By, shown *ops.ErasedCall) (*ops.ErasedCall, error) {
		in.Shown = shown
		return ops.EraseCall(ctx, db, by, in)
	}
	return decide(ctx, a, address, ask.consent, "waiting for a relay to settle calls", decision[ops.ErasedCall]{act: act, write: writeErasedCall, after: func(_ context.Context, _ *database, done *ops.ErasedCall) error {
		_, _ = fmt.Fprintf(a.out, "Done: erased; audit row %d.\n", done.AuditID)
		return nil
	}})
}

func writeErasedCall(a *app, d *ops.ErasedCall) {
	var cells [][]string
	for _, r := range d.Rows {
		cells = append(cells, []string{r.Place, number(r.ID), r.Sink, r.State, number(r.Bytes)})
	}
	a.table([]string{"STORED IN", "ID", "SINK", "STATE", "BYTES"}, cells)
	_, _ = fmt.Fprintln(a.out, "Erase the body, and what the remote answered. It cannot be brought back, and the call cannot be sent again.")
}
