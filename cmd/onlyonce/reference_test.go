package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the reference of docs/operations/commands.md")

// common removes the flags that the page explains once, above the list. A -postgres that may be
// given several times is none of them, and stays.
var common = strings.NewReplacer("[-postgres URL]...", "[-postgres URL]...", "[-postgres URL]", "", "[-json]", "", "-reason WHY [-yes | -dry-run]", "")

// reference is the list of commands in docs/operations/commands.md.
func reference() string {
	var b strings.Builder
	for _, g := range groups() {
		b.WriteString("\n" + g.title + ":\n\n")
		for _, c := range g.commands {
			item := "- `onlyonce " + c.name + "`: " + c.summary + "."
			if args := strings.Join(strings.Fields(common.Replace(c.args)), " "); args != "" {
				item += " `" + args + "`"
			}
			b.WriteString(wrapped(item, 100) + "\n")
		}
	}
	return b.String()
}

// checkTable is the list of doctor's checks in docs/guide/deployment.md.
func checkTable() string {
	b := strings.Builder{}
	b.WriteString("| Check | What must be so |\n|---|---|\n")
	for _, c := range doctorChecks {
		b.WriteString("| `" + strings.Join(c.names, "`, `") + "` | " + c.must + " |\n")
	}
	return b.String()
}

// The documents' lists are made of the commands and of doctor's checks: go test ./cmd/onlyonce -run
// TestReference -update.
func TestReference(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, is string }{
		"commands": {"../../docs/operations/commands.md", reference()},
		"checks":   {"../../docs/guide/deployment.md", checkTable()},
	} {
		begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->"
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, found := strings.Cut(string(text), begin)
		old, after, closed := strings.Cut(rest, end)
		switch is := "\n" + strings.TrimSpace(c.is) + "\n\n"; {
		case !found || !closed:
			t.Fatalf("%s has no marks", c.file)
		case *update && old != is:
			if err := os.WriteFile(c.file, []byte(before+begin+is+end+after), 0o644); err != nil {
				t.Fatal(err)
			}
		case old != is:
			t.Errorf("%s is not up to date: run the test with -update", c.file)
		}
	}
}
