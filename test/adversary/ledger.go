package main

import (
	"fmt"

	"github.com/onlyonce/onlyonce/test/results"
)

// ledger remembers the newest result of each part.
type ledger struct {
	store *results.Store
	part  results.Part
}

// openLedger reports also whether the part held at this commit before.
func openLedger(part results.Part) (l *ledger, held bool, err error) {
	store, err := results.Open("adversary")
	if err != nil {
		return nil, false, err
	}
	rows, err := store.Read()
	row := rows[part.String()]
	return &ledger{store, part}, row.Verdict == "ok" && store.Current(row), err
}

func (l *ledger) note(n counts, breached bool) error {
	result := "ok"
	if breached {
		result = fmt.Sprintf("BREACH in %d, %d never struck", n.breaches, len(n.unstruck))
	}
	return l.store.Add(l.part.String(), result)
}
