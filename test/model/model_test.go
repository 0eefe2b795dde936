package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each small scope holds, and each fault in one is found. The rest is for make model.
func TestSmallScopes(t *testing.T) {
	t.Parallel()
	for _, e := range table() {
		if e.nightly {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			r := e.run()
			if failed := e.failed(r); failed != "" {
				t.Errorf("%s, after %d steps and %d states:\n%s", failed, len(r.trace), r.states, strings.Join(r.trace, "\n"))
			}
		})
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	format := regexp.MustCompile(`^[a-z]+/[A-Z]\d+/.+$`)
	seen := map[string]bool{}
	faults := map[string]bool{}
	for _, e := range table() {
		if !format.MatchString(e.name) || seen[e.name] {
			t.Errorf("%q is not the name of one entry as model/rule/text", e.name)
		}
		seen[e.name] = true
		if rule := strings.Join(strings.Split(e.name, "/")[:2], "/"); e.fault() {
			faults[rule] = true
		}
	}
	for _, rule := range []string{
		"slots/C1", "slots/C2", "slots/C3", "slots/C4", "slots/C5", "slots/C6", "slots/C7",
		"slots/C8", "slots/T14", "parking/D4", "parking/K7", "relay/O2", "relay/O3", "relay/O4",
		"relay/O5", "attempts/O3", "attempts/O6", "window/O6", "log/O2", "log/O8", "history/O3",
		"history/O9", "calls/O1", "records/H31", "records/O6",
	} {
		if !faults[rule] {
			t.Errorf("%s has no fault", rule)
		}
	}
}

// counter goes from 0 to end in steps of one or two, and from one state nowhere else.
func counter(end, trap int) model[int] {
	return model[int]{
		bad: func(*int) string { return "" },
		next: func(s int, to emit[int]) {
			for _, d := range []int{1, 2} {
				if s != trap && s+d <= end {
					to(s+d, "%d more than %d", d, s)
				}
			}
		},
	}
}

func TestExploreFindsAShortestTrace(t *testing.T) {
	t.Parallel()
	m := counter(9, -1)
	m.bad = func(s *int) string {
		if *s == 7 {
			return "seven"
		}
		return ""
	}
	r := explore(m)
	want := []string{"1 more than 0", "2 more than 1", "2 more than 3", "2 more than 5"}
	if r.violation != "seven" || len(r.trace) != len(want) {
		t.Errorf("found %q after %q, want seven after a trace like %q", r.violation, r.trace, want)
	}
}

func TestExploreVisitsEveryState(t *testing.T) {
	t.Parallel()
	const end = 3 * chunkSize
	if r := explore(counter(end, -1)); r.states != end+1 || r.violation != "" || r.capped {
		t.Errorf("%d states, violation %q, capped %t; want %d, none, false", r.states, r.violation, r.capped, end+1)
	}
}

func TestExploreFindsAStateWithoutAWayOn(t *testing.T) {
	t.Parallel()
	m := counter(5, 3)
	m.goal = func(s *int) bool { return *s == 5 }
	r := explore(m)
	if r.violation != wedged ||
		!slices.Equal(r.trace, []string{"1 more than 0", "2 more than 1"}) &&
			!slices.Equal(r.trace, []string{"2 more than 0", "1 more than 2"}) {
		t.Errorf("found %q after %q, want %q at 3", r.violation, r.trace, wedged)
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	scope := entry{name: "m/X1/holds"}
	fault := entry{name: "m/X1/fails", want: "TWICE"}
	for _, c := range []struct {
		entry  entry
		result result
		fails  bool
	}{
		{scope, result{}, false},
		{scope, result{violation: "effect TWICE"}, true},
		{scope, result{capped: true}, true},
		{fault, result{violation: "effect TWICE"}, false},
		{fault, result{}, true},
		{fault, result{violation: "message LOST"}, true},
	} {
		if failed := c.entry.failed(c.result); failed != "" != c.fails {
			t.Errorf("%s with %+v: %q", c.entry.name, c.result, failed)
		}
	}
}
