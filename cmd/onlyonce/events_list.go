package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

func eventsShowCommand() command {
	return report(command{
		name:    "events show",
		args:    "[-postgres URL] -topic T -partition N -offset O [-body] [-json]",
		summary: "show one event whole",
		help: `
Shows one event of the event log but its body, which may be private: -body adds that. "onlyonce events list" shows where it is. It changes nothing.

Example:
  onlyonce events show -topic webhook.stripe -partition 0 -offset 17`,
	}, "reading an event", func(fs *flag.FlagSet) reading[reports.EventDetail] {
		var topic *string
		var partition, offset *int64
		textVar(fs, &topic, "topic", "the stream `T`")
		numberVar(fs, &partition, "partition", "the partition `N`", 0, math.MaxInt16)
		numberVar(fs, &offset, "offset", "the offset `O`", 0, math.MaxInt64-1)
		body := fs.Bool("body", false, "show the body too")
		return reading[reports.EventDetail]{
			check: func(*app) error {
				return missing(given{"-topic", topic != nil}, given{"-partition", partition != nil}, given{"-offset", offset != nil})
			},
			read: func(ctx context.Context, _ *app, db ops.DB) (*reports.EventDetail, error) {
				e, err := reports.EventAt(ctx, db, *topic, int32(*partition), *offset, *body)
				if err == nil && e == nil {
					err = usagef("the event log has no event at %s/%d@%d: it was never appended, or its segment was emptied", *topic, *partition, *offset)
				}
				return e, err
			},
			write: func(a *app, e *reports.EventDetail) {
				a.writeEvent(e, *body)
				a.writeNext(operate.Next(e))
			},
		}
	})
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
