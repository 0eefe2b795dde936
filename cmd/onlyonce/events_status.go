package main

import (
	"context"
	"flag"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func eventsStatusCommand() command {
	return command{
		name:    "events status",
		args:    "[-postgres URL] [-topic T] [-json]",
		summary: "show streams of events, and who reads them",
		json:    []reflect.Type{reflect.TypeFor[reports.EventsReport]()},
		help: `
Shows the streams of the event log: those of webhook endpoints are named webhook.ENDPOINT. KEPT is how many events the log holds, BEHIND how many of
them a consumer has not handled, and PARKED how many of its events are set aside and not settled (on a line without a scope: by a receiver).
Then the segments. One is emptied when its retention has passed and every consumer has passed what is in it; a stream without a consumer is kept.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var topic *string
			textVar(fs, &topic, "topic", "only the stream `T`")
			return func(ctx context.Context, a *app) error {
				var r *reports.EventsReport
				err := a.ask(ctx, *address, "reading streams", func(ctx context.Context, db ops.DB) (err error) {
					r, err = reports.Events(ctx, db, text(topic))
					return err
				})
				switch {
				case err != nil:
					return err
				case *asJSON:
					return a.writeJSON(r)
				}
				a.writeStreams(r.Streams, r.Segments)
				return nil
			}
		},
	}
}

func (a *app) writeStreams(streams []reports.Stream, segments []reports.EventSegment) {
	var rows [][]string
	for _, s := range streams {
		rows = append(rows, []string{s.Topic, number(s.Partitions), show.OrDash(s.Scope), show.OrDash(s.Group), number(s.Kept), numberOrDash(s.Behind), number(s.Parked)})
	}
	if len(rows) == 0 {
		a.complain("there is no stream that this asks for")
		return
	}
	a.table([]string{"STREAM", "PARTITIONS", "SCOPE", "GROUP", "KEPT", "BEHIND", "PARKED"}, rows)
	var parts []string
	for _, s := range segments {
		since := ""
		if s.ClosedAt != nil {
			since = " since " + show.Instant(*s.ClosedAt)
		} else if s.OpenedAt != nil {
			since = " since " + show.Instant(*s.OpenedAt)
		}
		parts = append(parts, strconv.FormatInt(s.Slot, 10)+" "+s.State+since+", "+show.Size(float64(s.Bytes)))
	}
	_, _ = fmt.Fprintf(a.out, "segments: %s\n", strings.Join(parts, "; "))
}
