package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/results"
)

// ledger keeps the newest result of each part in a file.
type ledger struct {
	table  results.Table
	part   results.Part
	commit string
}

// openLedger reports also whether the part held at this commit before. A tree with changes is no
// commit.
func openLedger(file string, part results.Part) (l *ledger, held bool, err error) {
	commit, err := results.Commit(context.Background())
	if err != nil {
		return nil, false, err
	}
	l = &ledger{results.Table{File: file, Heading: "## Parts", Columns: []string{"Part", "Result", "Histories", "Struck", "Points in all", "Commit", "Date"}}, part, commit}
	rows, err := l.table.Read()
	row := rows[part.String()]
	return l, row != nil && row[0] == "ok" && row[4] == commit && !strings.HasSuffix(commit, "+"), err
}

// note replaces the part's result. Results of another division are dropped.
func (l *ledger) note(n counts, breached bool) error {
	old, err := l.table.Read()
	if err != nil {
		return err
	}
	result := "ok"
	if breached {
		result = fmt.Sprintf("BREACH in %d, %d never struck", n.breaches, len(n.unstruck))
	}
	old[l.part.String()] = []string{result, strconv.Itoa(n.histories), strconv.Itoa(n.struck), strconv.Itoa(n.points), l.commit, time.Now().UTC().Format(time.DateOnly)}
	var rows [][]string
	for k := 1; k <= l.part.N; k++ {
		name := results.Part{K: k, N: l.part.N}.String()
		if row, there := old[name]; there {
			rows = append(rows, append([]string{name}, row...))
		}
	}
	return l.table.Write(rows)
}
