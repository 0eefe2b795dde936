package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func eventsStatusCommand() command {
	return report(command{
		name:    "events status",
		args:    "[-postgres URL] [-topic T] [-json]",
		summary: "show streams of events, and who reads them",
		help: `
Shows the streams of the event log: those of webhook endpoints are named webhook.ENDPOINT. KEPT is
how many events the log holds, BEHIND how many of them a consumer has not handled, and PARKED how
many of its events are set aside and not settled (on a line without a scope: by a receiver). Then
the segments. One is emptied when its retention has passed and every consumer has passed what is in
it; a stream without a consumer is kept.`,
	}, "reading streams", func(fs *flag.FlagSet) reading[reports.EventsReport] {
		var topic *string
		textVar(fs, &topic, "topic", "only the stream `T`")
		return reading[reports.EventsReport]{
			read: func(ctx context.Context, _ *app, db ops.DB) (*reports.EventsReport, error) {
				return reports.Events(ctx, db, show.Text(topic))
			},
			write: (*app).writeStreams,
		}
	})
}

func (a *app) writeStreams(r *reports.EventsReport) {
	if len(r.Streams) == 0 {
		a.complain("no stream matches")
		return
	}
	writeRows(a, operate.StreamColumns, r.Streams)
	var parts []string
	for _, s := range r.Segments {
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
