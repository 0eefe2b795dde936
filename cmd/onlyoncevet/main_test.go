package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What the tests check are modules of their own, also in make test's workspace.
func init() { _ = os.Setenv("GOWORK", "off") }

// build returns the path of the tool.
func build(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "onlyoncevet")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return tool
}

// run returns what a command has printed, and whether it ended with status 0.
func run(t *testing.T, dir, program string, args ...string) (out string, ok bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", program, err)
	}
	return both.String(), err == nil
}

// Each kind of fault is found both ways.
func TestFindsFaults(t *testing.T) {
	tool := build(t)
	for _, way := range [][]string{{"go", "vet", "-vettool=" + tool, "./..."}, {tool, "./..."}} {
		out, ok := run(t, "rules/testdata", way[0], way[1:]...)
		if ok {
			t.Errorf("%v: status 0", way)
		}
		for _, want := range []string{
			"pool.go:26:", "pgxpool.Pool.Exec commits", "remote.go:", "http.Post reaches a remote",
			"goroutine.go:", "the transaction reaches another goroutine", "value.go:",
			"outbox.Call.ID comes from uuid.NewString", "services.go:",
			"store.Queries.InsertOrder sends its statement (store.go:",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("%v does not print %q:\n%s", way, want, out)
			}
		}
		if strings.Contains(out, "sound.go") {
			t.Errorf("%v:\n%s", way, out)
		}
	}
	if out, _ := run(t, "rules/testdata", tool, "-oncepool=false", "./..."); strings.Contains(out, "commits outside") ||
		!strings.Contains(out, "http.Post reaches a remote") {
		t.Errorf("without the rule oncepool:\n%s", out)
	}
}
