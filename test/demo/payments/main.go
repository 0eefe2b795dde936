// Payments attacks the API of examples/payments-api, and counts.
//
//	go run ./test/demo/payments
//
// It runs the API in several processes and kills them with SIGKILL. Its clients time out, retry,
// send requests twice at once, and use keys for the wrong requests. Then it counts the effects. A
// server is this program, started once more.
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
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	payments "github.com/onlyonce/onlyonce/examples/payments-api"
	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
)

func main() {
	if fleet.IsWorker() {
		var cfg serverConfig
		os.Exit(fleet.Serve(&cfg, func(ctx context.Context, c *fleet.Child) error { return serve(ctx, c, cfg) }))
	}
	command.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, args, stdout, stderr, nil)
	})
}

// run is the program without its process. A test may tamper with the outcome before it is judged.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tamper func(context.Context, *demo) error) int {
	program := &command.Program{Name: "payments", Stdout: stdout, Stderr: stderr}
	o, err := parseFlags(program, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return command.Good
	case err != nil:
		return program.Fail(command.Environment, err)
	}
	return program.Show(ctx, servers.StartPostgres, o.servers, "looking for Postgres, or starting it", "servers",
		func(srv *servers.Servers, to *screen.Screen) command.Demo { return newDemo(o, srv, to, tamper) })
}

// serverConfig is all that a server process needs to know.
type serverConfig struct {
	Postgres string
	API      payments.Config
}

// serve is a server process. It reports when a request begins and when it has returned, so that
// kills can be aimed.
func serve(ctx context.Context, c *fleet.Child, cfg serverConfig) error {
	pool, err := servers.OpenPool(ctx, cfg.Postgres, 15)
	if err != nil {
		return err
	}
	defer pool.Close()
	api, err := payments.New(pool, cfg.API)
	if err != nil {
		return err
	}
	handler := api.Handler()
	last := atomic.Int32{}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := last.Add(1)
		begun := time.Now()
		c.Tell(fleet.Event{Kind: fleet.Begin, Partition: n})
		defer func() {
			c.Tell(fleet.Event{Kind: fleet.Done, Partition: n, Micros: time.Since(begun).Microseconds()})
		}()
		handler.ServeHTTP(w, r)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- api.Run(ctx); stop() }()
	go func() { _ = server.Serve(l); stop() }()
	c.Tell(fleet.Event{Kind: fleet.Serving, Text: l.Addr().String()})
	<-ctx.Done()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(bounded), <-ended) // requests under way are finished first
}

// cleanTimeout bounds the removal of what a run has left, for an interrupted one too.
const cleanTimeout = 20 * time.Second

// Clean removes what the run has left in the user's own database, unless it is kept.
func (d *demo) Clean(keep bool) error {
	var err error
	if d.fleet != nil {
		err = d.fleet.Close()
	}
	if !d.servers.Postgres.Given || !d.made {
		return err
	}
	what := fmt.Sprintf("the rows of run %s in onlyonce_payments, and of its accounts and sink in schema onlyonce", d.run)
	if keep || d.opts.keep {
		d.screen.Say("kept: %s", what)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	awaitWriters(ctx, d.servers.Postgres.Pool)
	for _, sql := range tidySQL {
		if _, failed := d.servers.Postgres.Pool.Exec(ctx, sql, d.accounts, d.sink()); failed != nil {
			return errors.Join(err, fmt.Errorf("%s: %w", what, failed))
		}
	}
	return err
}
