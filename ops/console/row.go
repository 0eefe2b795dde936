package console

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

const (
	bodyShown = 64 << 10 // bytes of a body that a page shows
	hexShown  = 4 << 10  // bytes of a body that is no text
)

func linkTo(href, text string) template.HTML {
	return `<a href="` + escaped(href) + `">` + escaped(text) + `</a>`
}

// payload is what a page shows of a body or a header's value.
type payload struct {
	Hidden bool // only Bytes is set: a hash of few possible values would show which it is
	Bytes  int64
	Text   string
	Cut    bool // Text is its beginning
	Hex    bool // Text is a dump of bytes that are no text
}

// shownPayload makes text of a payload that the person may see (U2).
func shownPayload(b []byte) payload {
	p := payload{Bytes: int64(len(b))}
	var pretty bytes.Buffer
	switch {
	case !utf8.Valid(b):
		p.Hex = true
		p.Cut = len(b) > hexShown
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

// header is a header of a message, a call or an event.
type header struct {
	Name  string
	Value payload
}

// headersPart shows headers: their values if reveal is set, and the value that is the id.
func (v *visit) headersPart(all []reports.Header, reveal bool, id string) part {
	found := make([]header, len(all))
	for i, h := range all {
		found[i] = header{h.Name, payload{Hidden: true, Bytes: int64(len(h.Value))}}
		if reveal || id != "" && string(h.Value) == id {
			found[i].Value = shownPayload(h.Value)
		}
	}
	return part{ID: "headers-h", Title: "Headers", Table: headers.table(v, "headers", found), None: "None."}
}

// sealable is "Body", or says that it is sealed: then the console does not show it.
func sealable(sealed bool) string {
	if sealed {
		return "Body, sealed"
	}
	return "Body"
}

// bodyPart shows a body. size is nil if there is none.
func bodyPart[T int32 | int64](title string, size *T, body []byte, reveal bool) part {
	p := part{Title: title, None: "None is stored."}
	if size != nil {
		p.Payload = &payload{Hidden: true, Bytes: int64(*size)}
		if reveal {
			*p.Payload = shownPayload(body)
		}
	}
	return p
}

// readWhole reads a row, and again with its body if the person may see that.
func readWhole[T any](
	v *visit,
	kind func(*T) Kind,
	read func(ctx context.Context, db ops.DB, body bool) (*T, error),
) (found *T, reveal bool, err error) {
	err = v.ask(func(ctx context.Context, db ops.DB) error {
		if found, err = read(ctx, db, false); err != nil || found == nil {
			return err
		}
		if reveal = v.reveals(kind(found)); reveal {
			found, err = read(ctx, db, true)
		}
		return err
	})
	if err == nil && found == nil {
		err = errMissing
	}
	return found, reveal, err
}

// parkedRow shows one row whole.
func (v *visit) parkedRow() error {
	id, err := strconv.ParseInt(v.r.PathValue("id"), 10, 64)
	if err != nil {
		return errMissing
	}
	d, reveal, err := readWhole(
		v,
		func(d *operate.ParkedDetail) Kind { return Kind(d.Kind) },
		func(ctx context.Context, db ops.DB, body bool) (*operate.ParkedDetail, error) {
			return operate.ParkedByID(ctx, db, id, body)
		},
	)
	if err != nil {
		return err
	}
	c := &content{Title: fmt.Sprintf("Parked %s %d", d.Kind, id), Tags: []string{d.State}, Acts: v.parkedActs(d)}
	if d.Head != nil {
		c.Acts = append(c.Acts, act{
			fmt.Sprintf("It is blocked by row %d", *d.Head),
			v.Link(fmt.Sprintf("/parked/%d", *d.Head)),
		})
	}
	messageID := idOf(d)
	facts := factsOf(v, d, parkedFacts...)
	if messageID != "" {
		facts = slices.Insert(facts, 1, fact{
			Name: "Message id",
			Value: linkTo(
				v.Link("/explain", "q", messageID, "scope", d.Scope, "tenant", d.Tenant, "topic", d.Topic),
				messageID,
			),
		})
	}
	c.Parts = []part{
		{Title: "Error", Pre: d.Error, None: "None: it was parked before it was tried."},
		{Title: "Timeline", Half: true, Timeline: v.timelineOf(d)},
		{Title: "Facts", Half: true, Facts: facts},
		v.headersPart(d.Headers, reveal, messageID),
		bodyPart(sealable(d.Sealed), d.BodyBytes, d.Body, reveal && !d.Sealed),
	}
	if d.Response != nil {
		c.Parts = append(c.Parts, bodyPart("What the remote answered", d.Response.Bytes, d.Response.Body, reveal))
	}
	if steps := operate.NextOfParked(d); len(steps) > 0 {
		c.Parts = append(c.Parts, part{Title: "On a shell", Steps: steps})
	}
	return v.showParts("/parked", c, page{Title: fmt.Sprintf("Parked %d", id), Live: d.SettledAt == nil && !reveal})
}

// parkedActs are the decisions about a parked row that a person may make.
func (v *visit) parkedActs(r *operate.ParkedDetail) []act {
	var all []act
	add := func(text, page string, query ...any) { all = append(all, act{text, v.Link("/act/"+page, query...)}) }
	switch {
	case !v.Operates() || r.SettledAt != nil:
		return nil
	case r.Kind == string(Call):
		if r.May(parked.SendAgain) {
			add("Redrive", "redrive", "id", r.ID)
		}
		if r.May(parked.VerifiedApplied) {
			add("The remote has applied it", "redrive", "id", r.ID, "verified-applied", "1")
			add("The remote has not applied it: send it again", "redrive", "id", r.ID, "verified-not-applied", "1")
		}
		if r.May(parked.AnotherKey) {
			add("Redrive under a new key", "redrive", "id", r.ID, "new-key", "1")
		}
	case r.State != "blocked":
		add("Redrive", "redrive", "id", r.ID)
	}
	add("Discard", "discard", "id", r.ID)
	return all
}

// idOf is the message's id, by which a person looks for it: the header that is the row's key.
// Other headers may be private.
func idOf(d *operate.ParkedDetail) string {
	if d.Key == nil {
		return ""
	}
	for _, h := range d.Headers {
		for _, topic := range []string{"", plain(d.Topic)} {
			if key := (dedupe.Key{
				Tenant: d.Tenant,
				Scope:  d.Scope,
				Topic:  topic,
				ID:     string(h.Value),
				Replay: d.Replay,
			}).Hash(); uuid.UUID(key).String() == *d.Key {
				return string(h.Value)
			}
		}
	}
	return ""
}

// timelineOf is what is known of when the row did what.
func (v *visit) timelineOf(d *operate.ParkedDetail) []moment {
	var all []moment
	add := func(m moment) {
		if !m.At.IsZero() {
			all = append(all, m)
		}
	}
	written := "written to the log, by its producer's clock"
	if d.LogAppendTime {
		written = "written to the log"
	}
	if d.Kind != string(Call) {
		add(moment{At: deref(d.RecordTime), Text: written})
	}
	add(moment{At: deref(d.FirstAttempt), Text: "sent for the first time: since then the remote may know its key"})
	add(moment{At: d.ParkedAt, Text: "parked: " + d.Reason, Mark: "waiting"})
	for _, r := range d.Decisions {
		add(moment{
			At:   r.At,
			Text: r.Action + " by " + r.Actor + ": " + r.Reason,
			Mark: "redriven",
			Href: v.Link(fmt.Sprintf("/audit/%d", r.AuditID)),
		})
	}
	add(moment{At: deref(d.ErasedAt), Text: "its body was erased"})
	switch {
	case d.SettledAt != nil:
		add(moment{At: *d.SettledAt, Text: "settled: " + d.State, Mark: "resolved"})
	default:
		add(moment{At: deref(d.NextAttemptAt), Text: "due for its next attempt", Mark: "retrying"})
	}
	slices.SortStableFunc(all, func(a, b moment) int { return a.At.Compare(b.At) })
	if text := d.Since(); text != "" {
		all = append(all, moment{Text: text, Mark: d.State})
	}
	return all
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// call shows what the log has of one call.
func (v *visit) call() error {
	c, reveal, err := readWhole(
		v,
		func(*reports.Call) Kind { return Call },
		func(ctx context.Context, db ops.DB, body bool) (*reports.Call, error) {
			return operate.CallByKey(ctx, db, v.r.PathValue("key"), body)
		},
	)
	switch {
	case errors.Is(err, errMissing):
		return &ops.Error{
			Kind:   ops.ErrNotFound,
			Reason: "the log has no such call",
			Remedy: "it was never enqueued, or it was delivered and its segment was emptied since",
		}
	case err != nil:
		return err
	}
	headers := part{Title: "Headers", Pre: c.Headers, None: "None."}
	if !reveal {
		headers.Pre = ""
		headers.None = "Headers are hidden from you."
	}
	shown := &content{
		Title: "Call " + c.Name + " to " + c.Sink,
		Tags:  []string{c.State},
		Parts: []part{{Facts: factsOf(v, c, callFacts...)}, headers, bodyPart("Body", &c.Bytes, c.Body, reveal)},
	}
	if steps := operate.NextOfCall(c); len(steps) > 0 {
		shown.Parts = append(shown.Parts, part{Title: "On a shell", Steps: steps})
	}
	return v.showParts("/outbox", shown, page{Title: "Call " + c.Key})
}

// event shows one event.
func (v *visit) event() error {
	partition, err := strconv.ParseInt(v.Query("partition"), 10, 32)
	offset, wrong := strconv.ParseInt(v.Query("offset"), 10, 64)
	if err != nil || wrong != nil {
		return errMissing
	}
	e, reveal, err := readWhole(
		v,
		func(*reports.EventDetail) Kind { return Event },
		func(ctx context.Context, db ops.DB, body bool) (*reports.EventDetail, error) {
			return reports.EventAt(ctx, db, v.Query("topic"), int32(partition), offset, body)
		},
	)
	if err != nil {
		return err
	}
	return v.showParts(
		"/events",
		&content{Title: "Event", Of: e.ID, Tags: []string{e.State}, Parts: []part{
			{Facts: factsOf(v, e, eventFacts...)},
			v.headersPart(e.Headers, reveal, ""),
			bodyPart(sealable(e.Sealed()), &e.Bytes, e.Body, reveal && !e.Sealed()),
		}},
		page{Title: "Event " + e.ID},
	)
}

// auditRow shows one decision, and the present state of the rows that it was about.
func (v *visit) auditRow() error {
	id, err := strconv.ParseInt(v.r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		return errMissing
	}
	var rows []reports.AuditRow
	if err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
		rows, _, err = reports.AuditRows(ctx, db, reports.AuditFilter{Before: id + 1, Limit: 1})
		return err
	}); err != nil {
		return err
	}
	if len(rows) == 0 || rows[0].ID != id {
		return errMissing
	}
	r := &rows[0]
	var detail bytes.Buffer
	if json.Indent(&detail, r.Detail, "", "  ") != nil {
		detail.Write(r.Detail)
	}
	now, err := v.stateOf(r)
	if err != nil {
		return err
	}
	c := &content{
		Title: r.Action,
		Of:    "audit " + strconv.FormatInt(id, 10),
		Parts: append([]part{{Facts: factsOf(v, r, auditFacts...)}}, now...),
	}
	if v.Query("done") != "" {
		c.Notices = []notice{{Class: "good", Text: "Done. This is its row of the audit."}}
	}
	c.Parts = append(c.Parts, part{Title: "What was changed", Folded: now != nil, Pre: detail.String()})
	return v.showParts("/audit", c, page{Title: "Decision " + strconv.FormatInt(id, 10), Live: true})
}

// rowsNow is how many rows of a decision are shown as they are now.
const rowsNow = 50

// stateOf shows the present state of what a decision was about.
func (v *visit) stateOf(r *reports.AuditRow) ([]part, error) {
	var about struct {
		IDs       []int64 `json:"ids"`
		ID        string  `json:"id"`
		Scope     string  `json:"scope"`
		Topic     string  `json:"topic"`
		Partition *int32  `json:"partition"`
		Sink      string  `json:"sink"`
	}
	_ = json.Unmarshal(r.Detail, &about) // what does not fit is not shown
	now := part{ID: "now", Title: "As it is now"}
	switch {
	case len(about.IDs) > 0:
		now.Of = fmt.Sprintf("%d rows", len(about.IDs))
		var found []ops.ParkedRow
		if err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
			found, err = operate.ParkedByIDs(ctx, db, about.IDs[:min(len(about.IDs), rowsNow)])
			return err
		}); err != nil {
			return nil, err
		}
		now.Table = decidedRows.table(v, "rows", found)
	case about.ID != "":
		now.Acts = []act{
			{"The request", v.Link("/requests", "all", "1", "id", about.ID)},
			{"Explain it", v.Link("/explain", "q", about.ID)},
		}
	case about.Scope != "":
		if s, _ := v.db.live.status.get(v.ctx, v.db); s != nil {
			all := partitionsOf(s.StatusReport, about.Scope, about.Topic)
			other := func(p partition) bool { return about.Partition != nil && p.Partition != *about.Partition }
			now.Table = partitions.table(v, "cursors", slices.DeleteFunc(all, other))
		}
	case about.Sink != "":
		if o, _ := v.db.live.outbox.get(v.ctx, v.db); o != nil {
			all, _ := o.rows("")
			other := func(s sinkRow) bool { return s.Sink != about.Sink }
			now.Table = sinks.table(v, "sinks", slices.DeleteFunc(all, other))
		}
	}
	if now.Table != nil || now.Acts != nil {
		return []part{now}, nil
	}
	return nil, nil
}
