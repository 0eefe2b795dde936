package main

import (
	"context"
	"flag"
	"math"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

func eventsShowCommand() command {
	return report(command{
		name:    "events show",
		args:    "[-postgres URL] -topic T -partition N -offset O [-body [-seal-keys FILE]] [-json]",
		summary: "show one event whole",
		help: `
Shows one event of the event log without its body, which may be private; -body adds it. A sealed
body is opened with the keys in FILE ("onlyonce help request resolve" has its form). "onlyonce
events list" shows T, N and O. It changes nothing.

Example:
  onlyonce events show -topic webhook.stripe -partition 0 -offset 17`,
	}, "reading an event", func(fs *flag.FlagSet) reading[reports.EventDetail] {
		var topic *string
		var partition, offset *int64
		textVar(fs, &topic, "topic", "the stream `T`")
		numberVar(fs, &partition, "partition", "the partition `N`", 0, math.MaxInt16)
		numberVar(fs, &offset, "offset", "the offset `O`", 0, math.MaxInt64-1)
		body := fs.Bool("body", false, "show the body too")
		keys := fs.String("seal-keys", "", "open a sealed body with the keys in `FILE`")
		return reading[reports.EventDetail]{
			check: func(*app) error {
				return missing(
					given{"-topic", topic != nil},
					given{"-partition", partition != nil},
					given{"-offset", offset != nil},
				)
			},
			read: func(ctx context.Context, a *app, db ops.DB) (*reports.EventDetail, error) {
				e, err := reports.EventAt(ctx, db, *topic, int32(*partition), *offset, *body)
				if err == nil && e == nil {
					err = usagef("the event log has no event at %s/%d@%d: it was never appended, or its "+
						"segment was emptied", *topic, *partition, *offset)
				}
				if err == nil && *keys != "" {
					err = a.unseal(e, *keys)
				}
				return e, err
			},
			write: func(a *app, e *reports.EventDetail) { a.writeWhole(operate.WholeEvent(e), operate.NextOfEvent(e)) },
		}
	})
}
