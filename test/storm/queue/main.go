// Queue is the storm of queues: it shows what is left of a stream of messages of a broker other
// than Kafka when everything around it is killed.
//
// make storm-queue BROKER=nats|rabbit MESSAGES=20000 KILLS=30
//
// It publishes unique messages with ordering keys, and copies of some of them after the broker has
// forgotten their ids. Worker processes receive, store and apply them; one at a time receives
// (queue.Config.Ordered). Meanwhile events drawn from a seed hit them: SIGKILL to a worker in
// mid-batch, SIGSTOP for longer than its leases and then SIGCONT, workers that join and leave,
// SIGKILL to Postgres, a switchover to its standby and back, SIGKILL to the broker. After all
// messages are applied, the program compares the effects with what the broker has acknowledged:
// none lost (I1), none double (I2), none made up (I3), in the order of each key (I6), none parked
// (I5). It prints how long after a switchover the first message was stored.
//
// It starts servers of its own, because it kills them. Exit status: 0 every invariant holds; 1 one
// does not, or the run got stuck; 2 usage or environment.
package main

import (
	"context"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

func main() {
	if dir := os.Getenv(envNATS); dir != "" {
		os.Exit(natsMain(dir))
	}
	rig.Main(workerMain, run)
}

// options are the flags.
type options struct {
	rig.Options
	messages int
	broker   string
	copies   float64
}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	names := strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
	fs := rig.NewFlags("storm-queue", "worker", &o.Options, stderr)
	fs.IntVar(&o.messages, "messages", 20_000, "unique messages to publish")
	fs.StringVar(&o.broker, "broker", "nats", "the broker: "+names)
	fs.Float64Var(&o.copies, "copies", 0.1, "`fraction` of the messages that are published a second time, 0 to 1")
	if err := fs.ParseFor(args, &o.Options, "worker", "messages", &o.messages); err != nil {
		return o, err
	}
	if _, ok := kinds[o.broker]; !ok {
		fs.Fault("-broker: %q is not one of %s", o.broker, names)
	}
	fs.Fraction("copies", o.copies, 1)
	return o, fs.Err()
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return rig.Run(ctx, "storm-queue", stdout, stderr, func() (rig.Options, func(*screen.Screen) rig.Storm, error) {
		o, err := parseFlags(args, stderr)
		return o.Options, func(to *screen.Screen) rig.Storm { return newStorm(o, to) }, err
	})
}
