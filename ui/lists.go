package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// outbox shows sinks, lanes, segments, and calls that are to be sent.
func (v *visit) outbox() error {
	report, state := v.db.live.outbox.get(v.ctx, v.db)
	data := map[string]any{"Outbox": report, "Sink": v.Query("sink")}
	if v.Query("list") != "" || v.Query("sink") != "" {
		f := reports.CallFilter{Sink: v.Query("sink"), Scope: v.Query("scope"), Name: v.Query("name"), Limit: perPage}
		err := v.ask(func(ctx context.Context, db ops.DB) error {
			calls, more, err := reports.PendingCallList(ctx, db, f)
			data["Calls"], data["More"] = calls, more
			return err
		})
		if err != nil {
			return err
		}
	}
	v.show(page{File: "outbox", Title: "Outbox", Section: "/outbox", Live: data["Calls"] == nil, State: state, Status: unanswered(report == nil), Data: data})
	return nil
}

// call shows what the log has of one call.
func (v *visit) call() error {
	var c *reports.Call
	reveal := v.reveals(Call)
	err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		if c, err = operate.CallByKey(ctx, db, v.r.PathValue("key"), false); err == nil && c != nil && reveal {
			c, err = operate.CallByKey(ctx, db, v.r.PathValue("key"), true)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case c == nil:
		return &ops.Error{Kind: ops.ErrNotFound, Reason: "the log has no such call", Remedy: "it was never enqueued, or it was delivered and its segment was emptied since"}
	}
	size := int32(min(c.Bytes, 1<<31-1))
	v.show(page{File: "call", Title: "Call " + c.Key, Section: "/outbox", Data: map[string]any{"Call": c, "Reveal": reveal, "Body": bodyOf(&size, c.Body, reveal)}})
	return nil
}

// events shows streams, segments, and events of the event log.
func (v *visit) events() error {
	q, err := v.question(operate.EventList, map[string]string{"behind": "scope"})
	if err != nil {
		return err
	}
	report, state := v.db.live.events.get(v.ctx, v.db)
	var found operate.Rows
	if err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		found, err = q.Read(ctx, db, countLimit)
		return err
	}); err != nil {
		return err
	}
	v.show(page{File: "events", Title: "Events", Section: "/events", State: state, Data: map[string]any{"Report": report, "Rows": found.All, "More": found.More, "Filter": q.Filter}})
	return nil
}

// event shows one event.
func (v *visit) event() error {
	partition, err := strconv.ParseInt(v.Query("partition"), 10, 32)
	if err != nil {
		return errMissing
	}
	offset, err := strconv.ParseInt(v.Query("offset"), 10, 64)
	if err != nil {
		return errMissing
	}
	reveal := v.reveals(Event)
	var e *reports.EventDetail
	err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
		e, err = reports.EventAt(ctx, db, v.Query("topic"), int32(partition), offset, false)
		if err == nil && e != nil && reveal {
			e, err = reports.EventAt(ctx, db, v.Query("topic"), int32(partition), offset, true)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case e == nil:
		return errMissing
	}
	size := int32(min(e.Bytes, 1<<31-1))
	v.show(page{File: "event", Title: "Event " + e.ID, Section: "/events", Data: map[string]any{"Event": e, "Reveal": reveal,
		"Headers": headersOf(e.Headers, reveal), "Body": bodyOf(&size, e.Body, reveal)}})
	return nil
}

// places shows the places that the database knows, for example tenants.
func (v *visit) places() error {
	q, err := v.question(operate.PlaceList, nil)
	if err != nil {
		return err
	}
	var found operate.Rows
	if err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		found, err = q.Read(ctx, db, countLimit)
		return err
	}); err != nil {
		return err
	}
	v.show(page{File: "places", Title: "Places", Section: "/places", Data: map[string]any{"Rows": found.All, "More": found.More, "Filter": q.Filter,
		"States": []string{"claimed", "here", "leaving", "left"}}})
	return nil
}

// audit shows decisions, newest first.
func (v *visit) audit() error {
	before, _ := strconv.ParseInt(v.Query("before"), 10, 64)
	f := reports.AuditFilter{Action: v.Query("action"), Actor: v.Query("actor"), Before: before, Limit: perPage}
	var rows []reports.AuditRow
	var more bool
	err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		rows, more, err = reports.AuditRows(ctx, db, f)
		return err
	})
	if err != nil {
		return err
	}
	data := map[string]any{"Rows": rows, "More": more, "Filter": f}
	if len(rows) > 0 {
		data["Last"] = rows[len(rows)-1].ID
	}
	v.show(page{File: "audit", Title: "Audit", Section: "/audit", Data: data})
	return nil
}

// auditRow shows one decision.
func (v *visit) auditRow() error {
	id, err := strconv.ParseInt(v.r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		return errMissing
	}
	var rows []reports.AuditRow
	err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
		rows, _, err = reports.AuditRows(ctx, db, reports.AuditFilter{Before: id + 1, Limit: 1})
		return err
	})
	if err != nil {
		return err
	}
	if len(rows) == 0 || rows[0].ID != id {
		return errMissing
	}
	var detail bytes.Buffer
	if json.Indent(&detail, rows[0].Detail, "", "  ") != nil {
		detail.Write(rows[0].Detail)
	}
	v.show(page{File: "decision", Title: "Decision " + strconv.FormatInt(id, 10), Section: "/audit", Data: map[string]any{"Row": rows[0], "Detail": detail.String(), "Done": v.Query("done") != ""}})
	return nil
}
