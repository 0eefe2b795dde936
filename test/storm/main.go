// Storm shows what is left of a stream of messages when everything around it is killed:
//
//	make storm MESSAGES=100000 KILLS=100
//
// It produces unique messages with ordering keys to a real broker, some of them twice, and some
// that are aborted. Worker processes apply them to Postgres. Meanwhile events drawn from a seed hit
// them: SIGKILL to a worker in mid-batch, SIGSTOP for longer than its session and then SIGCONT,
// workers that join and leave, SIGKILL to Postgres, SIGKILL to a broker. With -failover a standby
// that lacks the last commits is promoted instead of Postgres being restarted. After all messages
// are settled, the program reads the log from its beginning and the database, and package
// test/check checks the invariants of docs/guarantees.md.
//
// It starts servers of its own, whatever the environment names, because it kills them. Exit status:
// 0 every invariant holds; 1 one does not, or the run got stuck; 2 usage or environment.
//
// The first line prints the seed. It fixes the stream and the events, each with the part of the
// stream at which it comes. Which statement of which worker an event hits depends on the machine,
// and differs from run to run.
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
		os.Exit(workerMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once: workers and servers notice.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, nil))
}

// options are the flags.
type options struct {
	messages   int
	kills      int
	seed       uint64
	partitions int
	workers    int
	replicas   int
	duplicates float64
	failover   bool
	idle       bool
	positions  bool
	source     string
	policy     string
	json       bool
	verbose    bool
	patience   time.Duration
}

// Values of flags.
const (
	sourceKafkaGo = "kafka-go"
	sourceFranz   = "franz"
	policyPark    = "park"
	policyKey     = "key"
)

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("storm", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.messages, "messages", 100_000, "unique messages to produce")
	fs.IntVar(&o.kills, "kills", 100, "events: most are kills of a worker, the others hit the group, Postgres and the broker")
	fs.Uint64Var(&o.seed, "seed", 0, "seed of the stream and the events (default: a random one)")
	fs.IntVar(&o.partitions, "partitions", 6, "partitions of the topic, 1 to 64")
	fs.IntVar(&o.workers, "workers", 3, "worker processes, 2 to 16")
	fs.IntVar(&o.replicas, "replicas", 1, "brokers of the cluster, and replicas of the topic: 1 or 3")
	fs.Float64Var(&o.duplicates, "duplicates", 0.1, "`fraction` of the messages that is produced twice, 0 to 1")
	fs.BoolVar(&o.failover, "failover", false, "promote a standby that lacks the last commits, instead of restarting Postgres")
	fs.BoolVar(&o.idle, "idle", false, "with -failover: one more at the end, behind which no message comes")
	fs.BoolVar(&o.positions, "positions", false, "without keys and copies: the fence has nobody behind it who would find what it lets through")
	fs.StringVar(&o.source, "source", sourceKafkaGo, "what workers consume through: kafka-go or franz (cooperative rebalances, half of the members static)")
	fs.StringVar(&o.policy, "policy", policyPark, "what becomes of messages that fail: park sets them aside, key sets their whole ordering key aside and tries it again")
	fs.BoolVar(&o.json, "json", false, "print one JSON object to standard output, and the rest to standard error")
	fs.BoolVar(&o.verbose, "v", false, "tell every event of the workers")
	fs.DurationVar(&o.patience, "patience", 90*time.Second, "give up when nothing has moved for so long")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.positions {
		o.duplicates = 0
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
	between("messages", o.messages, 100, 5_000_000)
	between("kills", o.kills, 0, 10_000)
	between("partitions", o.partitions, 1, 64)
	between("workers", o.workers, 2, 16)
	if o.replicas != 1 && o.replicas != 3 {
		faults = append(faults, fmt.Errorf("-replicas: %d is neither 1 nor 3", o.replicas))
	}
	if o.source != sourceKafkaGo && o.source != sourceFranz {
		faults = append(faults, fmt.Errorf("-source: %q is neither %s nor %s", o.source, sourceKafkaGo, sourceFranz))
	}
	if o.policy != policyPark && o.policy != policyKey {
		faults = append(faults, fmt.Errorf("-policy: %q is neither %s nor %s", o.policy, policyPark, policyKey))
	}
	if !(o.duplicates >= 0 && o.duplicates <= 1) { // NaN too
		faults = append(faults, fmt.Errorf("-duplicates: %v is not from 0 to 1: it is a fraction", o.duplicates))
	}
	if o.messages < 100*o.kills {
		faults = append(faults, fmt.Errorf("-kills: %d messages are too few for %d events, each of which needs batches to hit: at least %d", o.messages, o.kills, 100*o.kills))
	}
	if o.idle && !o.failover {
		faults = append(faults, errors.New("-idle: only with -failover"))
	}
	if o.patience < 10*time.Second {
		faults = append(faults, fmt.Errorf("-patience: %v is less than 10s, which a restart of a broker may take", o.patience))
	}
	return o, errors.Join(faults...)
}

// run is the program without its process. Tests may tamper with the outcome before it is judged.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tamper func(context.Context, *storm) error) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintln(stderr, "storm:", line)
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
		_ = fail(statusFailed, fmt.Errorf("stopping the servers: %w", err))
	}
	if err := r.write(human, stdout, o.json); err != nil {
		return fail(statusEnvironment, err)
	}
	if !r.OK {
		return statusFailed
	}
	return statusGood
}
