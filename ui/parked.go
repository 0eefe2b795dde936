package ui

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"sort"
	"strconv"
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

// parkedFilter reads the filter from an address or a form.
func parkedFilter(q url.Values) (ops.ParkedListFilter, error) {
	f := ops.ParkedListFilter{Scope: q.Get("scope"), Kind: q.Get("kind"), State: q.Get("state"), Reason: q.Get("reason"), ErrorPrefix: q.Get("error"),
		Sink: q.Get("sink"), Name: q.Get("name"), Topic: q.Get("topic"), Unsettled: q.Get("settled") == "", Limit: perPage}
	for _, n := range []struct {
		name string
		set  func(int64)
		bits int
	}{
		{"partition", func(n int64) { p := int32(n); f.Partition = &p }, 32},
		{"offset", func(n int64) { f.Offset = &n }, 64},
		{"after", func(n int64) { f.After = n }, 64},
		{"before", func(n int64) { f.Before = n }, 64},
	} {
		if text := q.Get(n.name); text != "" {
			i, err := strconv.ParseInt(text, 10, n.bits)
			if err != nil || i < 0 {
				return f, &ops.Error{Kind: ops.ErrInvalid, Reason: n.name + " must be a whole number"}
			}
			n.set(i)
		}
	}
	return f, nil
}

// parked shows groups of parked rows, and the rows that a filter picks.
func (v *visit) parked() error {
	f, err := parkedFilter(v.r.URL.Query())
	if err != nil {
		return err
	}
	var rows []ops.ParkedItem
	var more bool
	err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
		rows, more, err = ops.Parked(ctx, db, f)
		return err
	})
	if err != nil {
		return err
	}
	totals, state := v.db.live.groups.get(v.ctx, v.db)
	data := map[string]any{"Rows": rows, "More": more, "Filter": f, "Totals": totals, "Reasons": parked.Reasons, "Filtered": filtered(f),
		"Kinds": []string{"message", "call", "event"}, "States": []string{"waiting", "retrying", "blocked", "reconcile"}, "Bulk": bulk(f), "Next": "before"}
	if f.Unsettled {
		data["Next"] = "after"
	}
	if len(rows) > 0 {
		data["Last"] = rows[len(rows)-1].ID
	}
	v.show(page{File: "parked", Title: "Parked", Section: "/parked", State: state, Data: data})
	return nil
}

// filtered reports whether the filter picks less than all.
func filtered(f ops.ParkedListFilter) bool {
	f.Unsettled, f.Limit, f.After, f.Before = false, 0, 0, 0
	return f != ops.ParkedListFilter{}
}

// bulk reports whether an act on all that the filter matches is offered: it must be about one kind,
// and about a scope or a sink.
func bulk(f ops.ParkedListFilter) bool {
	return f.Unsettled && f.Kind != "" && (f.Scope != "" || f.Kind == string(Call) && f.Sink != "") && f.Offset == nil
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
