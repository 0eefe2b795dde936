// Payments-api demonstrates onlyonce's HTTP layer in one command:
//
//	go -C examples/payments-api run .
//
// It runs a payments API in several processes and kills them with SIGKILL. Its clients time out,
// retry, send requests twice at once, and use keys for the wrong requests. Then it counts the
// effects. api.go, charges.go, refunds.go and settlements.go are what a user of onlyonce writes;
// openapi.yaml describes the API.
//
// Exit status: 0 if every effect is there once and every key had one answer; 1 if not, or if the
// run got stuck; 2 for errors of usage or environment; 130 if it was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/screen"
)

func main() {
	if os.Getenv(envServer) != "" {
		os.Exit(serverMain())
	}
	command.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, args, stdout, stderr, hooks{})
	})
}

// hooks let tests look at every answer, and tamper with the outcome before it is judged.
type hooks struct {
	seen   func(seenAnswer)
	tamper func(context.Context, *demo) error
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer, h hooks) int {
	program := &command.Program{Name: "payments-api", Stdout: stdout, Stderr: stderr}
	o, err := parseFlags(program, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return command.Good
	case err != nil:
		return program.Fail(command.Environment, err)
	}
	return program.Show(ctx, servers.StartPostgres, o.servers, "looking for Postgres, or starting it", "servers",
		func(srv *servers.Servers, to *screen.Screen) command.Demo { return newDemo(o, srv, to, h) })
}

// cleanTimeout bounds the removal of what a run has left, for an interrupted one too.
const cleanTimeout = 20 * time.Second

// Clean removes what the run has left in the user's own database, unless it is kept.
func (d *demo) Clean(keep bool) error {
	if !d.servers.Postgres.Given || !d.made {
		return nil
	}
	what := fmt.Sprintf("the rows of run %s in onlyonce_payments, and of its accounts and sink in schema onlyonce", d.run)
	if keep || d.opts.keep {
		d.screen.Say("kept: %s", what)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	awaitWriters(ctx, d.servers.Postgres.Pool)
	for _, sql := range tidySQL {
		if _, err := d.servers.Postgres.Pool.Exec(ctx, sql, d.accounts, d.sink()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}
