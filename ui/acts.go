package ui

import (
	"context"
	"net/url"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// parkedActs are those about one parked row.
func parkedActs() []act {
	return []act{
		{name: "redrive", title: "Redrive", means: "The row becomes due at once, with as many attempts as a new one has. It is applied once at most: a message under its id, a call under its key.",
			try: func(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error) {
				in, err := parkedID(f)
				if err != nil {
					return nil, err
				}
				was, err := read[ops.ParkedChange](shown)
				if err != nil {
					return nil, err
				}
				c, err := ops.Redrive(ctx, db, by, ops.RedriveInput{ParkedFilter: in, VerifiedApplied: f.Get("verified") == "applied", VerifiedNotApplied: f.Get("verified") == "not-applied",
					NewKey: f.Get("new_key") != "", Shown: was})
				return parkedDeed("retried", c, err)
			}},
		{name: "discard", title: "Discard", danger: true, means: "The row is given up: it is never applied or sent. It stays stored, and the id of a message stays claimed, so that copies which arrive later are duplicates.",
			try: func(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error) {
				in, err := parkedID(f)
				if err != nil {
					return nil, err
				}
				was, err := read[ops.ParkedChange](shown)
				if err != nil {
					return nil, err
				}
				c, err := ops.Discard(ctx, db, by, ops.DiscardInput{ParkedFilter: in, Shown: was})
				return parkedDeed("given up", c, err)
			}},
	}
}

func parkedID(f url.Values) (in ops.ParkedFilter, err error) {
	id, err := whole(f, "id", 64)
	if err == nil && id == nil {
		err = &ops.Error{Kind: ops.ErrInvalid, Reason: "the address names no row"}
	}
	if err == nil {
		in.ID = *id
	}
	return in, err
}

func parkedDeed(verb string, c *ops.ParkedChange, err error) (*deed, error) {
	if err != nil {
		return nil, err
	}
	d := &deed{AuditID: c.AuditID, shown: c, Examples: c.Rows, Sentence: show.Count(int64(c.Count), "row") + " is " + verb + "."}
	for _, k := range c.Keys {
		d.Facts = append(d.Facts, [2]string{"Old key", k.OldKey}, [2]string{"New key", k.NewKey})
	}
	return d, nil
}

// placeOf reads a partition, or a scope as a whole.
func placeOf(f url.Values) (ops.Place, error) {
	at := ops.Place{Scope: f.Get("scope"), Topic: f.Get("topic")}
	n, err := whole(f, "partition", 32)
	switch {
	case err != nil:
		return at, err
	case n != nil:
		at.Partition = int32(*n)
	case at.Topic != "":
		return at, &ops.Error{Kind: ops.ErrInvalid, Reason: "the address names a topic and no partition"}
	}
	return at, nil
}

// nothingShown is what a pause has shown: the database itself refuses a second one.
type nothingShown struct {
	Cursors int64 `json:"cursors"`
}

// placeActs are those about a partition, or a scope as a whole.
func placeActs() []act {
	pause := func(do func(context.Context, ops.DB, ops.By, ops.Place) (*ops.Paused, error), sentence string) func(context.Context, ops.DB, ops.By, url.Values, []byte) (*deed, error) {
		return func(ctx context.Context, db ops.DB, by ops.By, f url.Values, _ []byte) (*deed, error) {
			at, err := placeOf(f)
			if err != nil {
				return nil, err
			}
			p, err := do(ctx, db, by, at)
			if err != nil {
				return nil, err
			}
			d := &deed{AuditID: p.AuditID, shown: nothingShown{p.Cursors}, Sentence: sentence, Facts: [][2]string{{"Place", at.String()}, {"Partitions with a cursor", strconv.FormatInt(p.Cursors, 10)}}}
			if p.Was != nil {
				d.Facts = append(d.Facts, [2]string{"Paused since", show.Instant(p.Was.PausedAt) + " by " + p.Was.Actor + ": " + p.Was.Reason})
			}
			for i := range p.Others {
				d.Facts = append(d.Facts, [2]string{"Another pause", p.Others[i].What()})
			}
			return d, nil
		}
	}
	return []act{
		{name: "pause", title: "Pause", means: "Owners finish the batch that they are in, and keep their partitions. What is parked is not tried meanwhile. A pause outlasts restarts.",
			try: pause(ops.PauseCursor, "Work stops within a second or two, until somebody resumes it.")},
		{name: "resume", title: "Resume", means: "Work goes on within a second or two. A pause of the whole scope and pauses of single partitions end one by one.",
			try: pause(ops.ResumeCursor, "The pause ends.")},
		{name: "adopt", title: "Adopt", danger: true, means: "Resolves a halt: the owner is fenced out, and the cursor gets another group or another position. Messages between the old position and a higher one are never handled; those above a lower one are handled again.",
			fields: []field{{Name: "at", Label: "Position", Hint: "The offset that is to be handled next. Empty: it stays as it is."},
				{Name: "group", Label: "Group", Hint: "The Kafka group that is to own the cursor. Empty: the next group that takes it."},
				{Name: "stopped", Label: "The old group's processes have ended, although they did not release the cursor", Check: true}},
			try: tryAdopt},
		{name: "replay", title: "Replay", danger: true, means: "Messages of the range are handled and applied again, although that was done. First undo what they did. New messages wait until the replay is over.",
			fields: []field{{Name: "from", Label: "From offset", Hint: "The first that is handled again.", Required: true}, {Name: "to", Label: "To offset", Hint: "The first that is not. Empty: the position."},
				{Name: "resend", Label: "Send the calls of these messages again too, under new keys: remotes apply them again", Check: true}},
			try: tryReplay},
	}
}

func cursorFacts(facts [][2]string, when string, c *ops.Cursor) [][2]string {
	if c == nil {
		return append(facts, [2]string{when, "no cursor"})
	}
	text := "position " + strconv.FormatInt(c.Position, 10)
	if c.Group != nil {
		text += ", group " + *c.Group
	}
	if s := c.State(); s != "" {
		text += ", " + s
	}
	return append(facts, [2]string{when, text})
}

// ofCursor is what was shown of a cursor. The JSON of a cursor leaves out its id, which is compared
// too.
type ofCursor[R any] struct {
	Result *R    `json:"result"`
	ID     int64 `json:"id"`
}

func tryAdopt(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error) {
	at, err := placeOf(f)
	if err != nil {
		return nil, err
	}
	in := ops.AdoptInput{Place: at, Group: f.Get("group"), OldGroupStopped: f.Get("stopped") != ""}
	if in.At, err = whole(f, "at", 64); err != nil {
		return nil, err
	}
	was, err := read[ofCursor[ops.Adopted]](shown)
	if err != nil {
		return nil, err
	}
	if was != nil {
		if in.Shown = was.Result; in.Shown == nil {
			return nil, errUnseen
		}
		if in.Shown.Before != nil {
			in.Shown.Before.ID = was.ID
		}
	}
	a, err := ops.AdoptCursor(ctx, db, by, in)
	if err != nil {
		return nil, err
	}
	seen := ofCursor[ops.Adopted]{Result: a}
	if a.Before != nil {
		seen.ID = a.Before.ID
	}
	d := &deed{AuditID: a.AuditID, shown: seen, Sentence: "The position stays, and the cursor is free for its next owner."}
	if in.At != nil {
		d.Sentence = "The position is set to " + strconv.FormatInt(*in.At, 10) + "."
	}
	d.Facts = cursorFacts(cursorFacts([][2]string{{"Partition", at.String()}}, "Before", a.Before), "After", a.After)
	if a.Skipped != nil && *a.Skipped > 0 {
		d.Facts = append(d.Facts, [2]string{"Never handled", show.Count(*a.Skipped, "offset")})
	}
	if a.Repeated != nil && *a.Repeated > 0 {
		d.Facts = append(d.Facts, [2]string{"Handled again", show.Count(*a.Repeated, "offset")})
	}
	return d, nil
}

func tryReplay(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error) {
	at, err := placeOf(f)
	if err != nil {
		return nil, err
	}
	in := ops.ReplayInput{Place: at, Resend: f.Get("resend") != ""}
	from, err := whole(f, "from", 64)
	if err != nil {
		return nil, err
	}
	to, err := whole(f, "to", 64)
	if err != nil {
		return nil, err
	}
	if from != nil {
		in.From = *from
	}
	if to != nil {
		in.To = *to
	}
	was, err := read[ofCursor[ops.Replayed]](shown)
	if err != nil {
		return nil, err
	}
	if was != nil {
		if in.Shown = was.Result; in.Shown == nil || in.Shown.Before == nil {
			return nil, errUnseen
		}
		in.Shown.Before.ID = was.ID
	}
	r, err := ops.Replay(ctx, db, by, in)
	if err != nil {
		return nil, err
	}
	offset := func(n int64) string { return strconv.FormatInt(n, 10) }
	d := &deed{AuditID: r.AuditID, shown: ofCursor[ops.Replayed]{r, r.Before.ID}, Sentence: show.Count(r.To-r.From, "offset") + " from " + offset(r.From) + " to below " + offset(r.To) + " are handled again, as replay " + strconv.Itoa(int(r.Replay)) + ".",
		Facts: [][2]string{{"Partition", at.String()}, {"Then goes on at", offset(r.Resume)}}}
	if r.Resend {
		d.Facts = append(d.Facts, [2]string{"Calls", "are sent again, under new keys"})
	}
	return d, nil
}

// otherActs are those about a sink or a request.
func otherActs() []act {
	sink := func(do func(context.Context, ops.DB, ops.By, string) (*ops.Sink, error), sentence string) func(context.Context, ops.DB, ops.By, url.Values, []byte) (*deed, error) {
		return func(ctx context.Context, db ops.DB, by ops.By, f url.Values, _ []byte) (*deed, error) {
			s, err := do(ctx, db, by, f.Get("sink"))
			if err != nil {
				return nil, err
			}
			d := &deed{AuditID: s.AuditID, shown: nothingShown{}, Sentence: sentence, Facts: [][2]string{{"Sink", f.Get("sink")}}}
			if s.PausedAt != nil {
				d.Facts = append(d.Facts, [2]string{"Paused", s.Paused()})
			}
			return d, nil
		}
	}
	return []act{
		{name: "pause-sink", title: "Pause the sink", means: "Relays start no call to it. Running calls end, and applications can still enqueue. Keys age meanwhile: a call that was made before, without a final answer, may need a decision if its remote forgets the key.",
			try: sink(func(ctx context.Context, db ops.DB, by ops.By, name string) (*ops.Sink, error) {
				return ops.PauseSink(ctx, db, by, ops.PauseSinkInput{Sink: name})
			}, "Calls to the sink stop, until somebody resumes it.")},
		{name: "resume-sink", title: "Resume the sink", means: "Relays go on within a second or two.", try: sink(ops.ResumeSink, "The pause ends.")},
		{name: "resolve", title: "Resolve a step", means: "A request has begun an external call, and its outcome is not known. Ask the provider, and record here what happened. When the client sends the request again, it goes on from there.",
			fields: []field{{Name: "outcome", Label: "Outcome", Hint: "applied: it had its effect at the provider. not-applied: it had none; the call is made again, under its key.", Required: true},
				{Name: "result", Label: "Result", Hint: "What the step returns to the handler. Only with applied."}},
			try: func(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error) {
				in := ops.ResolveRequestInput{ID: f.Get("id"), Step: f.Get("step"), Outcome: ops.StepOutcome(f.Get("outcome"))}
				if text := f.Get("result"); text != "" {
					in.Result = []byte(text)
				}
				var err error
				if in.Shown, err = read[ops.RequestChange](shown); err != nil {
					return nil, err
				}
				c, err := ops.ResolveRequest(ctx, db, by, in)
				return requestDeed("The outcome of step "+in.Step+" is recorded: "+string(in.Outcome)+".", c, err)
			}},
		{name: "close", title: "Close the request", danger: true, means: "The request is completed without an answer. What its steps did at the provider stays, and what its handler would have written is never written. Copies of it get 410.",
			try: func(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error) {
				was, err := read[ops.RequestChange](shown)
				if err != nil {
					return nil, err
				}
				c, err := ops.CloseRequest(ctx, db, by, ops.CloseRequestInput{ID: f.Get("id"), Shown: was})
				return requestDeed("The request is closed.", c, err)
			}},
	}
}

func requestDeed(sentence string, c *ops.RequestChange, err error) (*deed, error) {
	if err != nil {
		return nil, err
	}
	return &deed{AuditID: c.AuditID, shown: c, Sentence: sentence, Facts: [][2]string{{"Request", c.ID}, {"State", c.State}, {"Scope", c.Scope}, {"Began", show.Instant(c.CreatedAt)}}}, nil
}
