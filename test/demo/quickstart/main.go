// Package quickstart attacks a service that applies orders from Kafka: it produces a stream, kills
// the service's processes in mid-batch, resets offsets, produces everything again, and counts.
//
// A worker is the program itself, started once more, so that it can be killed with SIGKILL like
// any other process. Exit status: 0 if every effect is there once; 1 if one is missing or doubled,
// or if the run got stuck; 2 for errors of usage or environment; 130 if it was interrupted.
package quickstart

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
)

// Main is main of the program, and of its workers.
func Main(s Service) {
	if fleet.IsWorker() {
		os.Exit(workerMain(s))
	}
	command.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return Run(ctx, s, args, stdout, stderr, nil)
	})
}

// Run is the program without its process. A test may tamper with the rows of a run before they are
// judged.
func Run(
	ctx context.Context,
	service Service,
	args []string,
	stdout, stderr io.Writer,
	tamper func(ctx context.Context, pool *pgxpool.Pool, run string) error,
) int {
	program := &command.Program{Name: "quickstart", Stdout: stdout, Stderr: stderr}
	o, err := parseFlags(program, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return command.Good
	case err != nil:
		return program.Fail(command.Environment, err)
	}
	var s *stream
	if o.input == "" {
		s = generate(o.messages, o.duplicates)
	} else if s, err = readInput(o.input, o.pointer, o.duplicates); err != nil {
		return program.Fail(command.Environment, err)
	} else if err := o.fit(len(s.ids)); err != nil {
		return program.Fail(command.Environment, err)
	}
	return program.Show(ctx, servers.Start, o.servers, "looking for Postgres and Kafka, or starting them", "workers",
		func(srv *servers.Servers, to *screen.Screen) command.Demo {
			return newDemo(o, service, s, srv, to, tamper)
		})
}

// cleanTimeout bounds the removal of what a run has left, for an interrupted one too.
const cleanTimeout = 20 * time.Second

// Keep leaves the servers running until Ctrl-C, if -keep is given, and names the command that opens
// the console over what the run has left.
func (d *demo) Keep(ctx context.Context) {
	if !d.opts.keep || d.servers.Postgres.Given {
		return
	}
	d.screen.Say("The servers go on until Ctrl-C. The console over this run, in another terminal:\n\n  go "+
		"run ./cmd/onlyonce ui -operate -postgres '%s'\n", d.servers.Postgres.URL)
	<-ctx.Done()
}

// Clean removes what the run has left in the user's own servers, unless it is kept.
func (d *demo) Clean(keep bool) error {
	var errs []error
	if d.fleet != nil {
		errs = append(errs, d.fleet.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	for _, own := range []struct {
		given  bool
		what   string
		remove func() error
	}{
		{d.servers.Kafka.Given, "topic and group " + d.run, func() error { return d.servers.Kafka.Remove(ctx, d.run, d.run) }},
		{d.servers.Postgres.Given, fmt.Sprintf("the rows of scope %s in schema onlyonce, and in onlyonce_quickstart", d.run),
			func() error { return d.cleanUp(ctx) }},
	} {
		switch {
		case !own.given:
		case keep || d.opts.keep:
			d.screen.Say("kept: %s", own.what)
		default:
			if err := own.remove(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", own.what, err))
			}
		}
	}
	return errors.Join(errs...)
}
