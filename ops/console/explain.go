package console

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// explain shows what became of a key, an id or a position.
func (v *visit) explain() error {
	asked := strings.TrimSpace(v.Query("q"))
	if at := positionIn(asked, v.Query); at != nil {
		return v.explainPosition(at)
	}
	if asked != "" || v.Query("topic") != "" {
		return v.explainKey(asked)
	}
	return v.showParts("/explain", &content{Title: "Explain", Parts: []part{{
		Text: []string{
			"What became of one message, webhook, call or request: when it was claimed, its calls and " +
				"their attempts, what it waits for, and what a copy of it would be.",
		},
		Facts: []fact{
			{Name: "By a key", Value: "The UUID that is stored, or that a remote saw as Idempotency-Key."},
			{Name: "By an id", Value: "The id of a message or webhook: all scopes are searched."},
			{Name: "By a position", Value: "TOPIC/PARTITION/OFFSET"},
		},
	}}}, page{})
}

// explainPosition shows what became of a position of a topic.
func (v *visit) explainPosition(at *ops.ExplainQuestion) error {
	c := &content{Title: "Explain", Of: fmt.Sprintf("%s/%d/%d", at.Topic, at.Partition, at.Offset)}
	var r *ops.PositionReport
	if err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		r, err = ops.ExplainPosition(ctx, db, *at)
		return err
	}); err != nil {
		return err
	}
	for _, k := range r.Cursors {
		c.Acts = append(c.Acts, act{
			"The cursor of " + k.Scope,
			v.Link("/consumers/cursor", "scope", k.Scope, "topic", r.Topic, "partition", r.Partition),
		})
	}
	if r.Event != nil {
		c.Acts = append(c.Acts, act{
			"The event " + r.Event.ID,
			v.Link("/events/at", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset),
		})
	}
	c.Parts = []part{
		{Text: operate.ExplainedPosition(r)},
		v.parkedPart(r.Parked),
		{Title: "Cursors", Table: explainedCursors.table(v, "cursors", r.Cursors)},
	}
	for _, k := range r.Cursors {
		c.Parts = append(c.Parts, v.callParts(k.Calls)...)
	}
	c.Parts = append(c.Parts, part{Title: "Not known", Folded: true, Text: r.NotKnown})
	return v.showParts("/explain", c, page{Title: "Explain " + c.Of})
}

// explainKey shows what became of a key, or of an id in the scope that the address names or in all.
func (v *visit) explainKey(asked string) error {
	c := &content{Title: "Explain", Of: asked}
	q := ops.ExplainQuestion{Tenant: v.Query("tenant"), CountLimit: countLimit}
	switch {
	case v.Query("scope") != "":
		q.Scope = v.Query("scope")
		q.ID = asked
		q.Topic = v.Query("topic")
	case uuid.Validate(asked) == nil:
		q.Key = asked
	default:
		q.ID = asked
	}
	var r *ops.KeyReport
	if err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		r, err = ops.ExplainKey(ctx, db, q)
		return err
	}); err != nil {
		return err
	}
	if r.Key == "" {
		c.Parts = []part{v.foundIn(r)}
	} else {
		c.Parts = append([]part{{Text: operate.ExplainedKey(r)}, v.parkedPart(r.Parked)}, v.callParts(r.Calls)...)
		if r.Request != nil {
			c.Parts = append(c.Parts, part{
				Title: "HTTP request",
				Table: oneRequest.table(v, "requests", []ops.Request{*r.Request}),
			})
		}
		if len(r.Call) > 0 {
			c.Acts = []act{{"What the log has of the call", v.Link("/calls/" + r.Key)}}
		}
		c.Parts = append(c.Parts, part{Title: "Webhooks", Table: endpointClaims.table(v, "webhooks", r.Webhooks)},
			part{Title: "Claims", Of: r.Key, Folded: true, Table: claims.table(v, "claims", r.Claims)},
			part{Title: "Not known", Folded: true, Text: r.NotKnown})
	}
	return v.showParts("/explain", c, page{Title: "Explain " + show.FirstLine(asked, 40)})
}

// foundIn says where an id is that no scope has, or several.
func (v *visit) foundIn(r *ops.KeyReport) part {
	if len(r.Found) == 0 {
		tried := "There is no scope yet."
		if len(r.Scopes) > 0 {
			tried = "These were tried: " + strings.Join(r.Scopes, ", ") + "."
		}
		return part{Text: []string{"Nothing is stored of this id in any scope. " + tried}}
	}
	p := part{Text: []string{"Several scopes have the id:"}}
	for _, f := range r.Found {
		p.Acts = append(p.Acts, act{
			strings.TrimSuffix(f.Scope+", topic "+f.Topic, ", topic "),
			v.Link("/explain", "q", f.ID, "scope", f.Scope, "tenant", f.Tenant, "topic", f.Topic),
		})
	}
	return p
}

// positionIn reads a position: from fields of the address, or from TOPIC/PARTITION/OFFSET. Nil: it
// is none.
func positionIn(asked string, query func(string) string) *ops.ExplainQuestion {
	topic := query("topic")
	partition := query("partition")
	offset := query("offset")
	if offset == "" {
		parts := strings.Split(asked, "/")
		if len(parts) != 3 {
			return nil
		}
		topic = parts[0]
		partition = parts[1]
		offset = parts[2]
	}
	p, err := strconv.ParseInt(partition, 10, 32)
	o, err2 := strconv.ParseInt(offset, 10, 64)
	valid := err == nil && err2 == nil && p >= 0 && o >= 0
	if !valid || topic == "" {
		return nil
	}
	n := int32(p)
	return &ops.ExplainQuestion{Topic: topic, Partition: &n, Offset: &o, Scope: query("scope")}
}

func (v *visit) parkedPart(rows []ops.ParkedRow) part {
	return part{Title: "Parked", Table: explainedRows.table(v, "parked", rows)}
}

// callParts shows calls: those that are known to be of the message, and the others folded.
func (v *visit) callParts(calls []ops.ExplainedCall) []part {
	other := slices.IndexFunc(calls, func(c ops.ExplainedCall) bool { return c.Derived == nil })
	if other < 1 {
		return []part{{
			Title:  "Calls",
			Folded: other == 0 && len(calls) > 3,
			Table:  explainedCalls.table(v, "calls", calls),
		}}
	}
	return []part{{Title: "Calls", Table: explainedCalls.table(v, "calls", calls[:other])},
		{
			Title:  fmt.Sprintf("%d more calls of the same transaction", len(calls)-other),
			Folded: true,
			Table:  explainedCalls.table(v, "other-calls", calls[other:]),
		}}
}
