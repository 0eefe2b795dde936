package main

import (
	"fmt"
	"strconv"
)

// writeAdoption shows what was, what is after it, and what that means.
func (a *app) writeAdoption(d *adopted) {
	_, _ = fmt.Fprintf(a.out, "cursor of scope %s, topic %s, partition %d\n", cell(d.Scope), cell(d.Topic), d.Partition)
	var rows [][]string
	row := func(what string, show func(*cursorRow) string) {
		before := "none"
		if d.Before != nil {
			before = show(d.Before)
		}
		rows = append(rows, []string{what, before, show(d.After)})
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
	row("attempts", (*cursorRow).attempts)
	row("epoch", func(c *cursorRow) string { return number(c.Epoch) })
	writeTable(a.out, []string{"", "BEFORE", "AFTER"}, rows)
	for _, s := range d.remarks() {
		_, _ = fmt.Fprintln(a.out, s)
	}
}

// remarks says what the change means for messages and owners.
func (d *adopted) remarks() []string {
	b, c := d.Before, d.After
	if b == nil {
		return []string{fmt.Sprintf("There was no cursor: work starts at offset %d. How many messages that skips or handles again is not known here.", c.Position)}
	}
	var s []string
	switch {
	case *d.Skipped > 0:
		s = append(s, fmt.Sprintf("Skipped, if the topic is still the same: %d offsets, %d to %d. They are never handled.",
			*d.Skipped, b.Position, c.Position-1))
	case *d.Repeated > 0:
		s = append(s, fmt.Sprintf("Handled again, if the topic is still the same: %d offsets, %d to %d. Keys that are still kept make duplicates of them; without a key they are applied twice.",
			*d.Repeated, c.Position, b.Position-1))
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
