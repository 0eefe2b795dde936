package onlyoncetest_test

import (
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/kittable"
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
	return slices.Concat(orderPrograms(), chainPrograms(t), linkPrograms(), morePrograms(t))
}

// soundBudget is longer in make kit.
var soundBudget = flag.Duration("sound", 3*time.Second, "how long each sound program of TestSoundAndFaultyPrograms is played")

// No sound program is accused, and no faulty one acquitted. `make kit` prints the table.
func TestSoundAndFaultyPrograms(t *testing.T) {
	var mu sync.Mutex
	rows, err := kittable.Kept()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("all", func(t *testing.T) {
		for i, p := range teamPrograms(t) {
			t.Run(p.name, func(t *testing.T) {
				if i%5 != 0 && !pgtest.Long(t.Name()) || !pgtest.Drawn(t.Name()) {
					t.Skip("a long case, or one of another part")
				}
				t.Parallel()
				defer enter()()
				x := &fatal{TB: t}
				p.c.Budget = *soundBudget
				if p.faulty {
					p.c.Budget = 2 * time.Minute // the first verdict ends it
				}
				rep := onlyoncetest.Run(x, p.c)
				row := kittable.Row{Name: p.name, Faulty: p.faulty, First: p.first, Want: p.kind, Seconds: rep.Took.Seconds(),
					Points: rep.Points, Singles: rep.Singles, Played: rep.Singles - rep.Left}
				if v := rep.Verdict; v != nil {
					row.Got = v.Kind
				}
				mu.Lock()
				rows = append(rows, row)
				mu.Unlock()
				t.Logf("%s %s", rep, x.text)
				if !row.Right() {
					t.Errorf("verdict %q, want %q", row.Got, p.kind)
				}
			})
		}
	})
	if err := kittable.Show(rows); err != nil {
		t.Error(err)
	}
}
