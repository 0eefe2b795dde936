// Command words counts the words by which house.md's reviewer told this repository's prose from
// that of river, pgx and franz-go, in Go comments and in Markdown, per 1,000 lines. It exits with
// status 1 if a count is out of its bounds.
//
//	go run ./test/words          # the counts
//	go run ./test/words -worst 5 # and, for each, the files with the most
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// a word is a pattern and how often it may stand in 1,000 lines.
type word struct {
	name        string
	pattern     *regexp.Regexp
	least, most float64 // per 1,000 lines; most 0: no upper bound
}

var words = []word{
	{"nobody, somebody, whoever", regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|no one|someone|whom|anybody|everybody)\b`), 0, 4},
	{"tells, stands", regexp.MustCompile(`(?i)\b(tells?|is told|are told|was told|stands?)\b`), 0, 8},
	{"for example", regexp.MustCompile(`(?i)\bfor example\b`), 2, 0},
	// Not bounded: for comparison.
	{"behind", regexp.MustCompile(`(?i)\bbehind\b`), 0, 0},
	{"where", regexp.MustCompile(`(?i)\bwhere\b`), 0, 0},
	{"if", regexp.MustCompile(`(?i)\bif\b`), 0, 0},
}

// corpus is a kind of prose.
type corpus struct {
	name  string
	glob  string
	lines func(file string, src []byte) []string
}

var corpora = []corpus{
	{"Go comments", "*.go", comments},
	{"Markdown", "*.md", prose},
}

// count is what a corpus has of one word.
type count struct {
	hits   int
	byFile map[string]int
}

func main() {
	worst := flag.Int("worst", 0, "for each word, print the files with the most of it")
	flag.Parse()
	ok, err := run(os.Stdout, *worst)
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(out io.Writer, worst int) (ok bool, err error) {
	ok = true
	for _, c := range corpora {
		files, err := tracked(c.glob)
		if err != nil {
			return false, err
		}
		total, counts, err := c.count(files)
		if err != nil {
			return false, err
		}
		_, _ = fmt.Fprintf(out, "%s: %d lines in %d files; per 1,000 lines:\n", c.name, total, len(files))
		for i, w := range words {
			rate := 1000 * float64(counts[i].hits) / float64(max(total, 1))
			within, verdict := w.judge(rate)
			ok = ok && within
			_, _ = fmt.Fprintf(out, "  %-26s %6.1f  %s\n", w.name, rate, verdict)
			for _, f := range counts[i].top(worst) {
				_, _ = fmt.Fprintf(out, "  %26s %6d  %s\n", "", counts[i].byFile[f], f)
			}
		}
	}
	return ok, nil
}

// judge compares a rate with the word's bounds.
func (w *word) judge(rate float64) (within bool, verdict string) {
	switch {
	case w.most > 0 && rate > w.most:
		return false, fmt.Sprintf("above %g", w.most)
	case rate < w.least:
		return false, fmt.Sprintf("below %g", w.least)
	case w.most > 0:
		return true, fmt.Sprintf("at most %g", w.most)
	case w.least > 0:
		return true, fmt.Sprintf("at least %g", w.least)
	}
	return true, ""
}

// count reads the files of a corpus.
func (c *corpus) count(files []string) (total int, counts []count, err error) {
	counts = make([]count, len(words))
	for i := range counts {
		counts[i].byFile = map[string]int{}
	}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			return 0, nil, err
		}
		lines := c.lines(f, src)
		total += len(lines)
		text := strings.Join(lines, "\n")
		for i, w := range words {
			if n := len(w.pattern.FindAllStringIndex(text, -1)); n > 0 {
				counts[i].hits += n
				counts[i].byFile[f] = n
			}
		}
	}
	return total, counts, nil
}

// top is the files with the most hits.
func (c *count) top(n int) []string {
	files := make([]string, 0, len(c.byFile))
	for f := range c.byFile {
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b string) int {
		return cmp.Or(cmp.Compare(c.byFile[b], c.byFile[a]), cmp.Compare(a, b))
	})
	return files[:min(n, len(files))]
}

// tracked is what git knows of a pattern, but for results, which programs print, and this one.
func tracked(glob string) ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", glob).Output() //nolint:gosec,noctx // a pattern of ours
	if err != nil {
		return nil, fmt.Errorf("git ls-files %s: %w", glob, err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	return slices.DeleteFunc(files, func(f string) bool {
		return f == "" || strings.HasPrefix(f, "docs/results/") || strings.HasPrefix(f, "test/words/")
	}), nil
}

// comments are the lines of a Go file's comments.
func comments(file string, src []byte) (lines []string) {
	var s scanner.Scanner
	fset := token.NewFileSet()
	s.Init(fset.AddFile(file, fset.Base(), len(src)), src, nil, scanner.ScanComments)
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if tok == token.COMMENT {
			lines = append(lines, strings.Split(lit, "\n")...)
		}
	}
}

// prose is the lines of a Markdown file but for its blocks of code and empty lines.
func prose(_ string, src []byte) (lines []string) {
	code := false
	for s := bufio.NewScanner(bytes.NewReader(src)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if strings.HasPrefix(line, "```") {
			code = !code
			continue
		}
		if !code && line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
