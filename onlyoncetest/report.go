package onlyoncetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is the result of [Run].
type Report struct {
	// Verdict is the fault found, or nil.
	Verdict *Verdict
	// Points is the number of points of a clean run at which a fault can strike.
	Points int
	// Played counts the histories by the kinds of their faults, and Left those that the budget left
	// out.
	Played map[string]int
	Left   int
	// Singles is the number of all histories with one fault.
	Singles int
	// Unstruck is how many of them did not reach all of their points.
	Unstruck int
	// Clean is what became of the messages and requests in a run without a fault.
	Clean string
	// LeftOut lists the columns that were not compared, as "table.column".
	LeftOut []string
	// NotCovered lists the faults that this case does not cover, each with the reason.
	NotCovered []string
	// Took is the total time.
	Took time.Duration
}

// histories returns how many histories were played, and a text of each kind with its number.
func (r *Report) histories() (n int, kinds string) {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(r.Played)) {
		n += r.Played[k]
		all = append(all, fmt.Sprintf("%d %s", r.Played[k], k))
	}
	return n, strings.Join(all, ", ")
}

// share says how many of the single faults were played, or "" if there were none to play.
func (r *Report) share() string {
	if r.Singles == 0 {
		return ""
	}
	played := r.Singles - r.Left
	return fmt.Sprintf("%d of %d single faults played (%d %%)", played, r.Singles, 100*played/r.Singles)
}

// budgetHint follows a share below 100 %.
const budgetHint = "-onlyonce.budget=0 plays all"

// short is what a test that passes prints without -v.
func (r *Report) short() string {
	var parts []string
	if r.Clean != "" {
		parts = append(parts, "without a fault "+r.Clean)
	}
	if s := r.share(); s != "" {
		parts = append(parts, s)
	}
	if r.Left > 0 {
		parts = append(parts, budgetHint)
	}
	return strings.Join(parts, "; ")
}

// String is one line.
func (r *Report) String() string {
	n, kinds := r.histories()
	s := fmt.Sprintf("%d points, %s: %d histories in %.1f s", r.Points, kinds, n, r.Took.Seconds())
	if share := r.share(); share != "" {
		s += "; " + share
	}
	if r.Left > 0 && r.Verdict == nil {
		s += fmt.Sprintf(", %d cut off by the budget (%s)", r.Left, budgetHint)
	}
	if r.Unstruck > 0 {
		s += fmt.Sprintf("; %d did not come to all of their points", r.Unstruck)
	}
	if r.Clean != "" {
		s += "; without a fault: " + r.Clean
	}
	if len(r.LeftOut) > 0 {
		s += "; not compared: " + strings.Join(r.LeftOut, ", ")
	}
	if len(r.NotCovered) > 0 {
		s += "; not covered: " + strings.Join(r.NotCovered, ", ")
	}
	return s
}
