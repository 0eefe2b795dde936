// Outboxstorm shows what is left of a stream of outbound calls when everything around it is killed:
//
//	make storm-outbox CALLS=100000 KILLS=100
//
// Producers enqueue calls in transactions of their own: with ordering keys and without, at once and
// for later, held open, rolled back whole or to a savepoint. Relay processes send them to a remote
// in this process, which records every request and fails some of them in every way. Meanwhile
// events drawn from a seed hit the relays: SIGKILL in mid-call, SIGSTOP for longer than their
// leases and then SIGCONT, relays that join and leave, SIGKILL to Postgres. After all calls are
// settled, the program compares what the remote got with what the producers committed, and with the
// outbox: I9, I10, I13 and I14 of docs/guarantees.md, and the order of ordering keys (O4).
//
// It starts a server of its own, whatever the environment names, because it kills it. Exit status:
// 0 every invariant holds; 1 one does not, or the run got stuck; 2 usage or environment.
//
// The first line prints the seed. It fixes the calls, the remote's faults and the events, each with
// the part of the stream at which it comes. Which statement of which relay an event hits depends on
// the machine, and differs from run to run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
)

// Exit statuses.
const (
	statusGood        = 0
	statusFailed      = 1
	statusEnvironment = 2
)

func main() {
	if fleet.IsWorker() {
		os.Exit(relayMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once: relays and the server notice.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, nil))
}

// options are the flags.
type options struct {
	calls     int
	kills     int
	seed      uint64
	relays    int
	producers int
	failures  float64
	json      bool
	verbose   bool
	patience  time.Duration
}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("outboxstorm", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.calls, "calls", 100_000, "calls to commit")
	fs.IntVar(&o.kills, "kills", 100, "events: most are kills of a relay, the others stop and continue one, let one join or leave, and kill Postgres")
	fs.Uint64Var(&o.seed, "seed", 0, "seed of the calls, the faults and the events (default: a random one)")
	fs.IntVar(&o.relays, "relays", 3, "relay processes, 2 to 16")
	fs.IntVar(&o.producers, "producers", 8, "transactions open at once, 1 to 64")
	fs.Float64Var(&o.failures, "failures", 0.05, "`fraction` of the requests that the remote fails, 0 to 0.5")
	fs.BoolVar(&o.json, "json", false, "print one JSON object to standard output, and the rest to standard error")
	fs.BoolVar(&o.verbose, "v", false, "tell every event of the relays")
	fs.DurationVar(&o.patience, "patience", 90*time.Second, "give up when nothing has moved for so long")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for o.seed == 0 {
		o.seed = uint64(rand.Uint32()) // short enough to be typed
	}
	var faults []error
	between := func(name string, n, least, most int) {
		if n < least || n > most {
			faults = append(faults, fmt.Errorf("-%s: %d is not from %d to %d", name, n, least, most))
		}
	}
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q: values follow their flags", fs.Arg(0)))
	}
	between("calls", o.calls, 100, 5_000_000)
	between("kills", o.kills, 0, 10_000)
	between("relays", o.relays, 2, 16)
	between("producers", o.producers, 1, 64)
	if !(o.failures >= 0 && o.failures <= 0.5) { // NaN too
		faults = append(faults, fmt.Errorf("-failures: %v is not from 0 to 0.5: it is a fraction", o.failures))
	}
	if o.calls < 100*o.kills {
		faults = append(faults, fmt.Errorf("-kills: %d calls are too few for %d events, each of which needs calls to hit: at least %d", o.calls, o.kills, 100*o.kills))
	}
	if o.patience < 10*time.Second {
		faults = append(faults, fmt.Errorf("-patience: %v is less than 10s, which a restart and a take-over may take", o.patience))
	}
	return o, errors.Join(faults...)
}

// run is the program without its process. Tests may tamper with the outcome before it is judged.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tamper func(*callcheck.Facts)) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintln(stderr, "storm-outbox:", line)
		}
		return status
	}
	o, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return statusGood
	case err != nil:
		return fail(statusEnvironment, err)
	}
	human := stdout
	if o.json {
		human = stderr
	}
	s := newStorm(o, screen.New(human, o.verbose))
	s.screen.Say("seed %d", o.seed)
	defer s.screen.End()
	if err := s.open(ctx); err != nil {
		return fail(statusEnvironment, errors.Join(err, s.close()))
	}
	r, err := s.rage(ctx, tamper)
	s.screen.End()
	if err != nil {
		r.Error = err.Error()
		_ = fail(statusFailed, fmt.Errorf("seed %d: %w", o.seed, err))
	}
	if err := s.close(); err != nil {
		_ = fail(statusFailed, fmt.Errorf("stopping the server: %w", err))
	}
	if err := r.write(human, stdout, o.json); err != nil {
		return fail(statusEnvironment, err)
	}
	if !r.OK {
		return statusFailed
	}
	return statusGood
}
