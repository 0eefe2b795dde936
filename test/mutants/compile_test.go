package main

import (
	"path/filepath"
	"testing"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// A mutant that does not compile takes nothing out: its tests fail for another reason than the
// rule. Type-checking finds that in a minute for all rows. Packages of nested modules are left out.
func TestEachMutantCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("type-checks every package that has a mutant: without -short")
	}
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	l, err := source.List(root)
	if err != nil {
		t.Fatal(err)
	}
	tree := &code{root: root}
	checked := 0
	for _, m := range table {
		file, mutated, err := tree.mutate(m)
		if err != nil {
			t.Errorf("%s: %v", m.rule, err)
			continue
		}
		file = filepath.Join(root, file)
		p := l.Package(file)
		if p == nil {
			continue
		}
		checked++
		if err := l.Check(p, file, mutated); err != nil {
			t.Errorf("%s (%s): %v", m.rule, m.in, err)
		}
	}
	if checked < len(table)/2 {
		t.Errorf("%d of %d rows were found in a package", checked, len(table))
	}
}
