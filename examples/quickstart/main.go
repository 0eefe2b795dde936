// Quickstart is onlyonce's main job in one command:
//
//	go run ./examples/quickstart
//
// worker.go holds what a user of onlyonce writes; the rest produces, attacks, and counts. A worker is this program executed
// once more, so that it can be killed with SIGKILL like any other process. Exit status: 0 every effect is there once; 1
// one is missing or doubled, or the run got stuck; 2 usage or environment; 130 interrupted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/examples/internal/servers"
	"github.com/onlyonce/onlyonce/internal/fleet"
	"github.com/onlyonce/onlyonce/internal/screen"
)

// Exit statuses.
const (
	statusGood        = 0
	statusFailed      = 1
	statusEnvironment = 2
	statusInterrupted = 130
)

func main() {
	if fleet.IsWorker() {
		os.Exit(workerMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once. Workers and servers then end by themselves: they notice.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, nil))
}

// run is the program without its process. Tests may tamper with the outcome before it is judged.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tamper func(context.Context, *demo) error) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintln(stderr, "quickstart:", line)
		}
		return status
	}
	o, err := parseFlags(args, stdout)
	switch {
	case errors.Is(err, errHelp):
		return statusGood
	case err != nil:
		return fail(statusEnvironment, err)
	}
	var s *stream
	if o.input == "" {
		s = generate(o.messages, o.duplicates)
	} else if s, err = readInput(o.input, o.pointer, o.duplicates); err != nil {
		return fail(statusEnvironment, err)
	} else if err := o.fit(len(s.ids)); err != nil {
		return fail(statusEnvironment, err)
	}
	human := stdout
	if o.json {
		human = stderr
	}
	screen := screen.New(human, o.verbose)
	screen.Say("looking for Postgres and Kafka, or starting them")
	screen.Live(func() string { return "not there yet" })
	log := func(line string) { screen.Say("%s", wrapped(line)) }
	srv, err := servers.Start(ctx, o.servers, log, func(line string) { screen.Verbose("%s", line) })
	screen.End()
	if err != nil {
		if ctx.Err() != nil {
			return fail(statusInterrupted, errors.New("interrupted"))
		}
		return fail(statusEnvironment, err)
	}
	d := newDemo(o, s, srv, screen)
	status, err := d.show(ctx, stdout, human, tamper)
	screen.End()
	if err != nil {
		_ = fail(status, err)
	}
	if err := d.clean(status); err != nil {
		_ = fail(status, fmt.Errorf("cleaning up: %w", err))
	}
	if err := srv.Stop(); err != nil {
		_ = fail(status, fmt.Errorf("stopping the servers: %w", err))
	}
	return status
}

// show performs, judges and reports.
func (d *demo) show(ctx context.Context, stdout, human io.Writer, tamper func(context.Context, *demo) error) (int, error) {
	started := time.Now()
	err := d.perform(ctx)
	took := time.Since(started)
	if err != nil {
		status := statusFailed
		switch {
		case ctx.Err() != nil:
			status, err = statusInterrupted, errors.New("interrupted: the workers are stopped")
		case !d.opened:
			status = statusEnvironment
		}
		if d.opts.json {
			err = errors.Join(err, writeJSON(stdout, report{Error: err.Error(), Scope: d.scope(), Unique: len(d.stream.ids),
				Postgres: d.servers.Postgres.How, Kafka: d.servers.Kafka.How}))
		}
		return status, err
	}
	if tamper != nil {
		if err := tamper(ctx, d); err != nil {
			return statusEnvironment, err
		}
	}
	r, err := d.makeReport(ctx, took)
	if err != nil {
		return statusFailed, err
	}
	d.screen.End()
	r.write(human, d.screen.Paint)
	if d.opts.json {
		if err := writeJSON(stdout, r); err != nil {
			return statusEnvironment, err
		}
	}
	if !r.OK {
		return statusFailed, nil
	}
	return statusGood, nil
}

// writeJSON writes one object on one line.
func writeJSON(w io.Writer, r report) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// cleanTimeout bounds the removal of what a run has left, for an interrupted one too.
const cleanTimeout = 20 * time.Second

// clean removes what the run has left in the user's own servers; after a failed check it stays, for somebody to look at.
func (d *demo) clean(status int) error {
	var errs []error
	if d.fleet != nil {
		errs = append(errs, d.fleet.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	keep := d.opts.keep || status == statusFailed
	for _, own := range []struct {
		given  bool
		what   string
		remove func() error
	}{
		{d.servers.Kafka.Given, "topic and group " + d.topic, func() error { return d.servers.Kafka.Remove(ctx, d.scope(), d.topic) }},
		{d.servers.Postgres.Given, fmt.Sprintf("the rows of scope %s in schema onlyonce, and of run %s in onlyonce_quickstart", d.scope(), d.run),
			func() error { return d.tidy(ctx) }},
	} {
		switch {
		case !own.given:
		case keep:
			d.screen.Say("kept: %s", own.what)
		default:
			if err := own.remove(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", own.what, err))
			}
		}
	}
	return errors.Join(errs...)
}

func wrapped(line string) string { return screen.Wrap(line, screen.Width, "  ") }
