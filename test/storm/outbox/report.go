package main

import (
	"fmt"
	"maps"

	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// report is the outcome of a storm, and what -json prints.
type report struct {
	rig.Summary
	Calls     int `json:"calls"`     // committed
	Requests  int `json:"requests"`  // that the remote saw
	Repeated  int `json:"repeated"`  // calls that it saw more than once
	Delivered int `json:"delivered"` // calls that ended so
	Rejected  int `json:"rejected"`  // calls that the remote refused for good
	Reconcile int `json:"reconcile"` // calls whose key's window passed
	// Calls that wait for an operator after a rejected one.
	Blocked int `json:"blocked"`
	// Faults of the remote, by kind; after the plus sign those that came after applying.
	Faults       map[string]int `json:"faults"`
	Transactions map[string]int `json:"transactions"`  // of the producers, by what was peculiar
	KillsInCall  int            `json:"kills_in_call"` // of them with a call under way
	Changes      int            `json:"changes"`       // relays that joined or left in order
}

// count copies what the run has counted.
func (r *report) count(s *storm) {
	r.Summary.Count(&s.Rig)
	if s.Standby == nil {
		r.NoStandby = "no-standby"
	}
	r.KillsInCall = s.Rig.KillsInBatch
	r.Changes = s.Struck[rig.KindChange]
	r.Faults = s.remote.Faults()
	s.producer.mu.Lock()
	r.Transactions = maps.Clone(s.producer.kinds)
	s.producer.mu.Unlock()
}

// judged copies what the facts show.
func (r *report) judged(f *callcheck.Facts) {
	r.Calls = len(f.Ledger)
	for _, x := range f.Rows {
		switch x.State {
		case "delivered":
			r.Delivered++
		case "reconcile":
			r.Reconcile++
		case "waiting":
			r.Rejected++
		case "blocked":
			r.Blocked++
		}
	}
	for _, s := range f.Sights {
		r.Requests += s.Requests
		if s.Requests > 1 {
			r.Repeated++
		}
	}
}

// Details returns what the remote and the producers did.
func (r *report) Details() []string {
	return append(
		[]string{fmt.Sprintf("faults of the remote: %v", r.Faults), fmt.Sprintf("transactions: %v", r.Transactions)},
		r.Endings...,
	)
}

// Line returns the summary line.
func (r *report) Line(verdict string) string {
	failed := 0
	for _, n := range r.Faults {
		failed += n
	}
	return fmt.Sprintf(
		"storm-outbox %s seed=%d calls=%d requests=%d repeated=%d failed=%d delivered=%d rejected=%d "+
			"reconcile=%d blocked=%d rolled_back=%d held=%d"+
			" kills=%d kills_in_call=%d freezes=%d changes=%d postgres_kills=%d restarts=%d seconds=%.1f",
		verdict,
		r.Seed,
		r.Calls,
		r.Requests,
		r.Repeated,
		failed,
		r.Delivered,
		r.Rejected,
		r.Reconcile,
		r.Blocked,
		r.Transactions["rolled back"],
		r.Transactions["held"],
		r.Kills,
		r.KillsInCall,
		r.Freezes,
		r.Changes,
		r.PostgresKills,
		r.Restarts,
		r.Seconds,
	)
}
