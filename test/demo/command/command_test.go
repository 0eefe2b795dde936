package command_test

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/command"
)

func TestFlags(t *testing.T) {
	var stdout bytes.Buffer
	p := command.Program{Name: "x", Stdout: &stdout}
	parse := func(args ...string) (map[string]bool, error) {
		fs := flag.NewFlagSet("x", flag.ContinueOnError)
		p.Register(fs)
		return p.Parse(fs, args, "head\n", "tail\n")
	}
	given, err := parse("-v")
	good := err == nil && len(given) == 1 && given["v"] && p.Verbose && !p.JSON
	if !good {
		t.Errorf("%v, %v, %+v", given, err, p)
	}
	if _, err := parse("-x"); err == nil || !strings.HasSuffix(err.Error(), "; -h lists the flags") || stdout.Len() > 0 {
		t.Errorf("%v, %q", err, &stdout)
	}
	if _, err := parse("-h"); !errors.Is(err, flag.ErrHelp) ||
		!strings.HasPrefix(stdout.String(), "head\n  -json") ||
		!strings.HasSuffix(stdout.String(), "\ntail\n") {
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
