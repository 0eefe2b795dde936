package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

func eventsShowCommand() command {
	return command{
		name:    "events show",
		args:    "[-postgres URL] -topic T -partition N -offset O [-body] [-json]",
		summary: "show one event whole",
		json:    []reflect.Type{reflect.TypeFor[reports.EventDetail]()},
		help: `
Shows one event of the event log but its body, which may be private: -body adds that. "onlyonce events list" shows where it is. It changes nothing.

Example:
  onlyonce events show -topic webhook.stripe -partition 0 -offset 17`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var topic *string
			var partition, offset *int64
			textVar(fs, &topic, "topic", "the stream `T`")
			numberVar(fs, &partition, "partition", "the partition `N`", 0, math.MaxInt16)
			numberVar(fs, &offset, "offset", "the offset `O`", 0, math.MaxInt64-1)
			body := fs.Bool("body", false, "show the body too")
			return func(ctx context.Context, a *app) error {
				if err := missing(given{"-topic", topic != nil}, given{"-partition", partition != nil}, given{"-offset", offset != nil}); err != nil {
					return err
				}
				var e *reports.EventDetail
				err := a.ask(ctx, *address, "reading an event", func(ctx context.Context, db ops.DB) (err error) {
					e, err = reports.EventAt(ctx, db, *topic, int32(*partition), *offset, *body)
					return err
				})
				switch {
				case err != nil:
					return err
				case e == nil:
					return usagef("the event log has no event at %s/%d@%d: it was never appended, or its segment was emptied", *topic, *partition, *offset)
				case *asJSON:
					return a.writeJSON(e)
				}
				a.writeEvent(e, *body)
				a.writeNext(operate.Next(e))
				return nil
			}
		},
	}
}

func (a *app) writeEvent(e *reports.EventDetail, body bool) {
	a.field("stream", e.Topic)
	a.field("position", fmt.Sprintf("partition %d, offset %d", e.Partition, e.Offset))
	a.field("state", e.State)
	if part := strings.SplitN(e.ID, "/", 3); len(part) == 3 && strings.HasPrefix(e.Topic, "webhook.") { // endpoint, provider, and the id as its sender knows it
		a.field("provider", part[1])
		a.field("id", part[2])
	} else {
		a.field("id", e.ID)
	}
	a.field("tenant", e.Tenant)
	if e.OrderKey != nil {
		a.field("ordering key", e.OrderKey.String())
	}
	a.moment("appended at", &e.AppendedAt)
	a.moment("erased at", e.ErasedAt)
	for _, h := range e.Headers {
		a.field("header", h.Name+": "+h.Value.String())
	}
	a.field("body", bodyText(e.Body, e.Bytes, e.ErasedAt != nil, body))
}
