// Package command is what the demonstrations share as programs: signals, flags, exit statuses, JSON
// for programs and tables for people.
package command

import (
	"context"
	"encoding/json"
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

// Main runs a demonstration with the arguments and streams of the process, until it ends or is
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

// Program is a demonstration's name and where it writes.
type Program struct {
	Name           string
	Stdout, Stderr io.Writer
	JSON           bool // -json
	Verbose        bool // -v
}

// Register declares -json and -v.
func (p *Program) Register(fs *flag.FlagSet) {
	fs.BoolVar(&p.JSON, "json", false, "print one JSON object to standard output, and the rest to standard error")
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
