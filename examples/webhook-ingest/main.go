// Webhook-ingest receives the webhooks of seven providers on one server, from senders that deliver each event several times, out of
// order, tampered with and too late, and counts what became of them.
//
//	go run ./examples/webhook-ingest
//
// Exit status: 0 every event took effect once, or was overtaken, and nothing else did; 1 not so; 2 usage or environment; 130 interrupted.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/examples/internal/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags.
type options struct {
	events     int
	duplicates float64
	seed       uint64
	github     string
	patience   time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintln(stderr, "webhook-ingest:", line)
		}
		return status
	}
	fs := flag.NewFlagSet("webhook-ingest", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var f servers.Flags
	f.RegisterPostgres(fs)
	var o options
	fs.IntVar(&o.events, "events", 60, "unique events of each provider, 6 to 10000")
	fs.Float64Var(&o.duplicates, "duplicates", 0.5, "`fraction` of them that is delivered more than once, 0 to 1")
	fs.Uint64Var(&o.seed, "seed", 0, "of the order in which requests are sent (default: random, and printed)")
	fs.StringVar(&o.github, "github-payloads", "", "send these payloads of GitHub's too: the `file` api.github.com/index.json\nof the npm package @octokit/webhooks-examples")
	fs.DurationVar(&o.patience, "patience", 2*time.Minute, "give up after this `time`")
	asJSON := fs.Bool("json", false, "print one JSON object to standard output, and the rest to standard error")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	var faults []error
	if o.events < 6 || o.events > 10_000 {
		faults = append(faults, fmt.Errorf("-events: %d is not from 6 to 10000", o.events))
	}
	if !(o.duplicates >= 0 && o.duplicates <= 1) {
		faults = append(faults, fmt.Errorf("-duplicates: %v is not from 0 to 1: it is a fraction", o.duplicates))
	}
	if o.patience < time.Second {
		faults = append(faults, fmt.Errorf("-patience: %v is below 1s", o.patience))
	}
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	x := &proof{o: o, of: map[*provider][]*event{}}
	if len(faults) == 0 {
		faults = append(faults, x.prepare()...)
	}
	if len(faults) > 0 {
		return fail(2, errors.Join(faults...))
	}
	human := stdout
	if *asJSON {
		human = stderr
	}
	x.say = func(format string, args ...any) { _, _ = fmt.Fprintf(human, format+"\n", args...) }
	x.say("looking for Postgres, or starting it")
	srv, err := servers.StartPostgres(ctx, f, func(line string) { x.say("%s", line) }, func(string) {})
	if err != nil {
		return fail(2, err)
	}
	r, err := x.perform(ctx, srv.Postgres.URL, strings.ToLower(rand.Text()[:8]))
	status := 0
	switch {
	case ctx.Err() != nil:
		status = fail(130, errors.New("interrupted"))
	case err != nil && !x.begun:
		status = fail(2, err)
	case err != nil:
		status = fail(1, err)
	default:
		x.say("\n%s", r.table())
		if *asJSON {
			err = json.NewEncoder(stdout).Encode(r)
		}
		if !r.OK {
			status = 1
		}
	}
	for _, err := range []error{err, srv.Stop()} {
		if err != nil && status == 0 {
			status = fail(2, err)
		}
	}
	return status
}
