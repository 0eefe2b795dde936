package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"

	"github.com/onlyonce/onlyonce/test/callcheck"
)

// report is the outcome of a storm, and what -json prints.
type report struct {
	Seed      uint64 `json:"seed"`
	Calls     int    `json:"calls"`     // committed
	Requests  int    `json:"requests"`  // that the remote saw
	Repeated  int    `json:"repeated"`  // calls that it saw more than once
	Delivered int    `json:"delivered"` // calls that ended so
	Rejected  int    `json:"rejected"`  // calls that the remote refused for good
	Reconcile int    `json:"reconcile"` // calls whose key's window passed
	// Calls that wait for an operator after a rejected one.
	Blocked int `json:"blocked"`
	// Faults of the remote, by kind; after the plus sign those that came after applying.
	Faults        map[string]int `json:"faults"`
	Transactions  map[string]int `json:"transactions"`   // of the producers, by what was peculiar
	Kills         int            `json:"kills"`          // SIGKILLs to relays
	KillsInCall   int            `json:"kills_in_call"`  // of them with a call under way
	Freezes       int            `json:"freezes"`        // SIGSTOPs to relays, beyond their leases
	Changes       int            `json:"changes"`        // relays that joined or left in order
	PostgresKills int            `json:"postgres_kills"` // SIGKILLs to Postgres
	// Relays that gave up without a server, and were started again.
	Restarts int `json:"restarts"`
	// From the first commit until all were settled.
	Seconds  float64  `json:"seconds"`
	OK       bool     `json:"ok"` // every invariant holds
	Breaches []string `json:"breaches,omitempty"`
	Error    string   `json:"error,omitempty"`   // why the run did not come to its end
	Endings  []string `json:"endings,omitempty"` // the errors of relays that gave up
	Postgres string   `json:"postgres"`          // what was used
}

// count copies what the run has counted.
func (r *report) count(s *storm) {
	r.Kills, r.KillsInCall, r.Freezes, r.Changes, r.PostgresKills = s.struck[blowKill]+s.fleet.StrayKills(), s.inCall, s.struck[blowFreeze], s.struck[blowChange], s.struck[blowPostgres]
	r.Restarts, r.Endings = s.fleet.Restarts(), s.fleet.Endings()
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

// write prints what is wrong, and last the summary line.
func (r report) write(human, stdout io.Writer, asJSON bool) error {
	for _, b := range r.Breaches {
		_, _ = fmt.Fprintln(human, "BREACH", b)
	}
	verdict := "ok"
	if !r.OK {
		verdict = "BREACH"
		if r.Error != "" {
			verdict = "FAILED"
		}
	}
	failed := 0
	for _, n := range r.Faults {
		failed += n
	}
	_, _ = fmt.Fprintf(human, "faults of the remote: %v\ntransactions: %v\n", r.Faults, r.Transactions)
	for _, e := range r.Endings {
		_, _ = fmt.Fprintln(human, e)
	}
	_, err := fmt.Fprintf(human, "storm-outbox %s seed=%d calls=%d requests=%d repeated=%d failed=%d delivered=%d rejected=%d reconcile=%d blocked=%d rolled_back=%d held=%d"+
		" kills=%d kills_in_call=%d freezes=%d changes=%d postgres_kills=%d restarts=%d seconds=%.1f\n",
		verdict, r.Seed, r.Calls, r.Requests, r.Repeated, failed, r.Delivered, r.Rejected, r.Reconcile, r.Blocked, r.Transactions["rolled back"], r.Transactions["held"],
		r.Kills, r.KillsInCall, r.Freezes, r.Changes, r.PostgresKills, r.Restarts, r.Seconds)
	if err != nil || !asJSON {
		return err
	}
	return json.NewEncoder(stdout).Encode(r)
}
