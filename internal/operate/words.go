package operate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// Origin is a parked row's origin: a position in Kafka, or a call.
func Origin(r *ops.ParkedRow) string {
	switch {
	case r.Topic != nil && r.Partition != nil && r.Offset != nil:
		return fmt.Sprintf("%s/%d@%d", *r.Topic, *r.Partition, *r.Offset)
	case r.Sink != nil && r.Name != nil:
		return *r.Sink + "/" + *r.Name
	}
	return ""
}

// firstLine is the beginning of an error, for a table.
func firstLine(err string) string { return show.FirstLine(err, 60) }

// redriven says how often and when a parked row was redriven, empty if it was not.
func redriven(r *ops.ParkedRow) string {
	if r.RedrivenAt == nil {
		return ""
	}
	return fmt.Sprintf("%dx, %s ago", r.Redrives, ago(*r.RedrivenAt))
}

// start describes the offset at which a cursor began, and the reason.
func start(c *ops.Cursor) string { return fmt.Sprintf("%d %s", c.StartOffset, c.StartPolicy) }

// tried describes the attempts at a message that is handled alone, empty if there are none.
func tried(c *ops.Cursor) string {
	if c.Attempts == 0 || c.AttemptOffset == nil {
		return ""
	}
	return fmt.Sprintf("%d at %d", c.Attempts, *c.AttemptOffset)
}

// derived says whether a call's key derives from the message.
func derived(c *ops.ExplainedCall) string {
	switch {
	case c.Derived == nil:
		return "not known"
	case *c.Derived:
		return "yes"
	}
	return "no"
}

// seen says when the key was claimed first, empty if no segment holds it.
func seen(r *ops.KeyReport) string {
	switch f := r.FirstSeen; {
	case f == nil:
		return ""
	case f.At != nil:
		return "at " + show.Instant(*f.At)
	default:
		return between(f.After, f.Before)
	}
}

func between(after, before *time.Time) string {
	switch {
	case after != nil && before != nil:
		return fmt.Sprintf("between %s and %s", show.Instant(*after), show.Instant(*before))
	case after != nil:
		return "after " + show.Instant(*after)
	}
	return "at a time that is not known"
}

// ExplainCommand is the command that explains a key, for a POSIX shell.
func ExplainCommand(q *ops.ExplainQuestion) string {
	words := []string{"onlyonce", "explain"}
	add := func(flag, text string) {
		if text != "" {
			words = append(words, flag, show.Quote(text))
		}
	}
	add("-scope", q.Scope)
	add("-tenant", q.Tenant)
	add("-topic", q.Topic)
	add("-provider", q.Provider)
	return strings.Join(append(words, "--", show.Quote(q.Key+q.ID)), " ")
}

// faultKinds are the kinds of a process's faults, for example "group, read".
func faultKinds(o *ops.Owner) string {
	var kinds []string
	for _, f := range o.Faults {
		if !slices.Contains(kinds, f.Kind) {
			kinds = append(kinds, f.Kind)
		}
	}
	return strings.Join(kinds, ", ")
}

// Waits says what each partition of a process waits for: an open Kafka transaction, or a single
// message. It is empty if the process is silent.
func Waits(o *ops.Owner) (all []string) {
	for i := range o.Partitions {
		p := &o.Partitions[i]
		at := fmt.Sprintf("%s %s/%d", o.Scope, p.Topic, p.Partition)
		if p.WaitingFor > 0 && !o.Silent() {
			all = append(all, fmt.Sprintf("waiting: %s, at offset %d for %s: a Kafka transaction is open",
				at, p.LastStable, show.Ago(p.WaitingFor+o.SeenAgeSeconds)))
		}
		if b := p.BlockedBy; b != nil && b.For >= 1 && !o.Silent() {
			all = append(
				all,
				fmt.Sprintf(
					"blocked: %s, by the message at offset %d (ordering key %s) for %s: %s above it done",
					at,
					b.Offset,
					cmp.Or(b.Key, "none"),
					show.Ago(b.For+o.SeenAgeSeconds),
					show.Count(int64(b.Done), "message"),
				),
			)
		}
	}
	return all
}

// passes says how long consumers claim in both rings.
func passes(d *ops.ClassChange) string {
	if d.Lasts == nil {
		return "For ever, because that ring forgets nothing"
	}
	return "For about " + show.Span(show.Seconds(*d.Lasts))
}

// Needing says how many things need a person, without an end.
func Needing(things int) string {
	switch things {
	case 0:
		return "Nothing needs you"
	case 1:
		return "1 thing needs you"
	}
	return fmt.Sprintf("%d things need you", things)
}

// Captured says how many calls were delivered with a captured answer: they were never in
// trouble, and do not count as parked.
func Captured(t *reports.ParkedTotals) string {
	switch {
	case t.Captured == nil || *t.Captured == 0:
		return ""
	case t.CapturedMore:
		return fmt.Sprintf("over %d calls were delivered, and their answers are kept", *t.Captured)
	}
	return fmt.Sprintf("%s delivered, with the answer kept", show.Count(*t.Captured, "call"))
}
