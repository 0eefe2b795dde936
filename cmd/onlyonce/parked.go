package main

import (
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// writeParkedSums counts the parked rows by reason and state, and says what is not listed.
func (a *app) writeParkedSums(f *operate.ParkedFilter, rows []ops.ParkedRow, t *reports.ParkedTotals) {
	states := map[string]int64{}
	for i := range t.Groups {
		states[t.Groups[i].State] += t.Groups[i].Count
	}
	if len(rows) > 0 && f.Unsettled() && f.Name == "" { // the commands of a group are for calls of all names
		a.writeGroups(t.Groups)
	}
	var parts []string
	for _, s := range []string{"waiting", "reconcile", "retrying", "blocked"} {
		if n := states[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	last := strings.Join(parts, ", ")
	switch {
	case !t.Counted:
		last = fmt.Sprintf("not counted: that took over %v", a.countLimit)
	case last == "":
		last = "Nothing is parked and not settled"
		if f.Filtered() {
			last = "No matching parked rows"
		}
	}
	switch {
	case !f.Unsettled():
	case t.Settled != nil && *t.Settled > 0:
		last += strings.Replace(settledText(t), ", ", "; ", 1) + " not shown (-all)"
	case t.Settled == nil:
		last += "; settled rows not shown (-all)"
	}
	a.say("%s", last)
}

// writeGroups counts rows by reason, with the commands for those that wait for an operator.
func (a *app) writeGroups(groups []reports.ParkedCount) {
	for i := range groups {
		g := &groups[i]
		at := "scope " + g.Scope
		if g.Sink != nil {
			at = "sink " + *g.Sink
		}
		a.say("")
		a.say("%s, %s, %s: %s", show.Count(g.Count, g.Kind), g.State, g.Reason, cell(at))
		a.writeSteps(operate.NextOfGroup(g))
	}
	if len(groups) > 0 {
		a.say("\nOne row whole: onlyonce parked show ID")
	}
}
