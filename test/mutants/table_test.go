package main

import (
	"os"
	"strings"
	"testing"
)

// A snippet that does not occur, or occurs twice, takes nothing out. This test finds that at once,
// and not at the end of a long run.
func TestEachSnippetStandsOnce(t *testing.T) {
	t.Parallel()
	for _, m := range table {
		text, err := os.ReadFile("../../" + m.file)
		if err != nil {
			t.Errorf("%s: %v", m.rule, err)
			continue
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("%s: its snippet stands %d times in %s", m.rule, n, m.file)
		}
	}
}

// Results are kept by name.
func TestEachRowHasAName(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range table {
		if m.rule == "" || names[m.rule] {
			t.Errorf("%q (%s) names another row too", m.rule, m.test)
		}
		names[m.rule] = true
	}
}
