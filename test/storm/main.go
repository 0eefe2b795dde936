// Storm shows what is left of a stream of messages when everything around it is killed.
//
//	make storm MESSAGES=100000 KILLS=100
//
// It produces unique messages with ordering keys to a real broker, some of them twice, and some
// that are aborted. Worker processes apply them to Postgres. Meanwhile events drawn from a seed hit
// them: SIGKILL to a worker in mid-batch, SIGSTOP for longer than its session and then SIGCONT,
// workers that join and leave, SIGKILL to Postgres, SIGKILL to a broker, a switchover whose sockets
// stay open, a clock of Postgres that is a week ahead. With -mixed the schema is migrated
// meanwhile, and every second worker that starts after that is of the next version. With -pgbouncer
// the workers' connections go through a pooler, whose own sessions the events hit. Functions that
// a program gives to the consumer end a worker or hang, each for a few messages that the seed
// chooses. With -failover a standby that lacks the last commits is promoted instead of Postgres
// being restarted. After all messages are settled, the program reads the log from its beginning and
// the database, and package test/check checks the invariants of docs/faults.md.
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
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

func main() {
	if address, is := os.LookupEnv(envMigrate); is {
		if err := migrate(context.Background(), address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(rig.StatusFailed)
		}
		return
	}
	rig.Main(workerMain, func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, args, stdout, stderr, nil)
	})
}

// options are the flags.
type options struct {
	rig.Options
	messages   int
	partitions int
	replicas   int
	duplicates float64
	failover   bool
	failovers  int
	idle       bool
	positions  bool
	mixed      bool
	source     string
	policy     string
	atOnce     int
	isolation  string
	pgBouncer  bool
}

// Values of flags.
const (
	sourceKafkaGo = "kafka-go"
	sourceFranz   = "franz"
	policyPark    = "park"
	policyKey     = "key"
)

// isolations are those that Postgres has, the one that it begins with first.
var isolations = []string{"read committed", "repeatable read", "serializable"}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	fs := rig.NewFlags("storm", "worker", &o.Options, stderr)
	fs.IntVar(&o.messages, "messages", 100_000, "unique messages to produce")
	fs.IntVar(&o.partitions, "partitions", 6, "partitions of the topic, 1 to 64")
	fs.IntVar(&o.replicas, "replicas", 1, "brokers of the cluster, and replicas of the topic: 1 or 3")
	fs.Float64Var(&o.duplicates, "duplicates", 0.1, "`fraction` of the messages that is produced twice, 0 to 1")
	fs.BoolVar(&o.failover, "failover", false, "promote a standby that lacks the last commits, instead of restarting Postgres")
	fs.IntVar(&o.failovers, "failovers",
		0,
		"with so many failovers, to the nearest hundredth of the kills; 0: none, or three in ten with -failover")
	fs.BoolVar(&o.idle, "idle", false, "with -failover: one more at the end, after which no message comes")
	fs.BoolVar(&o.positions, "positions", false, "without keys and copies: nothing finds what the fence lets through")
	fs.BoolVar(&o.mixed, "mixed",
		false,
		"migrate to a made-up next version after a third of the stream, and run workers of both versions from then on")
	fs.StringVar(&o.source, "source",
		sourceKafkaGo,
		"what workers consume through: kafka-go, or franz (cooperative rebalances, half of the members static)")
	fs.StringVar(&o.policy, "policy",
		policyPark,
		"what becomes of messages that fail: park sets them aside, key sets their whole ordering key aside and tries it again")
	fs.IntVar(&o.atOnce, "concurrency", 1, "transactions of a partition at once (consumer.Config.Concurrency), 1 to 64")
	fs.StringVar(&o.isolation, "isolation", isolations[0], "the database's default_transaction_isolation: "+strings.Join(isolations, ", "))
	fs.BoolVar(&o.pgBouncer, "pgbouncer", false, "workers connect through PgBouncer in transaction mode")
	if err := fs.ParseFor(args, &o.Options, "worker", "messages", &o.messages); err != nil {
		return o, err
	}
	if o.positions {
		o.duplicates = 0
	}
	o.failover = o.failover || o.failovers > 0
	fs.Between("failovers", o.failovers, 0, o.Kills)
	fs.Between("partitions", o.partitions, 1, 64)
	fs.Between("concurrency", o.atOnce, 1, 64)
	if o.replicas != 1 && o.replicas != 3 {
		fs.Fault("-replicas: %d is neither 1 nor 3", o.replicas)
	}
	if o.source != sourceKafkaGo && o.source != sourceFranz {
		fs.Fault("-source: %q is neither %s nor %s", o.source, sourceKafkaGo, sourceFranz)
	}
	if !slices.Contains(isolations, o.isolation) {
		fs.Fault("-isolation: %q is none of %s", o.isolation, strings.Join(isolations, ", "))
	}
	if o.policy != policyPark && o.policy != policyKey {
		fs.Fault("-policy: %q is neither %s nor %s", o.policy, policyPark, policyKey)
	}
	fs.Fraction("duplicates", o.duplicates, 1)
	if o.idle && !o.failover {
		fs.Fault("-idle: only with -failover")
	}
	if o.mixed && (o.failover || o.Kills < 8) {
		fs.Fault("-mixed: not with failovers, which may undo the migration; and with 8 kills at least, so " +
			"that workers of both versions are started")
	}
	return o, fs.Err()
}

// run is the program without its process. Tests may tamper with the outcome before it is judged.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tamper func(context.Context, *storm) error) int {
	return rig.Run(ctx, "storm", stdout, stderr, func() (rig.Options, func(*screen.Screen) rig.Storm, error) {
		o, err := parseFlags(args, stderr)
		return o.Options, func(to *screen.Screen) rig.Storm { return newStorm(o, to, tamper) }, err
	})
}
