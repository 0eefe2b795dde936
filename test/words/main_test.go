package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Lines of comments are at most 100 columns wide; a tab counts 4. Blocks of code, the Output of an
// example and directives are as wide as they must be.
func TestCommentsEndAt100Columns(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z", "*.go").Output()
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if err != nil || len(files) < 500 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, f := range files {
		src, err := os.ReadFile("../../" + f)
		if err != nil {
			t.Fatal(err)
		}
		output := false
		for i, line := range strings.Split(string(src), "\n") {
			text, comment := strings.CutPrefix(strings.TrimSpace(line), "//")
			output = comment && (output || strings.Contains(text, "Output:"))
			if !comment || output || strings.HasPrefix(text, "\t") || !strings.HasPrefix(text, " ") {
				continue
			}
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > 100 {
				t.Errorf("%s:%d: %d columns", f, i+1, n)
			}
		}
	}
}

func TestCommentsAndProse(t *testing.T) {
	src := "package p // one\n\n/* two\nthree */\nvar s = \"// no\"\n// four\n"
	if got, want := comments("p.go", []byte(src)), []string{"// one", "/* two", "three */", "// four"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	md := "# a\n\n```\nno\n```\nb\n"
	if got, want := prose("a.md", []byte(md)), []string{"# a", "b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		w    word
		rate float64
		want bool
	}{
		{word{most: 4}, 4, true}, {word{most: 4}, 4.1, false}, {word{least: 2}, 1.9, false}, {word{least: 2}, 2, true}, {word{}, 1000, true},
	} {
		if got, verdict := c.w.judge(c.rate); got != c.want {
			t.Errorf("%+v at %v: %v (%s)", c.w, c.rate, got, verdict)
		}
	}
}
