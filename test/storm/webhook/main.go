// Webhook is the storm of webhooks: it shows what is left of a stream of events that were answered
// with 200 when everything around their endpoints is killed.
//
//	make storm-webhook EVENTS=20000 KILLS=30
//
// Senders send events with ordering keys, the next of a key after the one before was answered 200.
// They send an event again after every other answer, after a timeout, and while the first try is
// still under way; some requests they leave in the middle; and they send copies of what was
// answered. Half of them sign ids (Standard Webhooks); of the others (GitHub) the body decides,
// which they sometimes send under another id. Worker processes receive, or apply, or both.
// Meanwhile events drawn from a seed hit them: SIGKILL in the middle of a request or batch, SIGSTOP
// for longer than their leases and then SIGCONT, workers that join and leave, SIGKILL to Postgres,
// connections that are cut, a switchover to a standby and back, and a failover to it. The standby
// is synchronous, so that a 200 is a promise. At the end the program compares the effects with what
// was answered: none lost (I1), none double (I2), none made up (I3), in the order of each key (I6),
// and nothing is parked but the bodies that came under another id (I5, W7).
//
// It starts servers of its own, because it kills them. Exit status: 0 every invariant holds; 1 one
// does not, or the run got stuck; 2 usage or environment.
package main

import (
	"context"
	"io"

	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

func main() { rig.Main(workerMain, run) }

// options are the flags.
type options struct {
	rig.Options
	events  int
	senders int
	copies  float64
	forged  float64
}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	fs := rig.NewFlags("storm-webhook", "worker", &o.Options, stderr)
	fs.Lookup("workers").DefValue = "4"
	o.Workers = 4 // two receive, one applies, one does both
	fs.IntVar(&o.events, "events", 20_000, "events to send")
	fs.IntVar(&o.senders, "senders", 48, "senders, each with one event at a time, 2 to 512; every second one signs ids")
	fs.Float64Var(&o.copies, "copies", 0.1, "`fraction` of the events that are sent again after they were answered, 0 to 1")
	fs.Float64Var(&o.forged, "forged", 0.02, "`fraction` of the events without a signed id whose body is sent under another id, 0 to 1")
	if err := fs.ParseFor(args, &o.Options, "worker", "events", &o.events); err != nil {
		return o, err
	}
	fs.Between("senders", o.senders, 2, 512)
	fs.Fraction("copies", o.copies, 1)
	fs.Fraction("forged", o.forged, 1)
	return o, fs.Err()
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return rig.Run(ctx, "storm-webhook", stdout, stderr, func() (rig.Options, func(*screen.Screen) rig.Storm, error) {
		o, err := parseFlags(args, stderr)
		return o.Options, func(to *screen.Screen) rig.Storm { return newStorm(o, to) }, err
	})
}
