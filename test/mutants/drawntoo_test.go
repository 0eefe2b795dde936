package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// A row is for a rule whose removal is no single operator. What test/mutants/drawn makes by itself
// needs no row, which would have to move with the code.
func TestNoRowIsDrawnToo(t *testing.T) {
	if testing.Short() {
		t.Skip("type-checks every package that has a mutant: without -short")
	}
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tree := &code{root: root}
	drawn, err := allDrawn(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range table {
		file, mutated, err := tree.mutate(m)
		if err != nil {
			t.Errorf("%s: %v", m.rule, err)
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := drawn[file+" "+sites.Diff(string(text), mutated)]; ok {
			t.Errorf("%q is drawn too: %s", m.rule, s)
		}
	}
}

// allDrawn returns all sites that are drawn from, by file and difference.
func allDrawn(root string) (map[string]sites.Site, error) {
	list, err := source.List(root)
	if err != nil {
		return nil, err
	}
	scope, err := sites.Scope(list)
	if err != nil {
		return nil, err
	}
	all, err := sites.All(root, list, scope)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	drawn := map[string]sites.Site{}
	for _, s := range all {
		if texts[s.File] == "" {
			if texts[s.File], err = source.Read(filepath.Join(root, s.File)); err != nil {
				return nil, err
			}
		}
		for _, d := range s.Diffs(texts[s.File]) {
			drawn[s.File+" "+d] = s
		}
	}
	return drawn, nil
}
