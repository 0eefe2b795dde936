package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// eventErasure holds the operator's flags.
type eventErasure struct {
	consent
	topic, id, key *string
}

func eventsEraseCommand() command {
	return command{
		name:    "events erase",
		args:    "[-postgres URL] -topic T (-id EVENT | -key KEY) -reason WHY [-yes]",
		summary: "erase events that were handled",
		help: `
Erases bodies and headers of events in the log, and where they were parked: for a person who asks to be forgotten. Every consumer that
reads the stream must have handled them ("onlyonce cursor retire" gives one up), and what is parked must be redriven or
discarded. The rows stay until their segment is emptied; a replay passes over them. Backups, and standbys that lag, hold the
bytes longer.

-id is the id of one event, as "onlyonce parked show" has it: for webhooks ENDPOINT/PROVIDER/ID. -key is an ordering key: all events
that are about one thing. The stream of a webhook endpoint is webhook.ENDPOINT. It asks first, unless -yes is given, and writes an
audit row. What is erased already stays so: status 0, nothing is written.

Examples:
  onlyonce events erase -topic webhook.stripe -key cus_42 -reason "GDPR request 118"
  onlyonce events erase -topic webhook.github -id github/github/72d3162e-cc78-11e3-81ab-4c9367dc0958 -reason "a token was pushed"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			ask := &eventErasure{}
			textVar(fs, &ask.topic, "topic", "the stream `T`")
			textVar(fs, &ask.id, "id", "the event with the id `EVENT`")
			textVar(fs, &ask.key, "key", "all events of the ordering key `KEY`")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.eraseEvents(ctx, *address, ask) }
		},
	}
}

func (a *app) eraseEvents(ctx context.Context, address string, ask *eventErasure) error {
	if err := missing(given{"-topic", ask.topic != nil}, given{"-id or -key", ask.id != nil || ask.key != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	in := ops.EraseEventsInput{Topic: *ask.topic, ID: given0(ask.id), Key: given0(ask.key)}
	if err := in.Check(); err != nil {
		return decided(err)
	}
	act := func(ctx context.Context, db *database, by ops.By, shown *ops.ErasedEvents) (*ops.ErasedEvents, error) {
		in.Shown = shown
		return ops.EraseEvents(ctx, db, by, in)
	}
	return decide(ctx, a, address, ask.consent, "waiting for another transaction", decision[ops.ErasedEvents]{act: act, write: writeErasedEvents, after: func(_ context.Context, _ *database, done *ops.ErasedEvents) error {
		_, _ = fmt.Fprintf(a.out, "Done: erased; audit row %d.\n", done.AuditID)
		return nil
	}})
}

func writeErasedEvents(a *app, d *ops.ErasedEvents) {
	const most = 20
	var cells [][]string
	for i, r := range d.Rows {
		if i < most {
			cells = append(cells, []string{r.Place, numberOrDash(r.Partition), number(r.ID), show.OrDash(r.Event), r.State, number(r.Bytes)})
		}
	}
	a.table([]string{"STORED IN", "PARTITION", "OFFSET OR ID", "EVENT", "STATE", "BYTES"}, cells)
	if n := len(d.Rows) - most; n > 0 {
		_, _ = fmt.Fprintf(a.out, "and %d more\n", n)
	}
	_, _ = fmt.Fprintln(a.out, "Erase bodies and headers. They cannot be brought back, and the events cannot be replayed.")
}
