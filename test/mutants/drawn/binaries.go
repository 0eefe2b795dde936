package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/mutants/together"
)

// binaries are the tests of directories, each compiled once with all changes.
type binaries struct {
	root string
	work string // where they are
	set  *together.Set

	mu    sync.Mutex
	built map[string]*binary
}

// binary is the tests of a directory.
type binary struct {
	once sync.Once
	name string
	err  error
}

func newBinaries(root string, set *together.Set) (*binaries, error) {
	work, err := os.MkdirTemp("", "drawn")
	return &binaries{root: root, work: work, set: set, built: map[string]*binary{}}, err
}

// close removes the binaries.
func (b *binaries) close() { _ = os.RemoveAll(b.work) }

// build compiles the tests of a directory, unless they are compiled.
func (b *binaries) build(ctx context.Context, dir string) (name string, err error) {
	b.mu.Lock()
	one := b.built[dir]
	if one == nil {
		one = &binary{name: filepath.Join(b.work, strings.ReplaceAll(dir, "/", "_"))}
		b.built[dir] = one
	}
	b.mu.Unlock()
	one.once.Do(func() {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", buildTags, "-vet=off", "-ldflags=-s -w", b.set.Flag(), "-o", one.name, "./"+dir)
		cmd.Dir = b.root
		if out, err := cmd.CombinedOutput(); err != nil {
			one.err = fmt.Errorf("the tests of %s with all changes: %w: %s", dir, err, out)
		}
	})
	return one.name, one.err
}

// patience bounds a process of tests without a change. With one it is bounded by leastPatience and
// three times what its tests take.
const (
	patience      = 2 * time.Minute
	leastPatience = 20 * time.Second
)

// outcome is how some tests ended.
type outcome struct {
	failed string // the first test that failed, or a word for what else went wrong; empty: none
	test   string // its name, if it is one
	late   bool   // it was running too long
	output string
	cpu    time.Duration
}

// run plays a group of tests in an environment that makes a change.
func (b *binaries) run(ctx context.Context, g group, env []string) (outcome, error) {
	name, err := b.build(ctx, g.dir)
	if err != nil {
		return outcome{}, err
	}
	cmd := exec.Command(name, "-test.short",
		"-test.failfast",
		"-test.timeout="+g.bound.String(),
		"-test.run",
		"^("+strings.Join(g.tests, "|")+")$")
	cmd.Dir = filepath.Join(b.root, g.dir)
	return play(ctx, cmd, env), nil
}

// play runs a process of tests.
func play(ctx context.Context, cmd *exec.Cmd, env []string) outcome {
	cmd.Env = env
	cmd.WaitDelay = 10 * time.Second // programs that a test has left may hold its output
	var out strings.Builder
	cmd.Stdout = &out
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		return outcome{failed: "(" + err.Error() + ")"}
	}
	timer := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	err := cmd.Wait()
	o := outcome{output: out.String(), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if err != nil {
		o.failed, o.test = failedTest(o.output, err)
		o.late = strings.HasSuffix(o.failed, tooLong)
	}
	return o
}

var runningTest = regexp.MustCompile(`^\s*(Test\w+)\S* \(\d`)

const tooLong = " (too long)"

// failedTest returns the first test that an output says has failed, or was running too long.
func failedTest(output string, err error) (failed, test string) {
	for s := bufio.NewScanner(strings.NewReader(output)); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name, name
		}
		if found := runningTest.FindStringSubmatch(s.Text()); found != nil {
			return found[1] + tooLong, found[1]
		}
	}
	return "(" + err.Error() + ")", ""
}
