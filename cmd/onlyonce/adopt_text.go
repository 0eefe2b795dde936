package main

import (
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// writeAdopted shows the cursor before and after, and what the change means.
func writeAdopted(a *app, d *ops.Adopted) {
	a.writeCursorChange(d.Before, d.After)
	for _, s := range remarks(d) {
		_, _ = fmt.Fprintln(a.out, s)
	}
}

// writeAdoptedTopic shows the partitions that are handed over.
func writeAdoptedTopic(a *app, d *ops.AdoptedTopic) {
	var rows [][]string
	for i := range d.Partitions {
		p := &d.Partitions[i]
		rows = append(rows, []string{strconv.Itoa(int(p.Partition)), number(p.Before.Position), show.OrDash(p.Before.Group), show.OrDash(p.After.Group), yesNo(p.Before.Clean)})
	}
	a.say("Cursors of scope %s, topic %s:", cell(d.Scope), cell(d.Topic))
	a.table([]string{"PARTITION", "POSITION", "GROUP NOW", "GROUP THEN", "RELEASED"}, rows)
	a.say("The positions stay as they are: nothing is skipped, and nothing is handled again.")
}

// writeCursorChange shows a cursor before, if there was one, and after.
func (a *app) writeCursorChange(was, is *cursorRow) {
	_, _ = fmt.Fprintf(a.out, "cursor of scope %s, topic %s, partition %d\n", cell(is.Scope), cell(is.Topic), is.Partition)
	var rows [][]string
	row := func(what string, show func(*cursorRow) string) {
		before := "none"
		if was != nil {
			before = show(was)
		}
		rows = append(rows, []string{what, before, show(is)})
	}
	nextOwners := func(s *string) string {
		if s == nil {
			return "the next owner's"
		}
		return *s
	}
	row("position", func(c *cursorRow) string { return number(c.Position) })
	row("run", func(c *cursorRow) string { return strconv.Itoa(int(c.Run)) })
	row("group", func(c *cursorRow) string { return nextOwners(c.Group) })
	row("cluster", func(c *cursorRow) string { return nextOwners(c.ClusterID) })
	row("topic id", func(c *cursorRow) string { return nextOwners(c.TopicID) })
	row("anchor", func(c *cursorRow) string { return numberOrDash(c.AnchorOffset) })
	row("attempts", attempts)
	row("epoch", func(c *cursorRow) string { return number(c.Epoch) })
	row("state", (*ops.Cursor).State)
	a.table([]string{"", "BEFORE", "AFTER"}, rows)
}

// remarks returns what the change means for messages and owners.
func remarks(d *ops.Adopted) []string {
	b, c := d.Before, d.After
	if d.From != nil {
		return movedHere(d)
	}
	if b == nil {
		return []string{fmt.Sprintf("There was no cursor: work starts at offset %d. How many messages that skips or handles again is not known here.", c.Position)}
	}
	var s []string
	if b.RetiredAt != nil {
		s = append(s, "The cursor was retired, and is brought back.")
	}
	if b.ReplayUntil != nil && c.ReplayUntil == nil {
		s = append(s, fmt.Sprintf("The replay that is under way up to offset %d ends here. It interrupted the work at offset %d: -at %d goes on there.",
			*b.ReplayUntil, *b.ReplayResume, *b.ReplayResume))
	}
	switch {
	case *d.Skipped > 0:
		s = append(s, fmt.Sprintf("Skipped, if the topic is still the same: %d offsets, %d to %d. They are never handled.",
			*d.Skipped, c.Position-*d.Skipped, c.Position-1))
	case *d.Repeated > 0:
		s = append(s, fmt.Sprintf("Handled again, if the topic is still the same: %d offsets, %d to %d. Keys that are still kept make duplicates of them; without a key they are applied twice.",
			*d.Repeated, c.Position, c.Position+*d.Repeated-1))
	case c.Run == b.Run:
		s = append(s, "Nothing is skipped and nothing handled again. Cluster, topic and position stay: a halt for another reason than foreign-group needs -at OFFSET.")
	default:
		s = append(s, "Nothing is skipped and nothing handled again, if the topic is still the same.")
	}
	if c.Group == nil && b.Group != nil && !b.Clean {
		s = append(s, fmt.Sprintf("Group %s has not let go in order: it died, is halted, or still works. If it runs it may be the next owner again; -group keeps it out.", cell(*b.Group)))
	}
	return s
}

// movedHere returns what it means to take a partition over from another database.
func movedHere(d *ops.Adopted) []string {
	s := []string{fmt.Sprintf("The position is that of %s, where the cursor was retired at %s: what is below was handled there, and nothing is handled again.",
		d.From.Database, show.Instant(*d.From.Cursor.RetiredAt))}
	if d.Before != nil {
		s = append(s, "The cursor was retired here, and is brought back.")
	}
	if d.From.Keys == nil {
		return append(s, "The keys that are kept there are claimed here too.")
	}
	s = append(s, fmt.Sprintf("Keys that came with it: %d.", *d.From.Keys))
	if *d.From.Conflicts > 0 {
		s = append(s, fmt.Sprintf("%d keys stand here for another payload, and stay so.", *d.From.Conflicts))
	}
	return s
}
