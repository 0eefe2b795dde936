// Outbox is the storm of calls: it shows what is left of a stream of outbound calls when everything
// around it is killed.
//
//	make storm-outbox CALLS=100000 KILLS=100
//
// Producers enqueue calls in transactions of their own: with ordering keys and without, at once and
// for later, held open, rolled back whole or to a savepoint. Relay processes send them to a remote
// in this process, which records every request and fails some of them in every way. Meanwhile
// events drawn from a seed hit the relays: SIGKILL in mid-call, SIGSTOP for longer than their
// leases and then SIGCONT, relays that join and leave, SIGKILL to Postgres, a switchover whose
// sockets stay open, a clock of Postgres that is a week ahead. After all calls are settled, the
// program compares what the remote got with what the producers committed, and with the outbox: I9,
// I10, I13 and I14 of docs/faults.md, and the order of ordering keys (O4).
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
	"io"

	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

func main() {
	rig.Main(relayMain, func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, args, stdout, stderr, nil)
	})
}

// options are the flags.
type options struct {
	rig.Options
	calls     int
	producers int
	failures  float64
}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	fs := rig.NewFlags("storm-outbox", "relay", &o.Options, stderr)
	fs.IntVar(&o.calls, "calls", 100_000, "calls to commit")
	fs.IntVar(&o.producers, "producers", 8, "transactions open at once, 1 to 64")
	fs.Float64Var(&o.failures, "failures", 0.05, "`fraction` of the requests that the remote fails, 0 to 0.5")
	if err := fs.ParseFor(args, &o.Options, "relay", "calls", &o.calls); err != nil {
		return o, err
	}
	fs.Between("producers", o.producers, 1, 64)
	fs.Fraction("failures", o.failures, 0.5)
	return o, fs.Err()
}

// run is the program without its process. Tests may tamper with the outcome before it is judged.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tamper func(*callcheck.Facts)) int {
	return rig.Run(ctx, "storm-outbox", stdout, stderr, func() (rig.Options, func(*screen.Screen) rig.Storm, error) {
		o, err := parseFlags(args, stderr)
		return o.Options, func(to *screen.Screen) rig.Storm { return newStorm(o, to, tamper) }, err
	})
}
