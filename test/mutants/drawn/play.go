package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
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

// player plays the sites of one part, some at a time, until it has enough.
type player struct {
	root    string
	list    *source.Listing
	chooser *chooser
	judged  map[string]string // why a site is equivalent, by its id
	store   *results.Store
	known   map[string]results.Result

	mu     sync.Mutex
	left   []sites.Site
	wanted int // that compile
	tally  tally
	failed error
}

// all plays on until enough sites are judged.
func (p *player) all(ctx context.Context, atOnce int) error {
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				s, ok := p.next()
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
func (p *player) next() (sites.Site, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.left) > 0 && p.wanted > 0 && p.failed == nil {
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

func (p *player) compiles(s sites.Site) bool {
	text, err := s.Mutated(p.root)
	if err != nil {
		return false
	}
	file := filepath.Join(p.root, s.File)
	return p.list.Check(p.list.Package(file), file, text) == nil
}

func (p *player) play(ctx context.Context, s sites.Site) {
	began := time.Now()
	verdict, by, output := p.judge(ctx, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if verdict == invalid {
		p.wanted++
		fmt.Printf("%s %s %s\n", verdict, s.ID(), s)
		return
	}
	p.tally.add(filepath.Dir(s.File), verdict, time.Since(began))
	fmt.Printf("%s %s %s %s\n", verdict, s.ID(), s, by)
	if output != "" {
		fmt.Println(output)
	}
	if verdict != equivalent {
		p.failed = errors.Join(p.failed, p.store.Add(s.ID(), verdict))
	}
}

// judge plays the chosen tests, package by package, until one fails.
func (p *player) judge(ctx context.Context, s sites.Site) (verdict, by, output string) {
	if why := p.judged[s.ID()]; why != "" {
		return equivalent, why, ""
	}
	if r := p.known[s.ID()]; r.Verdict != "" && p.store.Current(r) {
		return r.Verdict, "(before)", ""
	}
	dirs, names := p.chooser.choose(s)
	if len(dirs) == 0 {
		return uncovered, "", ""
	}
	text, err := s.Mutated(p.root)
	if err != nil {
		return invalid, "", err.Error()
	}
	env, clean, err := source.Overlay(filepath.Join(p.root, s.File), text)
	if err != nil {
		return invalid, "", err.Error()
	}
	defer clean()
	n := 0
	for _, dir := range dirs {
		failed, text := test(ctx, filepath.Join(p.root, dir), env, names[dir])
		switch {
		case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
			return invalid, "", text
		case failed != "":
			return killed, dir + " " + failed, ""
		}
		n += len(names[dir])
	}
	return survived, fmt.Sprintf("%d tests of %s", n, strings.Join(dirs, ", ")), ""
}

// test returns the test that failed, or a word for what else went wrong with its process.
func test(ctx context.Context, dir string, env, names []string) (failed, output string) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", buildTags, "-short", "-failfast", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout=2m", "-run", "^("+strings.Join(names, "|")+")$", ".")
	cmd.Dir = dir
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", ""
	}
	text := string(out)
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name, text
		}
	}
	return "(" + err.Error() + ")", text
}
