package onlyoncetest_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// program is a program as a team writes one, with a fault or without.
type program struct {
	name   string
	faulty bool
	// first is the verdict of the kit before it knew this program; empty for none. It is what the
	// table compares with, and no test looks at it.
	first string
	// kind is the verdict that it must have, or one of these, if it depends on what comes first in
	// a run. Empty for a sound program.
	kind []string
	c    onlyoncetest.Case
}

// teamPrograms are all, in the order of the table.
func teamPrograms(t *testing.T) []program {
	t.Helper()
	return append(append(orderPrograms(), chainPrograms(t)...), linkPrograms()...)
}

// rowOfTable is what one program's run has shown.
type rowOfTable struct {
	p   program
	got string
	rep *onlyoncetest.Report
}

// right reports whether a faulty program was caught, or a sound one acquitted.
func (r rowOfTable) right() bool {
	if !r.p.faulty {
		return r.got == ""
	}
	return slices.Contains(r.p.kind, r.got)
}

// No sound program is accused, and no faulty one acquitted. `make kit` prints the table.
func TestSoundAndFaultyPrograms(t *testing.T) {
	var mu sync.Mutex
	var rows []rowOfTable
	t.Run("all", func(t *testing.T) {
		for i, p := range teamPrograms(t) {
			t.Run(p.name, func(t *testing.T) {
				if i%5 != 0 && !pgtest.Long(t.Name()) || !pgtest.Drawn(t.Name()) {
					t.Skip("a long case, or one of another part")
				}
				t.Parallel()
				defer enter()()
				row := rowOfTable{p: p}
				x := &fatal{TB: t}
				p.c.Budget = 3 * time.Second
				if p.faulty {
					p.c.Budget = 2 * time.Minute // the first verdict ends it
				}
				row.rep = onlyoncetest.Run(x, p.c)
				if v := row.rep.Verdict; v != nil {
					row.got = v.Kind
				}
				mu.Lock()
				rows = append(rows, row)
				mu.Unlock()
				t.Logf("%s %s", row.rep, x.text)
				if !row.right() {
					t.Errorf("verdict %q, want %q", row.got, p.kind)
				}
			})
		}
	})
	slices.SortFunc(rows, func(a, b rowOfTable) int { return strings.Compare(a.p.name, b.p.name) })
	_, _ = fmt.Fprint(os.Stdout, tableOf(rows))
}

// tableOf returns the table of `make kit`, and its last line.
func tableOf(rows []rowOfTable) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "PROGRAM\tIS\tFIRST VERDICT\tVERDICT\tSECONDS\tPOINTS\tPLAYED\tRIGHT")
	wrong := 0
	for _, r := range rows {
		is := "sound"
		if r.p.faulty {
			is = "faulty"
		}
		right := "yes"
		if !r.right() {
			wrong++
			right = "NO"
		}
		played := 0
		for _, n := range r.rep.Played {
			played += n
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f\t%d\t%d\t%s\n", r.p.name, is, cmp.Or(r.p.first, "none"),
			cmp.Or(r.got, "none"), r.rep.Took.Seconds(), r.rep.Points, played, right)
	}
	_ = w.Flush()
	if wrong == 0 {
		_, _ = fmt.Fprint(&b, "kit ok ")
	} else {
		_, _ = fmt.Fprint(&b, "kit FAILED ")
	}
	_, _ = fmt.Fprintf(&b, "programs=%d wrong=%d\n", len(rows), wrong)
	return b.String()
}
