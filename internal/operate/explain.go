package operate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// ExplainedKey says what is known of a key, in three sentences: whether it was claimed, what became
// of it, and what a copy is that comes now.
func ExplainedKey(r *ops.KeyReport) []string {
	return []string{claimed(r), became(r), copied(r)}
}

// claimed says whether the key was claimed, and when.
func claimed(r *ops.KeyReport) string {
	name := "Key " + r.Key
	if r.Of != nil {
		name = r.Of.ID + " of scope " + r.Of.Scope
	}
	switch {
	case len(r.Scopes) > 0:
		return fmt.Sprintf("Nothing is stored of %s: no consumer and no webhook endpoint has that scope. There are: %s.", name, strings.Join(r.Scopes, ", "))
	case len(r.Claims) == 0:
		return name + " was not claimed, or is forgotten: no segment of the inbox holds it."
	}
	remembered := ", and is remembered."
	if !r.Claimed {
		remembered = ", and is no longer asked for."
	}
	return name + " was claimed " + r.Seen() + remembered
}

// became says what became of the key: the row that waits first, then its own calls.
func became(r *ops.KeyReport) string {
	for i := range r.Parked {
		if p := &r.Parked[i]; p.SettledAt == nil {
			return fmt.Sprintf("It is parked as row %d (%s), %s after %s: %s", p.ID, p.Reason, p.State, show.Count(int64(p.Attempts), "attempt"), stop(show.FirstLine(p.Error, 200)))
		}
	}
	var own []string
	for _, c := range r.Calls {
		if c.Derived != nil {
			own = append(own, fmt.Sprintf("its call %s to %s is %s", c.Name, c.Sink, c.State))
		}
	}
	switch {
	case r.Request != nil:
		return fmt.Sprintf("Its HTTP request is %s.", r.Request.State)
	case len(r.Call) > 0:
		return fmt.Sprintf("It is a call to %s, and is %s.", r.Call[0].Sink, r.Call[0].State)
	case len(own) > 0:
		text := strings.Join(own, ", ")
		return strings.ToUpper(text[:1]) + text[1:] + "."
	case len(r.Parked) > 0:
		return fmt.Sprintf("It was parked as row %d, and is %s.", r.Parked[0].ID, r.Parked[0].State)
	case len(r.Calls) > 0:
		return fmt.Sprintf("Its transaction enqueued %s, of which none is known to be its own.", show.Count(int64(len(r.Calls)), "call"))
	case len(r.Webhooks) > 0:
		return fmt.Sprintf("Endpoint %s recorded it at %s.", r.Webhooks[0].Endpoint, show.Instant(r.Webhooks[0].ClaimedAt))
	}
	return "Nothing is parked under it, and no call of it is known."
}

// copied says what a copy is that comes now. A ring in which such a key is never claimed does not
// count.
func copied(r *ops.KeyReport) string {
	var is []string
	for _, c := range r.Copies {
		held := slices.ContainsFunc(r.Claims, func(k ops.Claim) bool { return k.Ring == c.Ring })
		standard := !ring.OfConsumers(c.Ring)
		other := !held && (r.Request != nil || !standard && (len(r.Call) > 0 || len(r.Webhooks) > 0) || standard && len(r.Claims) > 0)
		switch {
		case other && c.Because == nil:
		case c.Duplicate:
			is = append(is, "a duplicate in "+c.Ring+" ("+*c.Because+")")
		default:
			is = append(is, "new in "+c.Ring)
		}
	}
	if len(is) == 0 {
		return "Its client gets the stored answer as long as its record is kept."
	}
	return "A copy that comes now is " + strings.Join(is, ", and ") + "."
}

// ExplainedPosition says what became of a position: a sentence for each parked row and for each
// cursor, at most three.
func ExplainedPosition(r *ops.PositionReport) []string {
	var all []string
	for i := range r.Parked {
		p := &r.Parked[i]
		all = append(all, fmt.Sprintf("Scope %s has parked it as row %d (%s), which is %s: %s", p.Scope, p.ID, p.Reason, p.State, stop(show.FirstLine(p.Error, 200))))
	}
	for _, c := range r.Cursors {
		all = append(all, fmt.Sprintf("Scope %s, at %d: %s.", c.Scope, c.Position, c.Means))
	}
	if len(all) == 0 {
		all = []string{"No cursor of this database is there, and nothing of it is parked."}
	}
	return all[:min(len(all), 3)]
}

// stop ends a sentence that quotes an error.
func stop(text string) string {
	if text == "" {
		return "it was not tried."
	}
	return strings.TrimSuffix(text, ".") + "."
}

// KeyDetails says what the three sentences of a key leave out: its id's age, the endpoint that has
// recorded it, and its HTTP request.
func KeyDetails(r *ops.KeyReport) (said []string) {
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	if g := r.Age; g != nil && g.TooOld {
		say("Its id was made at %s. Keys of ids that were made until %s may be forgotten: unless a copy is a duplicate, a consumer with ParkTooOld parks it as too-old.",
			show.Instant(g.MadeAt), show.Instant(*g.TooOldUntil))
	}
	for _, w := range r.Webhooks {
		say("Webhook: endpoint %s claimed it at %s.", w.Endpoint, show.Instant(w.ClaimedAt))
	}
	if q := r.Request; q != nil {
		expires := "is not completed"
		if q.ExpiresAt != nil {
			expires = "expires at " + show.Instant(*q.ExpiresAt)
		}
		say("HTTP request: %s, since %s, scope %s; its record %s.", q.State, show.Instant(q.CreatedAt), q.Scope, expires)
		if len(q.Unknown) > 0 {
			say("Steps of unknown outcome: %s", strings.Join(q.Unknown, ", "))
		}
	}
	for _, m := range r.Memory {
		if !r.Claimed {
			say("%s remembers %s, and holds every key that was claimed in it within the last %s.", m.Ring, show.Remembered(m.Horizon), show.Ago(m.CompleteFor))
		}
	}
	return said
}

// KeyName says what a key is of.
func KeyName(r *ops.KeyReport) string {
	o := r.Of
	if o == nil {
		return "key " + r.Key
	}
	s := fmt.Sprintf("key %s: id %q, scope %q", r.Key, o.ID, o.Scope)
	if o.Tenant != "" {
		s += fmt.Sprintf(", tenant %q", o.Tenant)
	}
	if o.Topic != "" {
		s += fmt.Sprintf(", topic %q", o.Topic)
	}
	if o.Replay > 0 {
		s += fmt.Sprintf(", in replay %d", o.Replay)
	}
	return s
}

// OwnCalls are those of a transaction's calls whose keys derive from the message, or all if that is
// known of none.
func OwnCalls(calls []ops.ExplainedCall) []ops.ExplainedCall {
	if own := slices.IndexFunc(calls, func(c ops.ExplainedCall) bool { return c.Derived == nil }); own > 0 {
		return calls[:own]
	}
	return calls
}

// CursorFate says what a cursor means for an offset.
func CursorFate(c *ops.ExplainedCursor) string {
	state := ""
	if c.State != "" {
		state = " (" + c.State + ")"
	}
	return fmt.Sprintf("Scope %s, at %d%s: %s: %s.", c.Scope, c.Position, state, c.Offset, c.Means)
}

// CursorBatch says which batch moved the cursor past the offset, empty if none has.
func CursorBatch(c *ops.ExplainedCursor) string {
	switch m := c.Moved; {
	case m != nil && m.Transaction == nil:
		return fmt.Sprintf("It was in the batch from %d to %d, of a transaction that is not known any more.", m.From, m.Next)
	case m != nil:
		return fmt.Sprintf("It was in the batch from %d to %d, of transaction %s.", m.From, m.Next, m.Transaction)
	case c.Offset == "handled":
		return "Its batch is not on record any more."
	}
	return ""
}
