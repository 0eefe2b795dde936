package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rule is the beginning of a rule in a chapter of docs/rules.
var rule = regexp.MustCompile(`(?m)^\*\*(([A-Z])\d+[a-z]?)\. ([^*]*)\*\*`)

// The page of lifetimes names rules that there are. Each thing has a cell for each event.
func TestLifetimesNamesRules(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, m := range rule.FindAllStringSubmatch(textOf(t, "docs/rules/?.md"), -1) {
		known[m[1]] = true
	}
	_, events, _ := strings.Cut(textOf(t, "docs/rules/lifetimes.md"), "## Events")
	matrix, reasons, _ := strings.Cut(events, "| | It cannot happen")
	var things, ruled, cannot int
	for line := range strings.Lines(matrix) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) < 2 || strings.HasPrefix(line, "| Thing") {
			continue
		}
		things++
		if len(cells) != 17 {
			t.Errorf("%s: %d cells, want 17", cells[0], len(cells))
		}
		for _, c := range cells[1:] {
			c = strings.TrimSuffix(strings.TrimSpace(c), "*")
			switch {
			case known[c]:
				ruled++
			case len(c) == 1 && strings.Contains(reasons, "\n| "+c+" | "):
				cannot++
			default:
				t.Errorf("%s: %q is neither a rule nor a reason", cells[0], c)
			}
		}
	}
	t.Logf("%d things, %d cells with a rule, %d that cannot happen", things, ruled, cannot)
	if things < 20 {
		t.Errorf("%d things were found", things)
	}
}

func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
