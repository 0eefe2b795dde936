package ui

import (
	"context"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// explanation is the page about a key or a position.
type explanation struct {
	Asked    string         // what was asked for
	Places   *ops.KeyReport // of an id that no scope has, or several
	Key      *ops.KeyReport
	Position *ops.PositionReport
	Timeline []moment
	Next     []moment // what happens next, or what it waits for
}

// explain shows what became of a key, an id or a position.
func (v *visit) explain() error {
	e := &explanation{Asked: strings.TrimSpace(v.Query("q"))}
	title := "Explain"
	if e.Asked != "" || v.Query("topic") != "" {
		if err := v.ask(func(ctx context.Context, db ops.DB) error { return e.find(ctx, db, v.Query) }); err != nil {
			return err
		}
		title = "Explain " + show.FirstLine(e.Asked, 40)
	}
	switch {
	case e.Key != nil:
		e.Timeline, e.Next = keyTimeline(e.Key)
	case e.Position != nil:
		e.Timeline, e.Next = positionTimeline(e.Position)
	}
	v.show(page{File: "explain", Title: title, Section: "/explain", Data: e})
	return nil
}

// find asks the question that the address has: a position, a stored key, an id within a scope, or
// an id of any scope.
func (e *explanation) find(ctx context.Context, db ops.DB, query func(string) string) (err error) {
	q := ops.KeyQuestion{Tenant: query("tenant"), CountLimit: countLimit}
	at := positionIn(e.Asked, query)
	switch _, notKey := uuid.Parse(e.Asked); {
	case at != nil:
		e.Asked = at.Topic + "/" + strconv.Itoa(int(at.Partition)) + "/" + strconv.FormatInt(at.Offset, 10)
		e.Position, err = ops.ExplainPosition(ctx, db, *at)
		return err
	case query("scope") != "":
		q.Scope, q.ID, q.Topic = query("scope"), e.Asked, query("topic")
	case notKey == nil:
		q.Key = e.Asked
	default:
		q.ID = e.Asked
	}
	if e.Key, err = ops.ExplainKey(ctx, db, q); err == nil && e.Key.Key == "" {
		e.Key, e.Places = nil, e.Key
	}
	return err
}

// positionIn reads a position: from fields of the address, or from TOPIC/PARTITION/OFFSET. Nil: it
// is none.
func positionIn(asked string, query func(string) string) *ops.PositionQuestion {
	topic, partition, offset := query("topic"), query("partition"), query("offset")
	if offset == "" {
		parts := strings.Split(asked, "/")
		if len(parts) != 3 {
			return nil
		}
		topic, partition, offset = parts[0], parts[1], parts[2]
	}
	p, err := strconv.ParseInt(partition, 10, 32)
	o, err2 := strconv.ParseInt(offset, 10, 64)
	if topic == "" || err != nil || err2 != nil || p < 0 || o < 0 {
		return nil
	}
	return &ops.PositionQuestion{Topic: topic, Partition: int32(p), Offset: o, Scope: query("scope")}
}

// keyTimeline tells what became of a key, in the order of time.
func keyTimeline(r *ops.KeyReport) (past, next []moment) {
	var t timeline
	for _, c := range r.Claims {
		text := "claimed, in " + c.Segment + " (" + c.State + ")"
		at := time.Time{}
		if x := c.Transaction; x != nil {
			text += ", by transaction " + strconv.FormatInt(x.Xid, 10)
			if x.Status != nil {
				text += ", " + *x.Status
			}
			if x.CommittedAt != nil {
				at = *x.CommittedAt
			}
		}
		if at.IsZero() && c.ClaimedAfter != nil {
			at, text = *c.ClaimedAfter, text+"; after this time, when its segment was opened"
		}
		t.add(at, text, "resolved")
	}
	for _, w := range r.Webhooks {
		t.add(w.ClaimedAt, "webhook recorded by endpoint "+w.Endpoint, "")
	}
	t.calls(r.Calls)
	t.parked(r.Parked)
	if q := r.Request; q != nil {
		t.add(q.CreatedAt, "HTTP request began: "+q.Scope, "")
		if q.CompletedAt != nil {
			t.add(*q.CompletedAt, "HTTP request completed", "resolved")
		} else {
			t.then("the HTTP request is "+q.State, q.State)
		}
	}
	for _, s := range r.Call {
		t.then("as a call it is stored in "+s.Table+" for sink "+s.Sink+": "+s.State, s.State)
	}
	for _, c := range r.Copies {
		if c.Duplicate {
			t.then("a copy that arrives now is a duplicate in ring "+c.Ring+": the key is "+plain(c.Because), "")
		} else {
			t.then("a copy that arrives now counts as new in ring "+c.Ring, "")
		}
	}
	return t.sorted(), t.next
}

// positionTimeline tells what became of an offset.
func positionTimeline(r *ops.PositionReport) (past, next []moment) {
	var t timeline
	if r.Event != nil {
		t.add(r.Event.AppendedAt, "appended to the event log: "+r.Event.ID, "")
	}
	for _, c := range r.Cursors {
		if c.Moved == nil || c.Moved.Transaction == nil || c.Moved.Transaction.CommittedAt == nil {
			t.then(c.Scope+": "+c.Means, c.Offset)
		} else {
			t.add(*c.Moved.Transaction.CommittedAt, c.Scope+": "+c.Means+", by the batch from "+strconv.FormatInt(c.Moved.From, 10)+" to "+strconv.FormatInt(c.Moved.Next, 10)+
				", transaction "+strconv.FormatInt(c.Moved.Transaction.Xid, 10), "resolved")
		}
		t.calls(c.Calls)
	}
	t.parked(r.Parked)
	return t.sorted(), t.next
}

// timeline collects moments.
type timeline struct{ past, next []moment }

func (t *timeline) add(at time.Time, text, mark string) {
	t.past = append(t.past, moment{at, text, mark})
}

func (t *timeline) then(text, mark string) { t.next = append(t.next, moment{Text: text, Mark: mark}) }

func (t *timeline) calls(calls []ops.ExplainedCall) {
	for _, c := range calls {
		t.add(c.CreatedAt, "call "+c.Name+" to "+c.Sink+" enqueued: "+c.State, c.State)
	}
}

func (t *timeline) parked(rows []ops.ParkedItem) {
	for _, p := range rows {
		id := strconv.FormatInt(p.ID, 10)
		t.add(p.ParkedAt, "parked as row "+id+": "+p.Reason+", after "+show.Count(int64(p.Attempts), "attempt"), "waiting")
		switch {
		case p.SettledAt != nil:
			t.add(*p.SettledAt, "row "+id+" settled: "+p.State, "resolved")
		case p.NextAttemptAt != nil:
			t.next = append(t.next, moment{*p.NextAttemptAt, "row " + id + " is tried again", p.State})
		default:
			t.then("row "+id+" is "+p.State+": it waits for a decision", p.State)
		}
	}
}

func (t *timeline) sorted() []moment {
	sort.SliceStable(t.past, func(i, j int) bool { return t.past[i].At.Before(t.past[j].At) })
	return t.past
}
