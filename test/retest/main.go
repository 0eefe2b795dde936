// Retest runs go test, and gives a test that only gave up waiting a second try.
//
//	go run ./test/retest [-race [-unraced test/model,test/bench]] [-short] [-run REGEXP] [-skip REGEXP]
//		[-p N] [-parallel N] [-timeout 15m] [-flaky FILE] packages...
//
// A slow machine can make a test give up waiting, or a server start late, although the project is
// right. Such a test runs once more, alone, and is named in the last lines and in FILE. If the
// machine stood still meanwhile, which is measured and printed, every failed test does. Nothing
// else is tried again: a test that found something wrong, a data race, a panic and a build that
// fails end with status 1, however many others were merely slow.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	race := flag.Bool("race", false, "with the race detector")
	unraced := flag.String("unraced", "", "without the race detector: packages and folders, for example test/model,test/bench")
	short := flag.Bool("short", false, "without the long tests")
	pattern := flag.String("run", "", "only tests with such names")
	skip := flag.String("skip", "", "without tests that have such names")
	packages := flag.Int("p", 0, "how many packages run at once; 0: go test's default")
	parallel := flag.Int("parallel", 0, "how many tests of a package run at once; 0: go test's default")
	timeout := flag.String("timeout", "15m", "of each package")
	flaky := flag.String("flaky", "", "append the names of flaky tests to this file")
	flag.Parse()
	args := []string{"test", "-json", "-vet=off", "-timeout", *timeout} // make lint has go vet
	if *short {
		args = append(args, "-short")
	}
	if *packages > 0 {
		args = append(args, "-p", strconv.Itoa(*packages))
	}
	if *parallel > 0 {
		args = append(args, "-parallel", strconv.Itoa(*parallel))
	}
	if *pattern != "" {
		args = append(args, "-run", *pattern)
	}
	if *skip != "" {
		args = append(args, "-skip", *skip)
	}
	runs := []goTests{{args, flag.Args()}}
	if *race {
		var err error
		if runs, err = divide(args, flag.Args(), strings.Split(*unraced, ",")); err != nil {
			_, _ = fmt.Fprintln(os.Stdout, "retest:", err)
			os.Exit(1)
		}
	}
	status := 0
	for _, r := range runs {
		status = max(status, run(r.args, r.packages, *flaky, os.Stdout))
	}
	os.Exit(status)
}

// goTests is one call of go test.
type goTests struct{ args, packages []string }

// divide returns a call with the race detector, and one without it for the packages that are named
// in unraced or lie below a folder that is.
func divide(args, packages, unraced []string) ([]goTests, error) {
	out, err := exec.Command("go", append([]string{"list"}, packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %v: %w", packages, err)
	}
	var raced, plain []string
	for _, pkg := range strings.Fields(string(out)) {
		if slices.ContainsFunc(unraced, func(name string) bool { return name != "" && strings.Contains(pkg+"/", "/"+name+"/") }) {
			plain = append(plain, pkg)
		} else {
			raced = append(raced, pkg)
		}
	}
	var runs []goTests
	if len(raced) > 0 {
		runs = append(runs, goTests{append(slices.Clone(args), "-race"), raced})
	}
	if len(plain) > 0 {
		runs = append(runs, goTests{args, plain})
	}
	return runs, nil
}

func run(args, packages []string, file string, out io.Writer) int {
	m := watch()
	first, err := goTest(args, packages, out)
	m.end()
	_, _ = fmt.Fprintln(out, "retest:", m)
	if err != nil {
		_, _ = fmt.Fprintln(out, "retest:", err)
		return 1
	}
	for _, n := range first.order {
		if len(first.tests[n].unended) > 0 {
			_, _ = fmt.Fprintf(out, "retest: %s did not end: %s\n", n, strings.Join(first.tests[n].unended, ", "))
		}
	}
	again, wrong := first.judge(m.stalled())
	if wrong || len(again) == 0 {
		if wrong || first.failed {
			return 1
		}
		return 0
	}
	for _, t := range again {
		_, _ = fmt.Fprintf(out, "retest: %s was slow; it runs once more, alone\n", t)
		second, err := goTest(append(slices.Clone(args), "-count=1", "-run", t.pattern()), []string{t.pkg}, out)
		if err != nil || second.failed || !second.ran(t) {
			_, _ = fmt.Fprintf(out, "retest: %s failed again (%v)\n", t, err)
			return 1
		}
	}
	for _, t := range again {
		_, _ = fmt.Fprintf(out, "flaky: %s\n", t)
		if err := note(file, t); err != nil {
			_, _ = fmt.Fprintln(out, "retest:", err)
			return 1
		}
	}
	return 0
}

func note(file string, t name) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, t)
	if failed := f.Close(); err == nil {
		err = failed
	}
	return err
}

// name is a test of a package; an empty test is the package itself, for example its TestMain.
type name struct{ pkg, test string }

func (n name) String() string { return strings.TrimSpace(n.pkg + " " + n.test) }

// pattern is what -run has to be for the test as a whole: subtests may depend on what their parent
// does.
func (n name) pattern() string {
	if n.test == "" {
		return "."
	}
	return "^" + regexp.QuoteMeta(n.top().test) + "$"
}

func (n name) top() name {
	top, _, _ := strings.Cut(n.test, "/")
	return name{n.pkg, top}
}

// parentOf reports whether other is a subtest of n.
func (n name) parentOf(other name) bool {
	return n.pkg == other.pkg && n.test != other.test && (n.test == "" || strings.HasPrefix(other.test, n.test+"/"))
}

// results is what one go test printed.
type results struct {
	failed bool // go test's exit status
	tests  map[name]*test
	order  []name
}

type test struct {
	failed, passed, skipped bool
	output                  []string
	unended                 []string // of a package: the tests that ran when its process ended, for example by its timeout
}

type event struct{ Action, Package, ImportPath, Test, Output string }

// goTest prints what go test without -v would print.
func goTest(args, packages []string, out io.Writer) (*results, error) {
	cmd := exec.Command("go", append(slices.Clone(args), packages...)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r, err := read(stdout, out)
	if err != nil {
		_, _ = io.Copy(io.Discard, stdout)
	}
	r.failed = cmd.Wait() != nil
	return r, err
}

func read(in io.Reader, out io.Writer) (*results, error) {
	r := &results{tests: map[name]*test{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err == io.EOF {
			return r, nil
		}
		if err != nil && err != io.EOF {
			return r, err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return r, fmt.Errorf("go test -json printed %q: %w", line, err)
		}
		n := name{e.Package, e.Test}
		t := r.tests[n]
		if t == nil {
			t = &test{}
			r.tests[n] = t
			r.order = append(r.order, n)
		}
		switch e.Action {
		case "output", "build-output":
			if e.Test == "" {
				_, _ = io.WriteString(out, e.Output)
			}
			t.output = append(t.output, strings.TrimSuffix(e.Output, "\n"))
		case "pass":
			t.passed = true
		case "fail":
			t.failed = true
			if e.Test != "" {
				_, _ = fmt.Fprintln(out, strings.Join(t.output, "\n"))
			} else {
				r.printUnended(n, out)
			}
		case "skip":
			t.skipped = true
		}
	}
}

// printUnended prints what the tests of a package printed that were still running when its process
// ended: the stacks of a timeout are among their output.
func (r *results) printUnended(pkg name, out io.Writer) {
	for _, n := range r.order {
		t := r.tests[n]
		ended := t.failed || t.passed || t.skipped
		if n.pkg != pkg.pkg || n.test == "" || ended {
			continue
		}
		r.tests[pkg].unended = append(r.tests[pkg].unended, n.test)
		_, _ = fmt.Fprintln(out, strings.Join(t.output, "\n"))
	}
}

func (r *results) ran(n name) bool {
	if n.test == "" {
		return r.tests[n] != nil && r.tests[n].passed
	}
	t := r.tests[n.top()]
	return t != nil && t.passed
}

var (
	// gaveUp is what pgtest.GaveUp and memlog print for a test that had not failed before,
	// and what devenv prints of a server that did not start in time.
	gaveUp = regexp.MustCompile(`gave up waiting after `)
	// said is a line that a test logged or failed with.
	said = regexp.MustCompile(`^\s+\S+\.go:\d+: `)
	// harmless is what is logged of a test that has failed, and what an engine reports to its hook
	// while the test ends it.
	harmless = regexp.MustCompile(`pgtest: (the database is kept|the server of this test ends|a connection of the pool is in ` +
		`use)|queuerig: |_test\.go:\d+: failed: `)
	// never is output that no second try excuses, of any program.
	never = regexp.MustCompile(`DATA RACE|^panic: |^fatal error: |BREACH|test timed out|goleak: `)
)

// judge returns the tests that only gave up waiting, outermost first and each once. If the machine
// stalled, all failed tests count as such. wrong says that something else failed too.
func (r *results) judge(stalled bool) (again []name, wrong bool) {
	var failed []name
	for _, n := range r.order {
		t := r.tests[n]
		if slices.ContainsFunc(t.output, never.MatchString) {
			wrong = true
		}
		if t.failed {
			failed = append(failed, n)
		}
	}
	for _, n := range failed {
		leaf := !slices.ContainsFunc(failed, n.parentOf)
		parent := !leaf && n.test != ""
		switch {
		case leaf && !stalled && !r.tests[n].merelySlow():
			wrong = true
		case parent && !stalled && r.tests[n].complains():
			wrong = true
		case leaf && !slices.Contains(again, n.top()):
			again = append(again, n.top())
		}
	}
	return again, wrong
}

// merelySlow reports whether the test ended because its patience was over, and printed nothing
// after that.
func (t *test) merelySlow() bool {
	at := slices.IndexFunc(t.output, gaveUp.MatchString)
	return at >= 0 && !(&test{output: t.output[at+1:]}).complains()
}

// complains reports whether the test printed anything that may be a failure: logged lines cannot be
// distinguished from failures.
func (t *test) complains() bool {
	return slices.ContainsFunc(t.output, func(line string) bool { return said.MatchString(line) && !harmless.MatchString(line) })
}
