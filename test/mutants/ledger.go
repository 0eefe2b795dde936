package main

import (
	"context"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/results"
)

// ledger keeps the newest verdict of each row in a file, in the order of the table.
type ledger struct {
	table  results.Table
	commit string
}

func openLedger(file string) (*ledger, error) {
	commit, err := results.Commit(context.Background())
	if err != nil {
		return nil, err
	}
	l := &ledger{results.Table{File: file, Heading: "## Rows", Columns: []string{"Rule", "Verdict", "Test", "Commit", "Date"}}, commit}
	_, err = l.table.Read()
	return l, err
}

// caught reports whether the row was caught at this commit, or at any, by the test that it names
// now. A tree with changes counts as no commit.
func (l *ledger) caught(m mutant, anyCommit bool) bool {
	rows, err := l.table.Read()
	row := rows[m.rule]
	return err == nil && row != nil && row[0] == "caught" && row[1] == m.test && (anyCommit || row[2] == l.commit && !strings.HasSuffix(l.commit, "+"))
}

// note replaces the row's verdict. Rows that are no longer in the table of mutants are dropped. The
// file is read again each time, because another part may run at the same time.
func (l *ledger) note(m mutant, verdict string) error {
	old, err := l.table.Read()
	if err != nil {
		return err
	}
	old[m.rule] = []string{verdict, m.test, l.commit, time.Now().UTC().Format(time.DateOnly)}
	var rows [][]string
	for _, m := range table {
		if row, there := old[m.rule]; there {
			rows = append(rows, append([]string{m.rule}, row...))
		}
	}
	return l.table.Write(rows)
}
