package main

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// tracked are the files that git knows, by their path from the root.
func tracked(t *testing.T, globs ...string) []string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", "../..", "ls-files", "-z"}, globs...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

func read(t *testing.T, name string) string {
	t.Helper()
	src, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

func TestRegisterOfStringLiterals(t *testing.T) {
	t.Parallel()
	if n, err := run(io.Discard, "../.."); err != nil || n > 0 {
		t.Errorf("%d: make words lists them (%v)", n, err)
	}
}

func TestLiterals(t *testing.T) {
	t.Parallel()
	got := goStrings([]byte("package p // \"nobody\"\nvar s, r = \"whoever\", `is told`\n"))
	if strings.Join(got, " ") != "\"whoever\" `is told`" {
		t.Errorf("%q", got)
	}
}
