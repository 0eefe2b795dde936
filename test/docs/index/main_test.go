package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

// Each rule is in one chapter, that of its letter. A function or an SQL constant that enforces it
// names it in its comments, and so does a test. The page of the rules has a row for each chapter.
func TestEachRuleIsNamed(t *testing.T) {
	t.Parallel()
	all, err := readRules(root)
	if err != nil {
		t.Fatal(err)
	}
	overview, err := os.ReadFile(filepath.Join(root, "docs/rules/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range all.chapters {
		for _, r := range c.rules {
			if seen[r.id] || r.letter != c.letter {
				t.Errorf("rule %s is in chapter %s: want it once, in that of its letter", r.id, c.letter)
			}
			seen[r.id] = true
			// T10 is the shape of the code: no test can take it out.
			if len(all.functions[r.id]) == 0 || len(all.tests[r.id]) == 0 && r.id != "T10" {
				t.Errorf("rule %s: functions %s, tests %s: want one of each whose comment names it, for example (%s)",
					r.id, all.functions.list(r.id), all.tests.list(r.id), r.id)
			}
		}
		first := c.rules[0].id
		last := c.rules[len(c.rules)-1].id
		if row := fmt.Sprintf("\n| [%s to %s](%s.md) | ", first, last, c.letter); !strings.Contains(string(overview), row) {
			t.Errorf("docs/rules/README.md has no row for chapter %s: want one that begins with %q", c.letter, row)
		}
	}
	pages := 0
	for _, pattern := range []string{"docs/*.md", "docs/rules/?.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			pages += len(rule.FindAll(text, -1))
		}
	}
	if len(seen) < 130 || pages != len(seen) {
		t.Errorf("%d rules in the chapters, and %d in all pages", len(seen), pages)
	}
	page := all.page()
	for id := range seen {
		if !strings.Contains(page, "- **"+id+"** ") {
			t.Errorf("the index has no rule %s", id)
		}
	}
}
