// Payments-api is onlyonce's HTTP side in one command:
//
//	go run ./examples/payments-api
//
// It runs a payments API in processes of its own that are killed with SIGKILL, and clients that time out, ask again, race themselves and
// mistake their keys; then it counts. api.go, charges.go and refunds.go hold what a user of onlyonce writes; openapi.yaml describes
// the API. Exit status: 0 every effect is there once, and every key had one answer; 1 not, or the run got stuck; 2 usage or
// environment; 130 interrupted.
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
	if os.Getenv(envServer) != "" {
		os.Exit(serverMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once; servers then end by themselves
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, hooks{}))
}

// hooks let tests look at every answer, and tamper with the outcome before it is judged.
type hooks struct {
	seen   func(seen)
	tamper func(context.Context, *demo) error
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer, h hooks) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintln(stderr, "payments-api:", line)
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
	human := stdout
	if o.json {
		human = stderr
	}
	to := screen.New(human, o.verbose)
	to.Say("looking for Postgres, or starting it")
	to.Live(func() string { return "not there yet" })
	srv, err := servers.StartPostgres(ctx, o.servers, func(line string) { to.Say("%s", screen.Wrap(line, screen.Width, "  ")) },
		func(line string) { to.Verbose("%s", line) })
	to.End()
	if err != nil {
		if ctx.Err() != nil {
			return fail(statusInterrupted, errors.New("interrupted"))
		}
		return fail(statusEnvironment, err)
	}
	d := newDemo(o, srv, to, h)
	status, err := d.show(ctx, stdout, human)
	to.End()
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
func (d *demo) show(ctx context.Context, stdout, human io.Writer) (int, error) {
	started := time.Now()
	err := d.perform(ctx)
	took := time.Since(started)
	if err != nil {
		status := statusFailed
		switch {
		case ctx.Err() != nil:
			status, err = statusInterrupted, errors.New("interrupted: the servers are stopped")
		case !d.opened:
			status = statusEnvironment
		}
		if d.opts.json {
			err = errors.Join(err, writeJSON(stdout, report{Error: err.Error(), Postgres: d.servers.Postgres.How, Run: d.run}))
		}
		return status, err
	}
	if d.hooks.tamper != nil {
		if err := d.hooks.tamper(ctx, d); err != nil {
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

// clean removes what the run has left in the user's own database; after a failed check it stays, for somebody to look at.
func (d *demo) clean(status int) error {
	if !d.servers.Postgres.Given || !d.made {
		return nil
	}
	what := fmt.Sprintf("the rows of run %s in onlyonce_payments, and of its accounts and sink in schema onlyonce", d.run)
	if d.opts.keep || status == statusFailed {
		d.screen.Say("kept: %s", what)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	for _, sql := range tidySQL {
		if _, err := d.servers.Postgres.Pool.Exec(ctx, sql, d.accounts, d.sink()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}
