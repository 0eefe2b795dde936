package console

import (
	"context"
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

const perPage = 50

// keys shows the rings of claimed keys, and what holds back that they forget.
func (v *visit) keys() error {
	inbox, state := v.db.live.inbox.get(v.ctx, v.db)
	c := &content{Title: "Claimed keys"}
	if inbox != nil {
		for _, r := range inbox.Rings {
			var used []reports.KeySegment
			for _, s := range r.Segments {
				if s.State != "free" {
					used = append(used, s)
				}
			}
			c.Parts = append(c.Parts, part{
				ID:    r.Ring,
				Title: r.Ring,
				Of: fmt.Sprintf("remembered %s; %s, %s",
					show.Remembered(r.Horizon),
					show.Count(r.Filters, "filter"),
					show.Size(float64(r.FilterBytes))),
				Table: segments.table(v, "segments-"+r.Ring, used),
			})
		}
		c.Parts = append(c.Parts, part{ID: "frontiers-h", Title: "What holds back forgetting", None: "Nothing.",
			Table: frontiers.table(v, "frontiers", inbox.Frontiers)})
	}
	return v.showParts("/keys", c, page{Title: "Keys", Live: true, State: state, Status: unanswered(inbox == nil)})
}

// doctor shows what Examine finds.
func (v *visit) doctor() error {
	var found *ops.Examination
	err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		found, err = ops.Examine(ctx, db, ops.ExamineQuestion{CountLimit: countLimit})
		return err
	})
	if err != nil {
		return err
	}
	return v.showParts(
		"/doctor",
		&content{Title: "Doctor", Of: fmt.Sprintf("%d failed, %d to look at", found.Fail, found.Warn),
			Parts: []part{{Table: findings.table(v, "findings", found.Findings)}}},
		page{},
	)
}

// ask asks the database of the page.
func (v *visit) ask(f func(ctx context.Context, db ops.DB) error) error {
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	return v.db.ask(ctx, f)
}

// outbox shows sinks, lanes, segments, and calls that are to be sent.
func (v *visit) outbox() error {
	report, state := v.db.live.outbox.get(v.ctx, v.db)
	sink := v.Query("sink")
	c := &content{Title: "Outbox", Of: sink}
	if sink != "" {
		c.Acts = []act{{"All sinks", v.Link("/outbox")}}
	}
	if report != nil {
		if !report.Counted {
			c.Notices = []notice{{Text: "Calls to be sent are not counted: that took over 2 seconds."}}
		}
		rows, busy := report.rows(sink)
		c.Parts = []part{{ID: "sinks-h", Title: "Sinks", None: "No sink is known.",
			Table: sinks.table(v, "sinks", rows)}}
		if sink != "" {
			c.Parts = append(c.Parts, part{
				ID:    "lanes-h",
				Title: "Lanes with calls to send",
				None:  "None.",
				Table: lanes.table(v, "lanes", busy),
			})
		}
		c.Parts = append(c.Parts, part{
			ID:    "segments-h",
			Title: "Segments of the log",
			Table: logSegments.table(v, "segments", report.Ring),
		})
	}
	calls := part{
		ID:    "calls",
		Title: "Calls of the log",
		Of:    "oldest first; one whose attempt failed is parked",
		Acts:  []act{{"List them", v.Link("/outbox", "list", "1")}},
	}
	listed := v.Query("list")+sink+v.Query("scope")+v.Query("name") != ""
	if listed {
		var err error
		calls.Acts = nil
		if calls, _, err = listOf(v, calls, operate.CallList, "/outbox", pendingCalls); err != nil {
			return err
		}
	}
	c.Parts = append(c.Parts, calls)
	return v.showParts("/outbox", c, page{Live: !listed, State: state, Status: unanswered(report == nil)})
}

// sinkRow is a sink and how fast its calls to send grow.
type sinkRow struct {
	*reports.OutboxSink
	Rate  *float64 // nil: not known yet
	Aside string   // parked calls
	Waits *int64   // calls that are not delivered, wherever they are; nil: not counted
	Since *float64 // age in seconds of the oldest of them
	Last  *string  // error of the oldest that was tried
	Held  string   // until when calls are held, and why
	Tags  []string
}

// sinkActs are the decisions about a sink.
func (v *visit) sinkActs(s *sinkRow) []act {
	switch {
	case !v.Operates():
		return nil
	case s.PausedAt != nil:
		return []act{{"Resume", v.Link("/act/resume-sink", "sink", s.Sink)}}
	}
	return []act{{"Pause", v.Link("/act/pause-sink", "sink", s.Sink)}}
}

// rows are the sinks, and the lanes of one of them with calls to send.
func (o *outbox) rows(of string) (sinks []sinkRow, lanes []reports.OutboxLane) {
	for i := range o.Sinks {
		s := &o.Sinks[i]
		row := sinkRow{OutboxSink: s}
		if rate, known := o.Rates[s.Sink]; known {
			row.Rate = &rate
		}
		var aside []string
		for _, p := range s.Parked {
			aside = append(aside, p.Text())
		}
		row.Aside = strings.Join(aside, ", ")
		if u := s.Undelivered; u != nil {
			row.Waits = &u.Count
			row.Since = u.OldestAgeSeconds
			row.Last = u.LastError
		}
		for j := range s.Rates {
			if r := &s.Rates[j]; r.HeldUntil != nil && row.Held == "" {
				row.Held = r.Whose() + ": " + r.Hold()
			}
		}
		if !s.Listed {
			row.Tags = append(row.Tags, "not listed")
		}
		if s.PausedAt != nil {
			row.Tags = append(row.Tags, "paused")
		}
		sinks = append(sinks, row)
		for _, l := range s.Lanes {
			if s.Sink == of && l.Pending != nil && *l.Pending > 0 {
				lanes = append(lanes, *l)
			}
		}
	}
	return sinks, lanes
}

// parked shows groups of parked rows, and the rows that a filter picks.
func (v *visit) parked() error {
	list, q, err := listOf(
		v,
		part{ID: "rows", Title: "Rows", None: "Nothing that is parked matches."},
		operate.ParkedList,
		"/parked",
		parkedRows,
	)
	if err != nil {
		return err
	}
	f := q.Filter
	list.Of = "settled ones too, newest first"
	if f.Unsettled() {
		list.Of = "not settled, oldest first"
	}
	totals, state := v.db.live.groups.get(v.ctx, v.db)
	c := &content{Title: "Parked"}
	switch {
	case totals == nil:
	case !totals.Counted:
		c.Notices = []notice{{Text: "Counting what is parked takes over 2 seconds: groups are left out."}}
	case !f.Filtered():
		c.Parts = []part{{
			ID:    "groups-h",
			Title: "Groups",
			Table: errorGroups.table(v, "groups", totals.Groups),
			None:  "Nothing is parked.",
		}}
	}
	if v.Operates() {
		list.Hint = "Choose a group, or filter by kind and by scope or sink, to redrive or discard all that match."
		if bulk(f) {
			list.Hint = ""
			query := []any{"all", "1"}
			for _, field := range list.Filter.Fields {
				query = append(query, field.Name, field.Value)
			}
			list.Acts = []act{
				{"Redrive all of these", v.Link("/act/redrive", query...)},
				{"Discard all of these", v.Link("/act/discard", query...)},
			}
		}
	}
	c.Parts = append(c.Parts, list)
	return v.showParts("/parked", c, page{State: state})
}

// bulk reports whether an act on all that the filter matches is offered: it must be about one kind,
// and about a scope or a sink.
func bulk(f *operate.ParkedFilter) bool {
	return f.Unsettled() && f.Kind != "" && (f.Scope != "" || f.Kind == string(Call) && f.Sink != "") && f.Offset == nil
}

// events shows streams, and events of the event log.
func (v *visit) events() error {
	list, _, err := listOf(
		v,
		part{ID: "events", Title: "Events", Of: "newest first"},
		operate.EventList,
		"/events",
		events,
	)
	if err != nil {
		return err
	}
	if v.Query("behind") != "" {
		list.Of = "not handled, oldest first"
	}
	report, state := v.db.live.events.get(v.ctx, v.db)
	c := &content{Title: "Webhooks and events"}
	if report != nil {
		c.Parts = []part{{
			ID:    "streams-h",
			Title: "Streams",
			None:  "No stream exists: no endpoint has stored a webhook, and nothing was appended.",
			Table: streams.table(v, "streams", report.Streams),
		}}
	}
	c.Parts = append(c.Parts, list)
	return v.showParts("/events", c, page{State: state})
}

// requests shows requests of the HTTP layer, and operations that were answered 202.
func (v *visit) requests() error {
	which := "not completed"
	shown := openRequests
	if v.Query("all") != "" {
		which = "completed ones too"
		shown = allRequests
	}
	list, _, err := listOf(v, part{ID: "requests"}, operate.RequestList, "/requests", shown)
	if err != nil {
		return err
	}
	c := &content{Title: "HTTP requests", Of: which, Parts: []part{list}}
	if v.Query("scope") == "" {
		title := part{ID: "operations", Title: "Operations", Of: "answered 202, " + which}
		list, _, err = listOf(v, title, operate.OperationList, "/requests", operations)
		if err != nil {
			return err
		}
		list.Filter = nil
		c.Parts = append(c.Parts, list)
	}
	return v.showParts("/requests", c, page{})
}

// plainList is the page of a list alone.
func plainList[F, T any](title, of string, l *operate.List[F, T], path string, w view[T]) func(v *visit) error {
	return func(v *visit) error {
		list, _, err := listOf(v, part{ID: path[1:]}, l, path, w)
		if err != nil {
			return err
		}
		return v.showParts(path, &content{Title: title, Of: of, Parts: []part{list}}, page{})
	}
}

// requestActs are the decisions about a request.
func (v *visit) requestActs(r *ops.Request) (all []act) {
	if !v.Operates() {
		return nil
	}
	for _, step := range r.Unknown {
		all = append(all, act{"Resolve " + step, v.Link("/act/resolve", "id", r.ID, "step", step)})
	}
	if r.CompletedAt == nil && r.State != "running" {
		all = append(all, act{"Close", v.Link("/act/close", "id", r.ID)})
	}
	return all
}
