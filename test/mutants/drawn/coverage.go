package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
	Key       string // of the package's tests when it was measured
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
// test is measured again when the tests of its package have changed.
type coverage struct {
	root  string
	cache string
	of    []string // packages that are measured, as go test -coverpkg takes them
	tests []*covered
}

const buildTags = "-tags=onlyonce_fault"

func openCoverage(root string, of []string) (*coverage, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	c := &coverage{root: root, cache: filepath.Join(cache, "onlyonce", "coverage.jsonl"), of: of}
	if err := os.MkdirAll(filepath.Dir(c.cache), 0o755); err != nil {
		return nil, err
	}
	return c, c.read()
}

func (c *coverage) read() error {
	text, err := os.ReadFile(c.cache)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
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
		key, err := testsKey(filepath.Join(c.root, dir))
		if err != nil {
			return err
		}
		binary := filepath.Join(work, "test")
		if c.known(dir, key) {
			continue
		}
		names, err := c.build(ctx, dir, binary)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		fmt.Printf("coverage of %d tests of %s\n", len(names), dir)
		if err := c.each(ctx, dir, key, binary, names, atOnce, out); err != nil {
			return err
		}
	}
	c.tests = nil
	return c.read()
}

// known reports whether a directory's tests were measured. Their last line says so.
func (c *coverage) known(dir, key string) bool {
	return slices.ContainsFunc(c.tests, func(t *covered) bool { return t.Dir == dir && t.Test == "" && t.Key == key })
}

// testsKey names the content of a directory's tests.
func testsKey(dir string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// build compiles a directory's tests, and returns their names.
func (c *coverage) build(ctx context.Context, dir, binary string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-cover", "-covermode=set", "-coverpkg="+strings.Join(c.of, ","), buildTags, "-o", binary, "./"+dir)
	cmd.Dir = c.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	names, err := source.Tests(filepath.Join(c.root, dir))
	return slices.DeleteFunc(names, func(n string) bool { return n == "TestMain" || !strings.HasPrefix(n, "Test") }), err
}

// each runs each test alone, in a process of its own, and writes down where it went.
func (c *coverage) each(ctx context.Context, dir, key, binary string, names []string, atOnce int, out *os.File) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	left := make(chan string)
	var failed error
	write := func(t *covered) {
		mu.Lock()
		defer mu.Unlock()
		line, err := json.Marshal(t)
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		if err != nil {
			failed = err
		}
	}
	for range atOnce {
		wg.Go(func() {
			for name := range left {
				if t := c.one(ctx, dir, key, binary, name); t != nil {
					write(t)
				}
			}
		})
	}
	for _, name := range names {
		left <- name
	}
	close(left)
	wg.Wait()
	write(&covered{Dir: dir, Key: key})
	return failed
}

// one returns nil for a test that fails, or is skipped.
func (c *coverage) one(ctx context.Context, dir, key, binary, name string) *covered {
	profile, err := os.CreateTemp("", "profile")
	if err != nil {
		return nil
	}
	defer func() { _ = os.Remove(profile.Name()) }()
	_ = profile.Close()
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+name+"$", "-test.short", "-test.v", "-test.coverprofile", profile.Name())
	cmd.Dir = filepath.Join(c.root, dir)
	began := time.Now()
	text, err := cmd.CombinedOutput()
	if err != nil || bytes.Contains(text, []byte("--- SKIP: "+name)) {
		fmt.Printf("coverage: %s %s: not measured (%v)\n", dir, name, err)
		return nil
	}
	t := &covered{Dir: dir, Test: name, Key: key, Seconds: time.Since(began).Seconds(), Files: map[string]passage{}}
	if err := t.profile(c.root, profile.Name()); err != nil {
		fmt.Printf("coverage: %s %s: %v\n", dir, name, err)
		return nil
	}
	return t
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
