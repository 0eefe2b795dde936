package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func (a *app) writeKey(r *ops.KeyReport, all bool) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	say("key %s%s", r.Key, idText(r.Of))
	switch {
	case len(r.Scopes) > 0:
		say("No consumer and no webhook endpoint has the scope %s. There are: %s.", cell(r.Of.Scope), cell(strings.Join(r.Scopes, ", ")))
	case r.Scopes != nil:
		say("No consumer and no webhook endpoint has a scope yet.")
	}
	switch {
	case r.Claimed:
		say("It was claimed, and is remembered.")
	case len(r.Claims) > 0:
		say("It was claimed, and is no longer asked for.")
	default:
		say("No segment of the inbox holds it.")
	}
	if f := r.FirstSeen; f != nil {
		say("It was first seen %s.", firstSeenText(f))
	}
	if g := r.Age; g != nil && g.TooOld {
		say("Its id was made at %s. Keys of ids that were made until %s may be forgotten: unless a copy is a duplicate, a consumer with ParkTooOld parks it as too-old.",
			show.Instant(g.MadeAt), show.Instant(*g.TooOldUntil))
	}
	a.writeCopies(r)
	for _, c := range r.Claims {
		say("\n%s, %s", c.Segment, ringState(c))
		say("  claimed      %s", between(c.ClaimedAfter, c.ClaimedBefore))
		if c.Fingerprint != nil {
			say("  fingerprint  %s", *c.Fingerprint)
		} else {
			say("  fingerprint  none: payloads are not compared")
		}
		say("  transaction  %s", transactionText(c.Transaction))
	}
	if !r.Claimed {
		for _, m := range r.Memory {
			say("%s", memoryText(&m))
		}
	}
	for _, w := range r.Webhooks {
		say("\nWebhook: endpoint %s claimed it at %s.", cell(w.Endpoint), show.Instant(w.ClaimedAt))
	}
	if len(r.Call) > 0 {
		say("\nIt is the key of a call:")
		var rows [][]string
		for _, s := range r.Call {
			erased := ""
			if s.ErasedAt != nil {
				erased = show.Instant(*s.ErasedAt)
			}
			rows = append(rows, []string{s.Table, number(s.ID), s.Sink, s.State, number(s.Bytes), erased})
		}
		a.table([]string{"STORED IN", "ID", "SINK", "STATE", "BYTES", "ERASED AT"}, rows)
	}
	a.writeExplainedCalls(r.Calls, all)
	a.writeExplainedParked(r.Parked)
	if q := r.Request; q != nil {
		expires := "is not completed"
		if q.ExpiresAt != nil {
			expires = "expires at " + show.Instant(*q.ExpiresAt)
		}
		say("\nHTTP request: %s, since %s, scope %s; its record %s.", q.State, show.Instant(q.CreatedAt), cell(q.Scope), expires)
		if len(q.Unknown) > 0 {
			say("Steps of unknown outcome: %s", cell(strings.Join(q.Unknown, ", ")))
		}
	}
	a.writeNotKnown(r.NotKnown)
}

// idText describes what a key was made of.
func idText(o *ops.KeyOf) string {
	if o == nil {
		return ""
	}
	s := fmt.Sprintf(": id %q, scope %q", o.ID, o.Scope)
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

// transactionText describes what is known of the transaction that wrote a row.
func transactionText(x *ops.Transaction) string {
	if x == nil {
		return "not known any more"
	}
	return x.String()
}

func ringState(c ops.Claim) string {
	switch c.State {
	case "retired", "forgotten":
		return fmt.Sprintf("%s by ring %s: claims do not ask it any more", c.State, c.Ring)
	}
	return fmt.Sprintf("%s in ring %s", c.State, c.Ring)
}

func firstSeenText(f *ops.FirstSeen) string {
	if f.At != nil {
		return "at " + show.Instant(*f.At)
	}
	return between(f.After, f.Before)
}

func between(after, before *time.Time) string {
	switch {
	case after != nil && before != nil:
		return fmt.Sprintf("between %s and %s", show.Instant(*after), show.Instant(*before))
	case after != nil:
		return "since " + show.Instant(*after)
	}
	return "not known"
}

// memoryText describes what it means that a ring does not hold a key.
func memoryText(m *ops.RingMemory) string {
	return fmt.Sprintf("%s remembers %s, and holds every key that was claimed in it within the last %s.", m.Ring, remembered(m.Horizon), show.Ago(m.CompleteFor))
}

// writeExplainedCalls shows the calls whose keys derive from the message, or all.
func (a *app) writeExplainedCalls(calls []ops.ExplainedCall, all bool) {
	if len(calls) == 0 {
		return
	}
	_, _ = fmt.Fprintf(a.out, "\nCalls of that transaction: %d%s\n", len(calls), map[bool]string{true: ", and perhaps more"}[len(calls) == reports.ExplainLimit])
	var rows [][]string
	own := slices.IndexFunc(calls, func(c ops.ExplainedCall) bool { return c.Derived == nil })
	if all || own < 1 {
		own = len(calls)
	}
	for _, c := range calls[:own] {
		derived := "not known"
		if c.Derived != nil {
			derived = "yes"
		}
		rows = append(rows, []string{number(c.ID), c.Sink, c.Name, c.Scope, c.State, c.Key, numberOrDash(c.ParkedID), derived})
	}
	a.table([]string{"ID", "SINK", "NAME", "SCOPE", "STATE", "KEY", "PARKED", "DERIVED"}, rows)
	if own < len(calls) {
		a.say("%d more of the same transaction, which may be of other messages: -all shows them", len(calls)-own)
	}
}

func (a *app) writeExplainedParked(parked []ops.ParkedItem) {
	if len(parked) == 0 {
		return
	}
	_, _ = fmt.Fprintf(a.out, "\nParked: %d%s\n", len(parked), map[bool]string{true: ", and perhaps more"}[len(parked) == reports.ExplainLimit])
	var rows [][]string
	for i := range parked {
		p := &parked[i]
		settled := ""
		if p.SettledAt != nil {
			settled = show.Instant(*p.SettledAt)
		}
		rows = append(rows, []string{number(p.ID), p.Kind, p.State, p.Reason, p.Scope, p.Origin(), show.Instant(p.ParkedAt), settled, show.FirstLine(p.Error, errorShown)})
	}
	a.table([]string{"ID", "KIND", "STATE", "REASON", "SCOPE", "ORIGIN", "PARKED AT", "SETTLED AT", "ERROR"}, rows)
}

func (a *app) writeNotKnown(open []string) {
	if len(open) == 0 {
		return
	}
	_, _ = fmt.Fprintln(a.out, "\nNot known:")
	for _, s := range open {
		_, _ = fmt.Fprintf(a.out, "  - %s\n", s)
	}
}

func (a *app) writePosition(r *ops.PositionReport, all bool) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	say("%s, partition %d, offset %d", cell(r.Topic), r.Partition, r.Offset)
	if len(r.Cursors) == 0 {
		say("No cursor of this database is there.")
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		state := ""
		if c.State != "" {
			state = " (" + c.State + ")"
		}
		say("\nScope %s, at %d%s: %s: %s.", cell(c.Scope), c.Position, state, c.Offset, c.Means)
		if m := c.Moved; m != nil {
			say("  batch        %d to %d", m.From, m.Next)
			say("  transaction  %s", transactionText(m.Transaction))
		} else if c.Offset == "handled" {
			say("  batch        not on record any more")
		}
		a.writeExplainedCalls(c.Calls, all)
	}
	a.writeExplainedParked(r.Parked)
	if e := r.Event; e != nil {
		erased := ""
		if e.ErasedAt != nil {
			erased = ", erased at " + show.Instant(*e.ErasedAt)
		}
		tenant := ""
		if e.Tenant != "" {
			tenant = ", tenant " + cell(e.Tenant)
		}
		say("\nEvent %s%s, appended at %s%s. Its id was claimed then: onlyonce explain shows it with -scope of who appended it.", cell(e.ID), tenant, show.Instant(e.AppendedAt), erased)
	}
	a.writeNotKnown(r.NotKnown)
}
