// Command mutants takes the rules out of the code one by one, and checks that a test fails for
// each.
//
// A mutant is a row of the table that table.go joins: a rule, a declaration, a piece of its code,
// what replaces it, and the test that must fail. It runs through `go test -overlay`, which reaches
// embedded SQL too, so the tree is never changed.
//
//	go run ./test/mutants            # all
//	go run ./test/mutants -only T2,F5
//	go run ./test/mutants -part 3/20
//	go run ./test/mutants -new       # what was never caught
//
// It prints a line for each, for example `T2 caught TestName` or `T2 survived TestName`. It exits
// with 1 if one survived or does not fit the code anymore. It remembers verdicts in the user's
// cache directory.
package main

import (
	"cmp"
	"context"
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

	"github.com/onlyonce/onlyonce/test/mutants/source"
	"github.com/onlyonce/onlyonce/test/results"
)

// mutant is one rule taken out.
type mutant struct {
	rule  string // id in docs/rules, with a word if a rule has several mutants
	in    string // directory of the code, from the root: a package's, or the schema's
	decl  string // a name that is declared there, for example (*engine).run or table onlyonce.done
	old   string // occurs in the declaration exactly once, whatever its line breaks and comments
	new   string
	pkg   string // directory of the test, which may be in a nested module; empty: in
	test  string // must fail
	extra string // environment, as NAME=value
}

func main() {
	only := flag.String("only", "", "comma-separated rules; empty: all")
	part := flag.String("part", "", "k/n: part k of the table, divided into n; what was caught at this commit is passed over")
	unplayed := flag.Bool("new", false, "pass over what was caught at any commit, in the row's present form")
	atOnce := flag.Int("at-once", 2, "how many are played at a time")
	verbose := flag.Bool("v", false, "print the output of tests that did not fail")
	flag.Parse()
	p := &playing{tree: &code{root: "."}, verbose: *verbose}
	err := p.pick(*only, *part, *unplayed)
	if err == nil {
		err = p.all(*atOnce)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	fmt.Printf("%d mutants, %d not caught, %d caught before\n", p.ran, p.bad, p.passed)
	if err := p.book.print(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if p.bad > 0 || p.ran+p.passed == 0 {
		os.Exit(1)
	}
}

// testDir is the directory of the test's package.
func (m mutant) testDir() string { return cmp.Or(m.pkg, m.in) }

// playing is one run of the command.
type playing struct {
	rows    []mutant // left to be played
	book    *ledger
	tree    *code
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
				verdict, output := p.run(m)
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
	m = p.rows[0]
	p.rows = p.rows[1:]
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
	return p.book.note(m, verdict)
}

// pick takes the rows of the table that are asked for, but for those whose verdicts still count.
func (p *playing) pick(only, part string, unplayed bool) (err error) {
	if p.book, err = openLedger(); err != nil {
		return err
	}
	rows := table
	if part != "" {
		k, err := results.ParsePart(part)
		if err != nil {
			return err
		}
		from, to := k.Range(len(table))
		rows = table[from:to]
	}
	now, ever, err := p.book.caught(rows)
	picked := strings.Split(only, ",")
	for _, m := range rows {
		switch {
		case only != "" && !slices.Contains(picked, m.rule) && !slices.Contains(picked, strings.Fields(m.rule)[0]):
		case part != "" && now[m.rule], unplayed && ever[m.rule]:
			p.passed++
		default:
			p.rows = append(p.rows, m)
		}
	}
	return err
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
func (p *playing) run(m mutant) (verdict, output string) {
	p.mu.Lock()
	file, mutatedText, err := p.tree.mutate(m)
	p.mu.Unlock()
	if err != nil {
		return "broken", err.Error()
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return "broken", err.Error()
	}
	env, clean, err := source.Overlay(abs, mutatedText)
	if err != nil {
		return "broken", err.Error()
	}
	defer clean()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout=4m", "-run", pattern(m.test), ".")
	cmd.Dir = m.testDir() // and not the root: the package may be in a module of its own
	cmd.Env = env
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
