// Webhook-ingest receives the webhooks of seven providers on one server, from senders that deliver
// each event several times, out of order, tampered with and too late, and counts what became of
// them.
//
//	go -C examples/webhook-ingest run .
//
// Exit status: 0 every event took effect once, or was overtaken, and nothing else did; 1 not so; 2
// usage or environment; 130 interrupted.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
)

func main() { command.Main(run) }

// options are the flags.
type options struct {
	events     int
	duplicates float64
	seed       uint64
	github     string
	patience   time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := &command.Program{Name: "webhook-ingest", Stdout: stdout, Stderr: stderr}
	fs := flag.NewFlagSet(program.Name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	var f servers.Flags
	f.RegisterPostgres(fs)
	var o options
	fs.IntVar(&o.events, "events", 60, "unique events of each provider, 6 to 10000")
	fs.Float64Var(&o.duplicates, "duplicates", 0.5, "`fraction` of them that is delivered more than once, 0 to 1")
	fs.Uint64Var(&o.seed, "seed", 0, "of the order in which requests are sent (default: random, and printed)")
	fs.StringVar(&o.github, "github-payloads", "", "send these payloads of GitHub's too: the `file` api.github.com/index.json\nof the npm package @octokit/webhooks-examples")
	fs.DurationVar(&o.patience, "patience", 2*time.Minute, "give up after this `time`")
	program.RegisterJSON(fs)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return command.Good
	} else if err != nil {
		return command.Environment
	}
	var faults command.Faults
	faults.Between("events", o.events, 6, 10_000)
	faults.Fraction("duplicates", o.duplicates)
	if o.patience < time.Second {
		faults.Add("-patience: %v is below 1s", o.patience)
	}
	if fs.NArg() > 0 {
		faults.Add("unexpected argument %q", fs.Arg(0))
	}
	x := &proof{o: o, of: map[*provider][]*event{}}
	if len(faults) == 0 {
		faults = x.prepare()
	}
	if err := faults.Err(); err != nil {
		return program.Fail(command.Environment, err)
	}
	x.say = func(format string, args ...any) { _, _ = fmt.Fprintf(program.Human(), format+"\n", args...) }
	x.say("looking for Postgres, or starting it")
	srv, err := servers.StartPostgres(ctx, f, func(line string) { x.say("%s", line) }, func(string) {})
	if err != nil {
		return program.Fail(command.Environment, err)
	}
	r, err := x.perform(ctx, srv.Postgres.URL, strings.ToLower(rand.Text()[:8]))
	return program.End(ctx, r, x.begun, err, srv.Stop)
}
