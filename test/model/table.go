package main

import "strings"

// entry is a scope of a model that must hold, or a fault that must be found in it.
type entry struct {
	name    string // model/rule/text: the rule is one of docs/rules
	want    string // "": holds; else part of the breach that is found
	nightly bool   // takes longer than a test may
	run     func() result
}

func (e entry) fault() bool { return e.want != "" }

// failed returns why the entry is a breach, or "".
func (e entry) failed(r result) string {
	switch {
	case r.capped:
		return "not exhaustive"
	case !e.fault():
		return r.violation
	case r.violation == "":
		return "the seeded fault was not found"
	case !strings.Contains(r.violation, e.want):
		return "another breach than the seeded one: " + r.violation
	}
	return ""
}

// table is every scope and every fault.
func table() []entry {
	var all []entry
	for _, t := range [][]entry{
		fenceTable(),
		slotTable(),
		ringTable(),
		parkTable(),
		relayTable(),
		attemptTable(),
		windowTable(),
		logTable(),
		historyTable(),
		callsTable(),
		recordsTable(),
	} {
		all = append(all, t...)
	}
	return all
}
