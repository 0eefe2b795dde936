package command_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/examples/internal/command"
)

type result struct {
	OK bool `json:"ok"`
}

func (r result) Good() bool  { return r.OK }
func (result) Table() string { return "counts < 1" }

// The exit status says how a run has ended; what was made is cleared away whatever came of it.
func TestEnd(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	wrong := errors.New("first\nsecond")
	for name, c := range map[string]struct {
		ctx    context.Context
		ok     bool
		begun  bool
		err    error
		after  error
		status int
		stdout string
		stderr string
	}{
		"good":                 {ctx: t.Context(), ok: true, begun: true, status: command.Good, stdout: `{"ok":true}` + "\n", stderr: "\ncounts < 1\n"},
		"not so":               {ctx: t.Context(), begun: true, status: command.Failed, stdout: `{"ok":false}` + "\n", stderr: "\ncounts < 1\n"},
		"not so, and a rest":   {ctx: t.Context(), begun: true, after: wrong, status: command.Failed, stdout: `{"ok":false}` + "\n", stderr: "\ncounts < 1\n"},
		"a rest":               {ctx: t.Context(), ok: true, begun: true, after: wrong, status: command.Environment, stdout: `{"ok":true}` + "\n", stderr: "\ncounts < 1\nx: first\nx: second\n"},
		"failed before":        {ctx: t.Context(), err: wrong, status: command.Environment, stderr: "x: first\nx: second\n"},
		"failed":               {ctx: t.Context(), begun: true, err: wrong, after: wrong, status: command.Failed, stderr: "x: first\nx: second\n"},
		"interrupted":          {ctx: interrupted, begun: true, err: wrong, status: command.Interrupted, stderr: "x: interrupted\n"},
		"interrupted too late": {ctx: interrupted, ok: true, begun: true, status: command.Interrupted, stderr: "x: interrupted\n"},
	} {
		var stdout, stderr bytes.Buffer
		p := command.Program{Name: "x", Stdout: &stdout, Stderr: &stderr, JSON: true}
		ran := 0
		status := p.End(c.ctx, result{c.ok}, c.begun, c.err, func() error { ran++; return c.after }, func() error { ran++; return nil })
		if status != c.status || stdout.String() != c.stdout || stderr.String() != c.stderr || ran != 2 {
			t.Errorf("%s: exit status %d, %d cleared away, %q, %q", name, status, ran, &stdout, &stderr)
		}
	}
}

func TestFlags(t *testing.T) {
	var stdout bytes.Buffer
	p := command.Program{Name: "x", Stdout: &stdout}
	parse := func(args ...string) (map[string]bool, error) {
		fs := flag.NewFlagSet("x", flag.ContinueOnError)
		p.Register(fs)
		return p.Parse(fs, args, "head\n", "tail\n")
	}
	if given, err := parse("-v"); err != nil || len(given) != 1 || !given["v"] || !p.Verbose || p.JSON {
		t.Errorf("%v, %v, %+v", given, err, p)
	}
	if _, err := parse("-x"); err == nil || !strings.HasSuffix(err.Error(), "; -h lists the flags") || stdout.Len() > 0 {
		t.Errorf("%v, %q", err, &stdout)
	}
	if _, err := parse("-h"); !errors.Is(err, flag.ErrHelp) || !strings.HasPrefix(stdout.String(), "head\n  -json") || !strings.HasSuffix(stdout.String(), "\ntail\n") {
		t.Errorf("%v, %q", err, &stdout)
	}

	var faults command.Faults
	faults.Rest(nil)
	faults.Between("n", 3, 1, 3)
	faults.Fraction("f", 1)
	faults.Patience(time.Second)
	if err := faults.Err(); err != nil {
		t.Error(err)
	}
	faults.Rest([]string{"more"})
	faults.Between("n", 4, 1, 3)
	faults.Fraction("f", 1.5)
	faults.Patience(time.Millisecond)
	want := `unexpected argument "more": values follow their flags
-n: 4 is not from 1 to 3
-f: 1.5 is not from 0 to 1: it is a fraction
-patience: 1ms is less than 1s`
	if err := faults.Err(); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
