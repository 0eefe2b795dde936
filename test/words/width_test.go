package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const columns = 100

func width(line string) int {
	return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
}

// Lines of comments are at most 100 columns wide; a tab counts 4. Blocks of code, the Output of an
// example and directives are as wide as they must be.
func TestCommentsEndAt100Columns(t *testing.T) {
	t.Parallel()
	files := tracked(t, "*.go")
	if len(files) < 500 {
		t.Fatalf("%d files", len(files))
	}
	for _, f := range files {
		output := false
		for i, line := range strings.Split(read(t, f), "\n") {
			text, comment := strings.CutPrefix(strings.TrimSpace(line), "//")
			output = comment && (output || strings.Contains(text, "Output:"))
			wrong := comment &&
				!output &&
				strings.HasPrefix(text, " ") &&
				width(line) > columns
			if wrong {
				t.Errorf("%s:%d: %d columns", f, i+1, width(line))
			}
		}
	}
}

// longCode is a command or a signature that cannot be wrapped.
var longCode = regexp.MustCompile("`[^`]{70,}`")

// So are lines of Markdown, but for blocks of code, headings, rows of tables, and results and the
// index of the rules, which programs print.
func TestMarkdownEndsAt100Columns(t *testing.T) {
	t.Parallel()
	for _, f := range tracked(t, "*.md") {
		if strings.HasPrefix(f, "docs/results/") || f == "docs/rules/README.md" {
			continue
		}
		code := false
		for i, line := range strings.Split(read(t, f), "\n") {
			text := strings.TrimSpace(line)
			fence := strings.HasPrefix(text, "```")
			code = code != fence
			wrong := !code &&
				!fence &&
				!strings.HasPrefix(text, "|") &&
				!strings.HasPrefix(text, "#") &&
				width(line) > columns &&
				!longCode.MatchString(line)
			if wrong {
				t.Errorf("%s:%d: %d columns", f, i+1, width(line))
			}
		}
	}
}
