package pgtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FaultMatrix checks that docs/faults.md lists these faults at a step and no others, and that the
// package of the test has the test of each.
func FaultMatrix(t *testing.T, step string, tests map[string]string) {
	t.Helper()
	doc, err := os.ReadFile("../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for fault, test := range tests {
		if !strings.Contains(string(doc), "| "+step+" | "+fault+" |") {
			t.Errorf("docs/faults.md does not list %q", fault)
		}
		if !strings.Contains(all.String(), "func "+test+"(") {
			t.Errorf("%q: there is no %s", fault, test)
		}
	}
	if n := strings.Count(string(doc), "| "+step+" | "); n != len(tests) {
		t.Errorf("docs/faults.md lists %d rows of the step %s, and there are tests for %d", n, step, len(tests))
	}
}
