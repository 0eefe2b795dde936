// Package command is what the examples share as programs: signals, flags, exit statuses, JSON for
// programs and tables for people. The parts of an example that show onlyonce are in the example's
// own files.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Exit statuses.
const (
	Good        = 0
	Failed      = 1 // what was to be shown is not so, or the run got stuck
	Environment = 2 // usage or environment
	Interrupted = 130
)

// Main runs an example with the arguments and streams of the process, until it ends or is
// interrupted. A Config without a Logger logs nothing: these programs make things fail on purpose,
// and report what came of it. A program of yours leaves slog.Default() as it is.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once. Processes and servers that it has started then end
	// by themselves: they notice.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Program is an example's name and where it writes.
type Program struct {
	Name           string
	Stdout, Stderr io.Writer
	JSON           bool // -json
	Verbose        bool // -v
}

// RegisterJSON declares -json.
func (p *Program) RegisterJSON(fs *flag.FlagSet) {
	fs.BoolVar(&p.JSON, "json", false, "print one JSON object to standard output, and the rest to standard error")
}

// Register declares -json and -v.
func (p *Program) Register(fs *flag.FlagSet) {
	p.RegisterJSON(fs)
	fs.BoolVar(&p.Verbose, "v", false, "tell every event")
}

// Human is the stream for people.
func (p *Program) Human() io.Writer {
	if p.JSON {
		return p.Stderr
	}
	return p.Stdout
}

// Fail says what is wrong, a line for each fault, and returns the status.
func (p *Program) Fail(status int, err error) int {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		_, _ = fmt.Fprintf(p.Stderr, "%s: %s\n", p.Name, line)
	}
	return status
}

// object writes what -json asks for: one object, on one line.
func (p *Program) object(v any) error {
	if !p.JSON {
		return nil
	}
	e := json.NewEncoder(p.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Result is the outcome of a run that has come to its end, and what -json prints.
type Result interface {
	Good() bool
	Table() string
}

// End reports how a run has ended, and returns the exit status. begun is false if nothing was
// demonstrated yet: an error is then one of the environment. After End, everything is stopped, and
// what the run made is removed.
func (p *Program) End(ctx context.Context, r Result, begun bool, err error, after ...func() error) int {
	status := Good
	switch {
	case ctx.Err() != nil:
		status = p.Fail(Interrupted, errors.New("interrupted"))
	case err != nil:
		status = p.Fail(classify(begun), err)
	default:
		_, _ = fmt.Fprintf(p.Human(), "\n%s\n", r.Table())
		if err := p.object(r); err != nil {
			status = p.Fail(Environment, err)
		}
		if !r.Good() {
			status = Failed
		}
	}
	for _, f := range after {
		if err := f(); err != nil && status == Good {
			status = p.Fail(Environment, err)
		}
	}
	return status
}

// classify returns the status of a failed run: by whether the run had everything that it needs when
// it failed.
func classify(begun bool) int {
	if begun {
		return Failed
	}
	return Environment
}
