package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// A row whose code does not occur, or occurs twice, takes nothing out. This test finds that at
// once, and not at the end of a long run.
func TestEachRowIsFoundOnce(t *testing.T) {
	t.Parallel()
	tree := &code{root: "../.."}
	for _, m := range table {
		if _, _, err := tree.mutate(m); err != nil {
			t.Errorf("%s: %v", m.rule, err)
		}
	}
}

// A test that is gone catches nothing. The rows of a table of tests are not looked for.
func TestEachTestExists(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{} // by directory
	for _, m := range table {
		dir := m.testDir()
		if tests[dir] == nil {
			found, err := source.Tests("../../" + dir)
			if err != nil {
				t.Fatal(err)
			}
			tests[dir] = found
		}
		if name, _, _ := strings.Cut(m.test, "/"); !slices.Contains(tests[dir], name) {
			t.Errorf("%s: there is no %s in %s", m.rule, name, dir)
		}
	}
}

// Results are kept by name, and -only picks by names with commas between them.
func TestEachRowHasAName(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range table {
		if m.rule == "" || names[m.rule] {
			t.Errorf("%q (%s) names another row too", m.rule, m.test)
		}
		names[m.rule] = true
		if strings.Contains(m.rule, ",") {
			t.Errorf("%q has a comma: -only cannot pick it", m.rule)
		}
	}
}
