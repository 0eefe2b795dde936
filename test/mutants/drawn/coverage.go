package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// covered is what one test runs through.
type covered struct {
	Dir, Test string
	Key       string // of the test's file when it was measured
	Seconds   float64
	Files     map[string]passage // by file, from the root
}

// passage is what a test runs through in a file.
type passage struct {
	Hash  string   // of the file when it was measured
	Lines []lines  // while the file is the same
	Decls []string // when it is another
}

type lines struct{ From, To int }

// passes reports whether the test runs through the site.
func (t *covered) passes(s sites.Site, hash string) bool {
	p, ok := t.Files[s.File]
	if !ok {
		return false
	}
	if p.Hash != hash {
		return slices.Contains(p.Decls, s.Decl)
	}
	return slices.ContainsFunc(p.Lines, func(l lines) bool { return l.From <= s.Line && s.Line <= l.To })
}

// decls is how many declarations the test runs through: the fewer, the more it is about each.
func (t *covered) decls() (n int) {
	for _, p := range t.Files {
		n += len(p.Decls)
	}
	return n
}

// coverage measures what each test of packages runs through, and keeps it in the user's cache. A
// test is measured again when its file has changed.
type coverage struct {
	root  string
	cache string
	of    []string // packages that are measured, as go test -coverpkg takes them
	tests []*covered
}

const buildTags = "-tags=onlyonce_fault"

func openCoverage(root string, of []string) (*coverage, error) {
	cache, err := os.UserCacheDir()
	c := &coverage{root: root, cache: filepath.Join(cache, "onlyonce", "coverage.jsonl"), of: of}
	if err != nil {
		return c, err
	}
	if err := os.MkdirAll(filepath.Dir(c.cache), 0o755); err != nil {
		return c, err
	}
	return c, c.read()
}

func (c *coverage) read() error {
	text, err := os.ReadFile(c.cache)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	c.tests = nil
	newest := map[string]*covered{}
	var order []string
	for line := range bytes.Lines(text) {
		t := &covered{}
		if json.Unmarshal(line, t) != nil {
			continue // a process was killed while it wrote
		}
		name := t.Dir + " " + t.Test
		if newest[name] == nil {
			order = append(order, name)
		}
		newest[name] = t
	}
	for _, name := range order {
		c.tests = append(c.tests, newest[name])
	}
	return nil
}

// measure measures the tests of directories that are not measured yet.
func (c *coverage) measure(ctx context.Context, dirs []string, atOnce int) error {
	out, err := os.OpenFile(c.cache, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	work, err := os.MkdirTemp("", "coverage")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	for _, dir := range dirs {
		left, err := c.unknown(dir)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			continue
		}
		binary := filepath.Join(work, "test")
		if err := c.build(ctx, dir, binary); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		fmt.Printf("coverage of %d tests of %s\n", len(left), dir)
		if err := c.each(ctx, left, binary, atOnce, out); err != nil {
			return err
		}
	}
	return c.read()
}

// unknown returns the tests of a directory that are not measured yet.
func (c *coverage) unknown(dir string) (left []*covered, err error) {
	type measured struct{ dir, test, key string }
	known := map[measured]bool{}
	for _, t := range c.tests {
		known[measured{t.Dir, t.Test, t.Key}] = true
	}
	texts, err := source.TestTexts(filepath.Join(c.root, dir))
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if !strings.HasPrefix(name, "Test") || name == "TestMain" {
			continue
		}
		sum := sha256.Sum256([]byte(texts[name]))
		t := &covered{Dir: dir, Test: name, Key: hex.EncodeToString(sum[:8])}
		if !known[measured{t.Dir, t.Test, t.Key}] {
			left = append(left, t)
		}
	}
	return left, nil
}

// build compiles a directory's tests.
func (c *coverage) build(ctx context.Context, dir, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-cover", "-covermode=set",
		"-coverpkg="+strings.Join(c.of, ","), buildTags, "-o", binary, "./"+dir)
	cmd.Dir = c.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// each runs each test alone, in a process of its own, and writes down where it went.
func (c *coverage) each(ctx context.Context, tests []*covered, binary string, atOnce int, out *os.File) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	left := make(chan *covered)
	var failed error
	for range atOnce {
		wg.Go(func() {
			for t := range left {
				if err := c.one(ctx, t, binary); err != nil {
					fmt.Printf("coverage: %s %s: not measured: %v\n", t.Dir, t.Test, err)
					continue
				}
				line, err := json.Marshal(t)
				mu.Lock()
				if err == nil {
					_, err = out.Write(append(line, '\n'))
				}
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	for _, t := range tests {
		left <- t
	}
	close(left)
	wg.Wait()
	return failed
}

// one measures a test. One that is skipped runs through nothing.
func (c *coverage) one(ctx context.Context, t *covered, binary string) error {
	profile, err := os.CreateTemp("", "profile")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(profile.Name()) }()
	_ = profile.Close()
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+t.Test+"$", "-test.short", "-test.v", "-test.coverprofile", profile.Name())
	cmd.Dir = filepath.Join(c.root, t.Dir)
	began := time.Now()
	text, err := cmd.CombinedOutput()
	if err != nil {
		return err
	}
	t.Files = map[string]passage{}
	if bytes.Contains(text, []byte("--- SKIP: "+t.Test)) {
		return nil
	}
	t.Seconds = time.Since(began).Seconds()
	return t.profile(c.root, profile.Name())
}

// profile reads a profile as go test writes it: file:line.column,line.column statements count.
func (t *covered) profile(root, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	ran := map[string][]lines{}
	for s := bufio.NewScanner(f); s.Scan(); {
		file, rest, ok := strings.Cut(strings.TrimPrefix(s.Text(), source.Module+"/"), ":")
		fields := strings.FieldsFunc(rest, func(r rune) bool { return r == '.' || r == ',' || r == ' ' })
		if !ok || len(fields) != 6 || fields[5] == "0" {
			continue
		}
		from, err := strconv.Atoi(fields[0])
		if err != nil {
			return err
		}
		to, err := strconv.Atoi(fields[2])
		if err != nil {
			return err
		}
		ran[file] = append(ran[file], lines{from, to})
	}
	for file, ranges := range ran {
		d, err := source.ReadDecls(filepath.Join(root, file))
		if err != nil {
			return err
		}
		p := passage{Hash: d.Hash, Lines: ranges}
		for _, decl := range d.Funcs {
			if slices.ContainsFunc(ranges, func(l lines) bool { return l.From >= decl.From && l.To <= decl.To }) {
				p.Decls = append(p.Decls, decl.Name)
			}
		}
		t.Files[file] = p
	}
	return nil
}
