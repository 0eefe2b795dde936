package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
	"github.com/onlyonce/onlyonce/test/mutants/together"
	"github.com/onlyonce/onlyonce/test/results"
)

// Verdicts.
const (
	killed     = "killed"
	survived   = "survived"   // all tests that were chosen passed
	uncovered  = "uncovered"  // no test runs there
	equivalent = "equivalent" // judged: nothing that is promised depends on it
	invalid    = "invalid"    // does not compile; another one is drawn instead
)

// verdict is what became of a change.
type verdict struct {
	word   string
	by     string // the test that failed, or what was played
	output string
	cpu    time.Duration // of the tests' processes, without the servers'
	err    error         // nothing can be played
}

// player plays the sites of one part, some at a time, until it has enough.
type player struct {
	root     string
	list     *source.Listing
	set      *together.Set
	binaries *binaries
	chooser  *chooser
	judged   map[string]string // why a site is equivalent, by its id
	store    *results.Store
	known    map[string]results.Result

	mu        sync.Mutex
	unchanged map[string]bool // by directory and test: it passes without a change
	left      []sites.Site
	wanted    int // that compile
	tally     tally
	failed    error
}

// compile puts the changes of sites together. The caller calls close.
func (p *player) compile(all []sites.Site) error {
	set, err := together.New(p.root, p.list, all)
	if err != nil {
		return err
	}
	p.set = set
	p.binaries, err = newBinaries(p.root, set)
	return err
}

func (p *player) close() {
	p.binaries.close()
	p.set.Close()
}

// all plays on until enough sites are judged.
func (p *player) all(ctx context.Context, atOnce int) error {
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				s, ok := p.next(ctx)
				if !ok {
					return
				}
				p.play(ctx, s)
			}
		})
	}
	wg.Wait()
	return p.failed
}

// next hands out the next site that compiles. Type-checking is for one goroutine at a time.
func (p *player) next(ctx context.Context) (sites.Site, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.left) > 0 && p.wanted > 0 {
		if p.failed != nil || ctx.Err() != nil {
			break
		}
		s := p.left[0]
		p.left = p.left[1:]
		if !s.SQL && !p.compiles(s) {
			continue
		}
		p.wanted--
		return s, true
	}
	return sites.Site{}, false
}

// compiles reports whether a site's change compiles. Of those that are put together it is known.
func (p *player) compiles(s sites.Site) bool {
	if p.set.Has(s) || p.set.Invalid(s) {
		return p.set.Has(s)
	}
	text, err := s.Mutated(p.root)
	if err != nil {
		return false
	}
	file := filepath.Join(p.root, s.File)
	return p.list.Check(p.list.Package(file), file, text) == nil
}

func (p *player) play(ctx context.Context, s sites.Site) {
	began := time.Now()
	v := p.judge(ctx, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return // its tests were interrupted
	}
	if v.err != nil {
		p.failed = errors.Join(p.failed, v.err)
		return
	}
	if v.word == invalid {
		p.wanted++
		fmt.Printf("%s %s %s %s\n", v.word, s.ID(), s, v.output)
		return
	}
	p.tally.add(filepath.Dir(s.File), v.word, time.Since(began), v.cpu)
	fmt.Printf("%s %s %s %s (%.1f s)\n", v.word, s.ID(), s, v.by, v.cpu.Seconds())
	if v.word != equivalent {
		p.failed = errors.Join(p.failed, p.store.Add(s.ID(), v.word))
	}
}

// judge plays the chosen tests, group by group, until one fails.
func (p *player) judge(ctx context.Context, s sites.Site) (v verdict) {
	if why := p.judged[s.ID()]; why != "" {
		return verdict{word: equivalent, by: why}
	}
	if r := p.known[s.ID()]; r.Verdict != "" && p.store.Current(r) {
		return verdict{word: r.Verdict, by: "(before)"}
	}
	groups := p.chooser.choose(s)
	if len(groups) == 0 {
		return verdict{word: uncovered}
	}
	run, clean, err := p.runner(ctx, s)
	if err != nil {
		return verdict{word: invalid, output: err.Error()}
	}
	defer clean()
	for _, g := range groups {
		o, err := p.failing(ctx, g, run, &v.cpu)
		switch {
		case err != nil:
			return verdict{word: invalid, err: err}
		case strings.Contains(o.output, "[build failed]") || strings.Contains(o.output, "[setup failed]"):
			return verdict{word: invalid, output: o.output}
		case o.failed != "":
			v.word = killed
			v.by = g.dir + " " + o.failed
			return v
		}
		v.by += fmt.Sprintf(" %s %d,", g.dir, len(g.tests))
	}
	v.word = survived
	v.by = "tests:" + strings.TrimSuffix(v.by, ",")
	return v
}

// failing plays a group until it passes, or a test fails because of the change. On a busy machine a
// test may fail for want of time. So it has to fail again alone, unless it ran too long, and to
// pass without the change; or else it is left out.
func (p *player) failing(ctx context.Context, g group, run func(group) (outcome, error), cpu *time.Duration) (outcome, error) {
	for {
		g.tests = p.fit(g)
		if len(g.tests) == 0 {
			return outcome{}, nil
		}
		o, err := run(g)
		*cpu += o.cpu
		if err != nil || o.test == "" {
			return o, err
		}
		again := o
		if !o.late {
			again, err = run(group{dir: g.dir, tests: []string{o.test}, bound: g.bound})
			*cpu += again.cpu
		}
		if err != nil {
			return again, err
		}
		passes, err := p.passes(ctx, g.dir, o.test)
		if err != nil || passes && again.failed != "" {
			return again, err
		}
		g.tests = slices.DeleteFunc(slices.Clone(g.tests), func(test string) bool { return test == o.test })
	}
}

// fit returns the tests of a group that are not known to fail without a change.
func (p *player) fit(g group) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.tests), func(test string) bool {
		passes, known := p.unchanged[g.dir+" "+test]
		return known && !passes
	})
}

// passes reports whether a test passes without a change. It is played once.
func (p *player) passes(ctx context.Context, dir, test string) (bool, error) {
	p.mu.Lock()
	passes, known := p.unchanged[dir+" "+test]
	p.mu.Unlock()
	if known {
		return passes, nil
	}
	alone := group{dir: dir, tests: []string{test}, bound: patience}
	o, err := p.binaries.run(ctx, alone, append(os.Environ(), "GOFLAGS="+p.set.Flag(), source.Patience))
	if err != nil || ctx.Err() != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unchanged[dir+" "+test] = o.failed == ""
	if o.failed != "" {
		fmt.Printf("unfit %s %s: it fails without a change, and tells nothing here\n", dir, test)
	}
	return o.failed == "", nil
}

// runner returns a function that plays a group of tests with the site's change. The caller calls
// clean.
func (p *player) runner(ctx context.Context, s sites.Site) (run func(group) (outcome, error), clean func(), err error) {
	if p.set.Has(s) {
		env, clean, err := p.set.Environment(s)
		return func(g group) (outcome, error) { return p.binaries.run(ctx, g, env) }, clean, err
	}
	text, err := s.Mutated(p.root)
	if err != nil {
		return nil, nil, err
	}
	env, clean, err := source.Overlay(filepath.Join(p.root, s.File), text)
	return func(g group) (outcome, error) {
		cmd := exec.Command("go", "test", buildTags, "-short", "-failfast", "-count=1", "-vet=off", "-ldflags=-s -w",
			"-timeout="+g.bound.String(), "-run", "^("+strings.Join(g.tests, "|")+")$", ".")
		cmd.Dir = filepath.Join(p.root, g.dir)
		return play(ctx, cmd, env), nil
	}, clean, err
}
