// Command mutants takes the rules out of the code one by one, and checks that a test fails for
// each.
//
// A mutant is a row of the table that table.go joins: a rule, a file, a snippet that occurs in it
// exactly once, what replaces it, and the test that must fail. It runs through `go test -overlay`,
// which reaches embedded SQL too, so the tree is never changed.
//
//	go run ./test/mutants            # all
//	go run ./test/mutants -only T2,F5
//	go run ./test/mutants -part 3/20 -record docs/results/mutants.md
//	go run ./test/mutants -new -record docs/results/mutants.md   # what was never caught
//
// It prints a line for each, for example `T2 caught TestName` or `T2 survived TestName`, and exits
// 1 if one survived or no longer fits the code.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/results"
)

// mutant is one rule taken out.
type mutant struct {
	rule  string // id in docs/guarantees.md, with a word if a rule has several mutants
	file  string
	old   string // occurs in file exactly once
	new   string
	pkg   string // from the root; it may be in a nested module
	test  string // must fail
	extra string // environment, as NAME=value
}

func main() {
	only := flag.String("only", "", "comma-separated rules; empty: all")
	part := flag.String("part", "", "k/n: part k of the table, divided into n; with -record, what was caught at this commit is passed over")
	unplayed := flag.Bool("new", false, "with -record: pass over what was caught at any commit, by the test that the row names now")
	record := flag.String("record", "", "put each verdict into the table of this file, in place of the older one")
	atOnce := flag.Int("at-once", 2, "how many are played at a time")
	verbose := flag.Bool("v", false, "print the output of tests that did not fail")
	flag.Parse()
	rows, err := pick(*only, *part)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	var book *ledger
	if *record != "" {
		if book, err = openLedger(*record); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(2)
		}
	}
	p := &playing{book: book, verbose: *verbose}
	for _, m := range rows {
		if book != nil && (*part != "" && book.caught(m, false) || *unplayed && book.caught(m, true)) {
			p.passed++
		} else {
			p.rows = append(p.rows, m)
		}
	}
	if err := p.all(*atOnce); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	fmt.Printf("%d mutants, %d not caught, %d caught before\n", p.ran, p.bad, p.passed)
	if p.bad > 0 || p.ran+p.passed == 0 {
		os.Exit(1)
	}
}

// playing is one run of the command.
type playing struct {
	rows    []mutant // left to be played
	book    *ledger  // nil: verdicts are not recorded
	verbose bool

	mu               sync.Mutex
	bad, ran, passed int
}

// all plays the rows, some at once. It returns an error if a verdict cannot be recorded.
func (p *playing) all(atOnce int) error {
	errs := make([]error, max(atOnce, 1))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for m, ok := p.next(); ok && errs[i] == nil; m, ok = p.next() {
				verdict, output := run(m)
				errs[i] = p.found(m, verdict, output)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (p *playing) next() (m mutant, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rows) == 0 {
		return m, false
	}
	m, p.rows = p.rows[0], p.rows[1:]
	return m, true
}

// found prints and records a verdict.
func (p *playing) found(m mutant, verdict, output string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ran++
	fmt.Printf("%s %s %s\n", m.rule, verdict, m.test)
	if verdict != "caught" {
		p.bad++
		if p.verbose || verdict != "survived" {
			fmt.Println(output)
		}
	}
	if p.book == nil {
		return nil
	}
	return p.book.note(m, verdict)
}

// pick returns the rows of the table that are asked for.
func pick(only, part string) ([]mutant, error) {
	rows := table
	if part != "" {
		p, err := results.ParsePart(part)
		if err != nil {
			return nil, err
		}
		from, to := p.Range(len(table))
		rows = table[from:to]
	}
	if only == "" {
		return rows, nil
	}
	picked := strings.Split(only, ",")
	return slices.DeleteFunc(slices.Clone(rows), func(m mutant) bool {
		return !slices.Contains(picked, m.rule) && !slices.Contains(picked, strings.Fields(m.rule)[0])
	}), nil
}

// pattern picks a test, or rows of a table. For example TestFaults/commit/failover is every row
// whose step begins with commit and whose fault begins with failover.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	parts[0] = "^" + parts[0] + "$"
	for i := range parts[1:] {
		parts[i+1] = "^" + parts[i+1]
	}
	return strings.Join(parts, "/")
}

// run tests one mutant: caught, survived, or broken (it no longer fits the code).
func run(m mutant) (verdict, output string) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "broken", err.Error()
	}
	if n := bytes.Count(source, []byte(m.old)); n != 1 {
		return "broken", fmt.Sprintf("%s: the snippet stands there %d times, must be once: %q", m.file, n, m.old)
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "broken", err.Error()
	}
	defer func() { _ = os.RemoveAll(dir) }()
	mutated := filepath.Join(dir, filepath.Base(m.file))
	overlay := filepath.Join(dir, "overlay.json")
	abs, err := filepath.Abs(m.file)
	if err != nil {
		return "broken", err.Error()
	}
	spec, err := json.Marshal(map[string]map[string]string{"Replace": {abs: mutated}})
	if err != nil {
		return "broken", err.Error()
	}
	if err := os.WriteFile(mutated, bytes.Replace(source, []byte(m.old), []byte(m.new), 1), 0o600); err != nil {
		return "broken", err.Error()
	}
	if err := os.WriteFile(overlay, spec, 0o600); err != nil {
		return "broken", err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout=4m", "-run", pattern(m.test), ".")
	cmd.Dir = m.pkg // and not the root: the package may be in a module of its own
	// The overlay is set in the environment, so that a test which builds a program builds the
	// mutant too.
	cmd.Env = append(os.Environ(), "GOFLAGS=-overlay="+overlay, "ONLYONCE_TEST_PATIENCE=6s")
	if m.extra != "" {
		cmd.Env = append(cmd.Env, m.extra)
	}
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case err == nil && strings.Contains(text, "no tests to run"):
		return "broken", "there is no test " + m.test
	case err == nil:
		return "survived", text
	case strings.Contains(text, "--- FAIL: "+m.test) || strings.Contains(text, "\npanic: ") || strings.HasPrefix(text, "panic: "):
		return "caught", ""
	default:
		return "broken", text // it does not compile, or the server is missing
	}
}
