// Command words counts, in the string literals of the product, the words of the register that the
// house has given up: help, errors, log lines and SQL's raise texts are read at night. It exits
// with status 1 if there is one. The package's tests check the width of lines in comments, Markdown
// and SQL, that a long list in SQL has one column a line, and that names in comments exist.
//
//	go run ./test/words
package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
)

var register = regexp.MustCompile(`(?i)\b(nobody|somebody|someone|no one|whoever|whom|anybody|everybody|stands? ` +
	`still|(is|are|was|were) told|behind (it|them)|what stands)\b`)

var (
	laboratory = regexp.MustCompile(`^(test|docs|examples|ops/console/e2e|telemetry/test|idempotency/compat)/|_test\.go$|/testdata/`)
	sqlComment = regexp.MustCompile(`(?m)--.*$`)
	sqlString  = regexp.MustCompile(`'(?:[^']|'')*'`)
)

func main() {
	n, err := run(os.Stdout, ".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
	fmt.Printf("%d in string literals\n", n)
	if n > 0 {
		os.Exit(1)
	}
}

// run prints each use of the words in string literals, and returns how many there are.
func run(out io.Writer, root string) (n int, err error) {
	list, err := exec.Command("git", "-C", root, "ls-files", "-z", "*.go", "*.sql").Output() //nolint:gosec,noctx // its own repository
	if err != nil {
		return 0, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if laboratory.MatchString(name) {
			continue
		}
		src, err := os.ReadFile(path.Join(root, name)) //nolint:gosec // a file that git lists
		if err != nil {
			return 0, err
		}
		literals := sqlString.FindAllString(sqlComment.ReplaceAllString(string(src), ""), -1)
		if path.Ext(name) == ".go" {
			literals = goStrings(src)
		}
		for _, l := range literals {
			if l == `"nobody"` { // Unix's user
				continue
			}
			for _, word := range register.FindAllString(l, -1) {
				n++
				_, _ = fmt.Fprintf(out, "%s: %s\n", name, word)
			}
		}
	}
	return n, nil
}

// goStrings returns the string literals of a Go file.
func goStrings(src []byte) (literals []string) {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(src)), src, nil, 0)
	for {
		_, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return literals
		case token.STRING:
			literals = append(literals, lit)
		}
	}
}
