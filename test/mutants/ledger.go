package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/test/results"
)

// ledger remembers the newest verdict of each row.
type ledger struct{ store *results.Store }

func openLedger() (*ledger, error) {
	store, err := results.Open("mutants")
	if err != nil {
		return nil, err
	}
	_, err = store.Read()
	return &ledger{store}, err
}

// check names a row as it was played. If it takes out something else, or another test is to fail,
// the verdict counts no more.
func (m mutant) check() string {
	change := sha256.Sum256([]byte(m.old + "\x00" + m.new))
	return strings.Join([]string{m.rule, m.in, m.decl, hex.EncodeToString(change[:8]), m.test}, "|")
}

// caught returns which rows were caught: at this commit, and at any.
func (l *ledger) caught(rows []mutant) (now, ever map[string]bool, err error) {
	known, err := l.store.Read()
	now = map[string]bool{}
	ever = map[string]bool{}
	for _, m := range rows {
		if r := known[m.check()]; r.Verdict == "caught" {
			ever[m.rule] = true
			now[m.rule] = l.store.Current(r)
		}
	}
	return now, ever, err
}

func (l *ledger) note(m mutant, verdict string) error { return l.store.Add(m.check(), verdict) }

// print says how much of the table has been played.
func (l *ledger) print() error {
	now, ever, err := l.caught(table)
	if err != nil {
		return err
	}
	atThis := 0
	for _, is := range now {
		if is {
			atThis++
		}
	}
	fmt.Printf("of all %d rows, %d were caught at this commit, %d at any\n", len(table), atThis, len(ever))
	return nil
}
