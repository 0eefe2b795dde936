package operate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// ExplainedKey says what is known of a key: first what became of it, then whether it was claimed
// and what a copy is that comes now, and at the end the next step if there is one.
func ExplainedKey(r *ops.KeyReport) []string {
	said := []string{became(r)}
	switch {
	case r.Request != nil:
	case len(r.Call) > 0 && len(r.Claims) == 0: // the key of a call is in no inbox
		said = append(said, copied(r))
	default:
		said = append(said, claimed(r), copied(r))
	}
	if next := nextStep(r); next != "" {
		said = append(said, "Next: "+next)
	}
	return said
}

// claimed says whether the key was claimed, and when.
func claimed(r *ops.KeyReport) string {
	name := "Key " + r.Key
	if r.Of != nil {
		name = r.Of.ID + " of scope " + r.Of.Scope
	}
	switch {
	case len(r.Scopes) > 0:
		return fmt.Sprintf("Nothing is stored of %s: no consumer and no webhook endpoint has that scope. "+
			"There are: %s.", name, strings.Join(r.Scopes, ", "))
	case len(r.Claims) == 0:
		return name + " was never claimed, or is forgotten: no segment of the inbox holds it."
	}
	remembered := ", and is remembered."
	if !r.Claimed {
		remembered = ", and is no longer asked for."
	}
	return name + " was claimed " + seen(r) + remembered
}

// became says what became of the key, as far as that is known.
func became(r *ops.KeyReport) string {
	switch {
	case r.Request != nil:
		return requestFate(r.Request)
	case len(r.Call) > 0:
		return fmt.Sprintf("It is a call to %s, and is %s.%s",
			r.Call[0].Sink, cmp.Or(callStates[r.Call[0].State], r.Call[0].State), parkedAs(r))
	case len(r.Events) > 0:
		return eventFate(r)
	case appliedByConsumer(r):
		return messageFate(r) + ownCalls(r) + parkedAs(r)
	case len(r.Claims) > 0 || len(r.Webhooks) > 0:
		return recorded(r) + ownCalls(r) + parkedAs(r)
	case len(r.Parked) > 0:
		return strings.TrimSpace(parkedAs(r))
	case len(r.Calls) > 0:
		return fmt.Sprintf("Its transaction enqueued %s; none is known to be its own.",
			show.Count(int64(len(r.Calls)), "call"))
	}
	return "It is not known: nothing is parked under it, and no call, no event and no request of it is stored."
}

// callStates say of a call's state what it means for the remote.
var callStates = map[string]string{
	"pending":   "not sent yet",
	"retrying":  "not delivered: it is tried again",
	"blocked":   "not delivered: it waits behind another one of its ordering key",
	"waiting":   "not delivered: a person has to decide",
	"reconcile": "perhaps delivered: that is not known, and a person has to ask the remote",
	"discarded": "given up, as an operator has decided",
}

// messageFate says what became of a message that a consumer's transaction has claimed: its effects,
// or the row in which it is parked, are of the same transaction.
func messageFate(r *ops.KeyReport) string {
	var own *ops.ParkedRow
	for i := range r.Parked {
		p := &r.Parked[i]
		if !slices.Contains(others, p.Reason) && (own == nil || p.ID > own.ID) {
			own = p
		}
	}
	switch {
	case own == nil:
		return fmt.Sprintf("It was applied %s: a consumer's transaction claimed it together with its effects.", seen(r))
	case own.SettledAt == nil:
		return fmt.Sprintf("It is not applied: a consumer's transaction parked it %s.", seen(r))
	case own.State == "discarded":
		return fmt.Sprintf("It was not applied: a consumer's transaction parked it %s, and an operator gave it up.",
			seen(r))
	}
	return fmt.Sprintf("It was applied, at the latest at %s: it had been parked before.", show.Instant(*own.SettledAt))
}

// requestFate says what became of an HTTP request.
func requestFate(q *ops.Request) string {
	text := "It is the Idempotency-Key of " + strings.TrimPrefix(q.Scope, "http ")
	if q.Tenant != "" {
		text += ", tenant " + q.Tenant
	}
	switch {
	case q.CompletedAt != nil && q.ExpiresAt != nil:
		return fmt.Sprintf("%s: answered at %s; a copy gets that answer until %s.",
			text, show.Instant(*q.CompletedAt), show.Instant(*q.ExpiresAt))
	case q.State == "running":
		return fmt.Sprintf("%s: its request is running since %s.", text, show.Instant(q.CreatedAt))
	case q.State == "reconcile":
		return text + ": a step of its request has an unknown outcome, and an operator has to decide."
	}
	return fmt.Sprintf("%s: its request is %s, since %s, and a copy goes on with it.",
		text, q.State, show.Instant(q.CreatedAt))
}

// eventFate says what became of a stored event: a webhook, or a message of a queue.
func eventFate(r *ops.KeyReport) string {
	e := &r.Events[0]
	at := fmt.Sprintf("%s/%d, offset %d, since %s", e.Topic, e.Partition, e.Offset, show.Instant(e.AppendedAt))
	scope, parked := strings.CutPrefix(e.State, "parked by ")
	switch {
	case e.State == "handled":
		return fmt.Sprintf("It was applied, or an operator gave it up: each consumer has handled it (%s).%s",
			at, parkedAs(r))
	case e.State == "unread":
		return fmt.Sprintf("It is stored (%s), and not applied yet: no consumer has begun to read the stream.%s",
			at, parkedAs(r))
	case parked:
		return fmt.Sprintf("It is not applied: the consumer of scope %s has parked it (%s).%s", scope, at, parkedAs(r))
	}
	return fmt.Sprintf("It is stored (%s), and not applied yet: it is %s.%s",
		at, strings.Replace(e.State, "before ", "still to be handled by the consumer of scope ", 1), parkedAs(r))
}

// appliedByConsumer reports whether the key was claimed as consumers do: with the effects, in one
// transaction.
func appliedByConsumer(r *ops.KeyReport) bool {
	return slices.ContainsFunc(r.Claims, func(c ops.Claim) bool { return ring.OfConsumers(c.Ring) })
}

// recorded says who claimed a key that no consumer claimed with its effects.
func recorded(r *ops.KeyReport) string {
	if len(r.Webhooks) > 0 {
		return fmt.Sprintf("Endpoint %s recorded it at %s.",
			r.Webhooks[0].Endpoint, show.Instant(r.Webhooks[0].ClaimedAt))
	}
	return "It was taken: its id was claimed " + seen(r) + "."
}

// ownCalls says what became of its own calls, with a space in front.
func ownCalls(r *ops.KeyReport) string {
	var own []string
	for _, c := range r.Calls {
		if c.Derived != nil {
			own = append(own, fmt.Sprintf("its call %s to %s is %s", c.Name, c.Sink, c.State))
		}
	}
	if len(own) == 0 {
		return ""
	}
	text := strings.Join(own, ", ")
	return " " + strings.ToUpper(text[:1]) + text[1:] + "."
}

// others are the reasons of a row that is about another message or event than the one that was
// applied under the id.
var others = []string{"conflict", "divergent", "same-body"}

// parkedAs says as which row it is parked, or set aside, the one that waits first; with a space in
// front.
func parkedAs(r *ops.KeyReport) string {
	if len(r.Parked) == 0 {
		return ""
	}
	p := waitingRow(r)
	subject := "It"
	if slices.Contains(others, p.Reason) && len(r.Claims)+len(r.Events) > 0 {
		subject = "Another one of its id, with another content,"
	}
	if p.Kind == "call" && p.State == "resolved" && p.Reason == "completion" {
		return fmt.Sprintf(" Its answer was captured, and RelayConfig.Complete has had it (row %d).", p.ID)
	}
	if p.SettledAt != nil {
		return fmt.Sprintf(" %s was parked as row %d (%s), and is %s.", subject, p.ID, p.Reason, p.State)
	}
	return fmt.Sprintf(" %s is parked as row %d (%s), %s after %s: %s",
		subject,
		p.ID,
		p.Reason,
		p.State,
		show.Count(int64(p.Attempts), "attempt"),
		stop(show.FirstLine(p.Error, 200)))
}

// waitingRow is the first row that is not settled, or else the first one.
func waitingRow(r *ops.KeyReport) *ops.ParkedRow {
	for i := range r.Parked {
		if r.Parked[i].SettledAt == nil {
			return &r.Parked[i]
		}
	}
	return &r.Parked[0]
}

// nextStep is the command that shows more, or decides; empty: there is nothing to do.
func nextStep(r *ops.KeyReport) string {
	switch {
	case len(r.Parked) > 0 && waitingRow(r).SettledAt == nil:
		return fmt.Sprintf("onlyonce parked show -id %d", waitingRow(r).ID)
	case r.Request != nil && r.Request.CompletedAt == nil:
		return "onlyonce request list -id " + r.Request.ID
	case len(r.Events) > 0 && r.Events[0].State != "handled":
		return "onlyonce status, for whether its consumer runs"
	case len(r.Call) > 0 && r.Call[0].State == "pending":
		return "onlyonce outbox status -sink " + show.Quote(r.Call[0].Sink)
	}
	return ""
}

// copied says what a copy is that comes now: in one word if all rings agree. A ring in which such a
// key is never claimed does not count.
func copied(r *ops.KeyReport) string {
	var is, because []string
	fresh := false
	for _, c := range r.Copies {
		held := slices.ContainsFunc(r.Claims, func(k ops.Claim) bool { return k.Ring == c.Ring })
		standard := !ring.OfConsumers(c.Ring)
		other := !held &&
			(r.Request != nil ||
				!standard && (len(r.Call) > 0 || len(r.Webhooks) > 0 || len(r.Events) > 0) ||
				standard && len(r.Claims) > 0)
		switch {
		case other && c.Because == nil:
		case c.Duplicate:
			is = append(is, "a duplicate in "+c.Ring+" ("+*c.Because+")")
			because = append(because, *c.Because)
		default:
			is = append(is, "new in "+c.Ring)
			fresh = true
		}
	}
	switch {
	case len(is) == 0:
		return "Its client gets the stored answer as long as its record is kept."
	case !fresh:
		slices.Sort(because)
		return "A copy that comes now is a duplicate (" + strings.Join(slices.Compact(because), ", ") + ")."
	case len(because) == 0:
		return "A copy that comes now is new."
	}
	return "A copy that comes now is " + strings.Join(is, ", and ") + "."
}

// ExplainedPosition says what became of a position: a sentence for each parked row and for each
// cursor, at most three.
func ExplainedPosition(r *ops.PositionReport) []string {
	var all []string
	for i := range r.Parked {
		p := &r.Parked[i]
		all = append(
			all,
			fmt.Sprintf("Scope %s has parked it as row %d (%s), which is %s: %s",
				p.Scope, p.ID, p.Reason, p.State, stop(show.FirstLine(p.Error, 200))),
		)
	}
	for _, c := range r.Cursors {
		all = append(all, fmt.Sprintf("Scope %s, at %d: %s.", c.Scope, c.Position, c.Means))
	}
	if len(all) == 0 {
		all = []string{"This database has no cursor for it, and nothing of it is parked."}
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
		say("Its id was made at %s. Keys of ids that were made until %s may be forgotten: unless a copy is "+
			"a duplicate, a consumer with ParkTooOld parks it as too-old.",
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
		say("HTTP request: %s, since %s, scope %s; its record %s.",
			q.State, show.Instant(q.CreatedAt), q.Scope, expires)
		if len(q.Unknown) > 0 {
			say("Steps of unknown outcome: %s", strings.Join(q.Unknown, ", "))
		}
	}
	for _, m := range r.Memory {
		if !r.Claimed {
			say("%s remembers %s, and holds every key that was claimed in it within the last %s.",
				m.Ring, show.Remembered(m.Horizon), show.Ago(m.CompleteFor))
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
		return fmt.Sprintf("It was in the batch from %d to %d, of a transaction that is no longer known.",
			m.From, m.Next)
	case m != nil:
		return fmt.Sprintf("It was in the batch from %d to %d, of transaction %s.", m.From, m.Next, m.Transaction)
	case c.Offset == "handled":
		return "Its batch is not on record any more."
	}
	return ""
}
