package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the reference of docs/operations.md")

// reference is the list of commands in docs/operations.md.
func reference() string {
	var b strings.Builder
	for _, g := range groups() {
		b.WriteString("\n" + g.title + ":\n\n")
		for _, c := range g.commands {
			item := "- `onlyonce " + c.name + "`: " + c.summary + ". `" + c.args + "`"
			b.WriteString(wrapped(item, 100) + "\n")
		}
	}
	return b.String()
}

// The reference is made of the commands: go test ./cmd/onlyonce -run TestReference -update.
func TestReference(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/operations.md", "<!-- commands: begin -->\n", "\n<!-- commands: end -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	switch is := reference(); {
	case !found || !closed:
		t.Fatalf("%s has no marks", file)
	case *update && old != is:
		if err := os.WriteFile(file, []byte(before+begin+is+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case old != is:
		t.Errorf("%s is not up to date: run the test with -update", file)
	}
}
