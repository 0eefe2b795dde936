package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

var eventColumns = []string{"STREAM", "PARTITION", "OFFSET", "EVENT", "TENANT", "AGE", "SIZE", "STATE"}

func eventsListCommand() command {
	return command{
		name:    "events list",
		args:    "[-postgres URL] [-topic T [-partition N]] [-id ID | -behind SCOPE] [-limit N] [-json]",
		summary: "list events, such as webhooks that were received",
		help: `
Lists events of the event log, newest first; those of the webhook endpoint E are in the stream webhook.E. With -behind, those that the consumer of a scope has not handled, oldest
first. Bodies and headers are not shown. It changes nothing.

STATE is handled (by all consumers; it may be parked, see "onlyonce parked list -kind event"), "before SCOPE" (the consumer of that scope has not handled it), or unread (no
consumer has begun to read it). -id looks for one event by its id, or for a webhook by its sender's id, in the whole log, for at most 5 s.

With -json, one object a line: topic, partition, offset, id, tenant, state, appended_at, erased_at (null: it was not erased), bytes (of its body).

Examples:
  onlyonce events list -topic webhook.stripe
  onlyonce events list -id evt_1
  onlyonce events list -behind stock`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var topic, id, behind *string
			var partition, limit *int64
			textVar(fs, &topic, "topic", "only events of the stream `T`")
			numberVar(fs, &partition, "partition", "with -topic: only events of the partition `N`", 0, math.MaxInt16)
			textVar(fs, &id, "id", "only events of this `ID`, or whose id ends with /ID")
			textVar(fs, &behind, "behind", "only events that the consumer of `SCOPE` has not handled, oldest first")
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` events, from 1 to %d (default %d)", ops.MostLimit, ops.DefaultLimit), 1, ops.MostLimit)
			return func(ctx context.Context, a *app) error {
				if partition != nil && topic == nil {
					return usagef("-partition needs -topic")
				}
				f := ops.EventFilter{Topic: text(topic), ID: text(id), Behind: text(behind), Limit: limitOf(limit), CountLimit: a.countLimit}
				if partition != nil {
					n := int32(*partition)
					f.Partition = &n
				}
				var events []ops.Event
				var more bool
				err := a.ask(ctx, *address, "reading events", func(ctx context.Context, db ops.DB) (err error) {
					events, more, err = ops.EventList(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				if err := a.writeEvents(events, *asJSON); err != nil || !more {
					return err
				}
				return a.thereAreMore(f.Limit)
			}
		},
	}
}

func (a *app) writeEvents(events []ops.Event, asJSON bool) error {
	var rows [][]string
	for i := range events {
		e := &events[i]
		if asJSON {
			if err := a.writeJSON(e); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{e.Topic, strconv.Itoa(int(e.Partition)), number(e.Offset), e.ID, e.Tenant, show.Ago(time.Since(e.AppendedAt).Seconds()),
			show.Size(float64(e.Bytes)), e.State})
	}
	switch {
	case asJSON:
	case len(events) == 0:
		a.say("No matching events.")
	default:
		a.table(eventColumns, rows)
		a.say("One event whole: onlyonce events show -topic T -partition N -offset O")
	}
	return nil
}

func eventsShowCommand() command {
	return command{
		name:    "events show",
		args:    "[-postgres URL] -topic T -partition N -offset O [-body] [-json]",
		summary: "show one event whole",
		help: `
Shows one event of the event log but its body, which may be private: -body adds that. "onlyonce events list" shows where it is. It changes nothing.

With -json, one object: topic, partition, offset, id, tenant, state (see "onlyonce events list"), appended_at, erased_at, bytes, order_key, headers (list of {name,
value}), body (with -body only). order_key, value and body are {"text": ...} or {"hex": ...}, or null.

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
				var e *ops.EventDetail
				err := a.ask(ctx, *address, "reading an event", func(ctx context.Context, db ops.DB) (err error) {
					e, err = ops.EventAt(ctx, db, *topic, int32(*partition), *offset, *body)
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
				a.writeNext(e.Next())
				return nil
			}
		},
	}
}

func (a *app) writeEvent(e *ops.EventDetail, body bool) {
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
