package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

const (
	perPage   = 50
	bodyShown = 64 << 10 // bytes of a body that a page shows
	hexShown  = 4 << 10  // bytes of a body that is no text
)

// question reads the filter of a list from the address, but its limit. alias are fields with
// another name there.
func (v *visit) question(l *operate.List, alias map[string]string) (*operate.Question, error) {
	q := l.Begin()
	for _, f := range l.Fields {
		name := cmp.Or(alias[f.Name], f.Name)
		if text := strings.TrimSpace(v.Query(name)); text != "" && f.Name != "limit" {
			if err := q.Set(f.Name, text); err != nil {
				return nil, &ops.Error{Kind: ops.ErrInvalid, Reason: name + " " + err.Error()}
			}
		}
	}
	return q, q.Set("limit", strconv.Itoa(perPage))
}

// parked shows groups of parked rows, and the rows that a filter picks.
func (v *visit) parked() error {
	q, err := v.question(operate.ParkedList, map[string]string{"parked-for": "reason", "all": "settled"})
	if err != nil {
		return err
	}
	f := q.Filter.(*operate.ParkedFilter)
	f.After, _ = strconv.ParseInt(v.Query("after"), 10, 64)
	f.Before, _ = strconv.ParseInt(v.Query("before"), 10, 64)
	var found operate.Rows
	if err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
		found, err = q.Read(ctx, db, countLimit)
		return err
	}); err != nil {
		return err
	}
	rows := found.All.([]ops.ParkedItem)
	totals, state := v.db.live.groups.get(v.ctx, v.db)
	data := map[string]any{"Rows": rows, "More": found.More, "Filter": f, "Totals": totals, "Reasons": parked.Reasons, "Filtered": f.Filtered(),
		"Kinds": []string{"message", "call", "event"}, "States": []string{"waiting", "retrying", "blocked", "reconcile"}, "Bulk": bulk(f), "Next": "before"}
	if f.Unsettled() {
		data["Next"] = "after"
	}
	if len(rows) > 0 {
		data["Last"] = rows[len(rows)-1].ID
	}
	v.show(page{File: "parked", Title: "Parked", Section: "/parked", State: state, Data: data})
	return nil
}

// bulk reports whether an act on all that the filter matches is offered: it must be about one kind,
// and about a scope or a sink.
func bulk(f *operate.ParkedFilter) bool {
	return f.Unsettled() && f.Kind != "" && (f.Scope != "" || f.Kind == string(Call) && f.Sink != "") && f.Offset == nil
}

// moment is a line of a timeline.
type moment struct {
	At   time.Time // zero: not known
	Text string
	Mark string // a state, for its color; empty: none
}

// payload is what a page shows of a body or a header's value.
type payload struct {
	Hidden bool // only Bytes is set: a hash of few possible values would show which it is
	Bytes  int64
	Text   string
	Cut    bool // Text is its beginning
	Hex    bool // Text is a dump of bytes that are no text
}

// shownPayload makes text of a payload that the person may see.
func shownPayload(b []byte) payload {
	p := payload{Bytes: int64(len(b))}
	var pretty bytes.Buffer
	switch {
	case !utf8.Valid(b):
		p.Hex, p.Cut = true, len(b) > hexShown
		p.Text = hex.Dump(b[:min(len(b), hexShown)])
		return p
	case len(b) <= bodyShown && json.Indent(&pretty, b, "", "  ") == nil: // keeps numbers as they are
		b = pretty.Bytes()
	}
	for p.Cut = len(b) > bodyShown; len(b) > bodyShown || !utf8.Valid(b); {
		b = b[:min(len(b)-1, bodyShown)]
	}
	p.Text = string(b)
	return p
}

// header is a header of a parked row.
type header struct {
	Name  string
	Value payload
}

func headersOf(all []reports.Header, reveal bool) []header {
	found := make([]header, len(all))
	for i, h := range all {
		found[i] = header{h.Name, payload{Hidden: true, Bytes: int64(len(h.Value))}}
		if reveal {
			found[i].Value = shownPayload(h.Value)
		}
	}
	return found
}

// bodyOf makes what is shown of a body. It returns nil if there is none.
func bodyOf(size *int32, body []byte, reveal bool) *payload {
	if size == nil {
		return nil
	}
	p := payload{Hidden: true, Bytes: int64(*size)}
	if reveal {
		p = shownPayload(body)
	}
	return &p
}

// parkedRow shows one row whole.
func (v *visit) parkedRow() error {
	id, err := strconv.ParseInt(v.r.PathValue("id"), 10, 64)
	if err != nil {
		return errMissing
	}
	var d *operate.ParkedDetail
	reveal := false
	err = v.ask(func(ctx context.Context, db ops.DB) error {
		if d, err = operate.ParkedByID(ctx, db, id, false); err != nil || d == nil {
			return err
		}
		reveal = v.reveals(Kind(d.Kind))
		if d.BodyBytes != nil && reveal {
			d, err = operate.ParkedByID(ctx, db, id, true)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case d == nil:
		return errMissing
	}
	var response *payload
	if d.Response != nil {
		response = bodyOf(d.Response.Bytes, d.Response.Body, reveal)
	}
	v.show(page{File: "row", Title: "Parked " + strconv.FormatInt(id, 10), Section: "/parked", Data: map[string]any{"Row": d, "Reveal": reveal,
		"Headers": headersOf(d.Headers, reveal), "Body": bodyOf(d.BodyBytes, d.Body, reveal), "Response": response, "Timeline": timelineOf(d), "Now": time.Now()}})
	return nil
}

// timelineOf is what is known of when the row did what.
func timelineOf(d *operate.ParkedDetail) []moment {
	var all []moment
	add := func(t *time.Time, text, mark string) {
		if t != nil {
			all = append(all, moment{*t, text, mark})
		}
	}
	written := "written to Kafka, by its producer's clock"
	if d.LogAppendTime {
		written = "written to Kafka"
	}
	add(d.RecordTime, written, "")
	if d.FirstAttempt != nil {
		add(d.FirstAttempt, "sent for the first time: since then the remote may know its key", "")
	}
	add(&d.ParkedAt, "parked: "+d.Reason, "waiting")
	add(d.ErasedAt, "its body was erased", "")
	if d.SettledAt != nil {
		add(d.SettledAt, "settled: "+d.State, "resolved")
	} else {
		add(d.NextAttemptAt, "due for its next attempt", "retrying")
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].At.Before(all[j].At) })
	return all
}
