// Command drawn changes the product at random, a little at a time, and looks whether a test sees
// it.
//
// The rows of test/mutants take out what the rules name, and were written beside their tests. Drawn
// changes nobody has thought of: an operator drops a statement, negates a condition, shifts a
// bound, leaves out a field, returns no error, or does the like to SQL (gosites.go, sqlsites.go).
// For each change it plays the tests that run through that line, as their coverage says. Coverage
// is measured once for each test and kept in the user's cache directory.
//
//	go run ./test/mutants/drawn -n 1000 -seed 1
//	go run ./test/mutants/drawn -n 1000 -seed 1 -part 3/20
//	go run ./test/mutants/drawn -n 50 -seed 7 -in consumer,migrations/0001
//
// It prints a line for each change: killed, survived, uncovered (no test runs there), or equivalent
// (judged.txt says why nothing that is promised depends on it). It exits with 1 if more than one in
// twenty of those that are not equivalent live. Verdicts of the same commit are not played again. A
// run that is interrupted prints how many of each verdict it has.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
	"github.com/onlyonce/onlyonce/test/results"
)

// tested are the packages whose tests are played, beside those of scope.
var tested = []string{"ops", "onlyoncetest", "cmd/onlyonce"}

//go:embed judged.txt
var judgedText string

func main() {
	n := flag.Int("n", 100, "how many changes are drawn")
	seed := flag.Uint64("seed", 1, "of the draw")
	part := flag.String("part", "1/1", "k/n: part k of the draw, divided into n")
	in := flag.String("in", "", "comma-separated directories; empty: the engines and the schema")
	atOnce := flag.Int("at-once", 2, "how many are played at a time")
	only := flag.String("only", "", "the sites whose ids contain one of these, separated by commas, instead of a draw")
	measure := flag.Bool("measure", false, "only measure coverage, of the tests of -in")
	known := flag.Bool("known", false, "measure no coverage: choose of the tests whose coverage is known")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *n, *seed, *part, *in, *only, *atOnce, *measure, *known); err != nil {
		fmt.Fprintln(os.Stderr, "drawn:", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
}

func run(ctx context.Context, n int, seed uint64, part, in, only string, atOnce int, measure, known bool) error {
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	k, err := results.ParsePart(part)
	if err != nil {
		return err
	}
	list, err := source.List(root)
	if err != nil {
		return err
	}
	scope, err := sites.Scope(list)
	if err != nil {
		return err
	}
	dirs := scope
	if in != "" {
		dirs = strings.Split(in, ",")
	}
	if measure {
		_, err := measured(ctx, root, scope, dirs, atOnce, false)
		return err
	}
	tests, err := measured(ctx, root, scope, slices.Concat(scope, tested), atOnce, known)
	if err != nil {
		return err
	}
	p, err := newPlayer(root, list, scope, tests)
	if err != nil {
		return err
	}
	all, err := sites.All(root, p.list, dirs)
	if err != nil {
		return err
	}
	fmt.Printf("%d sites in %d directories\n", len(all), len(dirs))
	p.left = sites.Draw(all, seed, k.K, k.N)
	from, to := k.Range(n)
	p.wanted = to - from
	together := drawn(all, seed, n, k.N)
	if only != "" {
		p.left = containing(all, only)
		p.wanted = len(p.left)
		together = p.left
	}
	if err := p.compile(together); err != nil {
		return err
	}
	defer p.close()
	if err := p.all(ctx, atOnce); err != nil {
		return err
	}
	p.tally.print(os.Stdout, atOnce)
	if rest := p.tally.sum(killed) + p.tally.lived(); p.tally.lived()*20 > rest {
		return fmt.Errorf("%d of %d lived, more than one in twenty", p.tally.lived(), rest)
	}
	return nil
}

// measured returns what tests run through of a scope, and measures those of directories first,
// unless what is known suffices.
func measured(ctx context.Context, root string, scope, in []string, atOnce int, known bool) ([]*covered, error) {
	var of []string
	for _, dir := range scope {
		if dir != sites.Schema {
			of = append(of, "./"+dir)
		}
	}
	c, err := openCoverage(root, of)
	if err != nil || known {
		return c.tests, err
	}
	var dirs []string
	for _, dir := range in {
		names, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		if err != nil {
			return nil, err
		}
		if len(names) > 0 {
			dirs = append(dirs, dir)
		}
	}
	err = c.measure(ctx, dirs, atOnce)
	return c.tests, err
}

func newPlayer(root string, list *source.Listing, scope []string, tests []*covered) (*player, error) {
	store, err := results.Open("drawn")
	if err != nil {
		return nil, err
	}
	known, err := store.Read()
	if err != nil {
		return nil, err
	}
	judged, err := judgements(judgedText)
	if err != nil {
		return nil, err
	}
	chooser, err := newChooser(root, tests, scope)
	if err != nil {
		return nil, err
	}
	return &player{root: root, list: list, chooser: chooser, judged: judged, store: store, known: known, unchanged: map[string]bool{}}, nil
}

// drawn returns the sites of all parts of a draw, and some in place of those that do not compile:
// so the binaries of one part are those of the next.
func drawn(all []sites.Site, seed uint64, n, parts int) (some []sites.Site) {
	for k := range parts {
		part := sites.Draw(all, seed, k+1, parts)
		each := n/parts + 1
		some = append(some, part[:min(len(part), each+each/3+5)]...)
	}
	return some
}

func containing(all []sites.Site, text string) (some []sites.Site) {
	for _, s := range all {
		id := s.ID()
		if slices.ContainsFunc(strings.Split(text, ","), func(part string) bool { return strings.Contains(id, part) }) {
			some = append(some, s)
		}
	}
	return some
}

// judgements reads judged.txt: on each line the four words of an id, and why the change is
// equivalent. Lines that begin with # are comments.
func judgements(text string) (map[string]string, error) {
	why := map[string]string{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if len(words) < 6 {
			return nil, fmt.Errorf("judged.txt: %q gives no reason", line)
		}
		why[strings.Join(words[:4], " ")] = strings.Join(words[4:], " ")
	}
	return why, nil
}
