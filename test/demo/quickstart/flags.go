package quickstart

import (
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// options are the flags.
type options struct {
	servers    servers.Flags
	messages   int
	duplicates float64
	kills      int
	fixedKills bool // -kills was given
	partitions int
	workers    int
	input      string
	pointer    string // of the user's own messages; empty: they are generated
	keep       bool
	patience   time.Duration
}

const usageHead = `Quickstart shows what onlyonce promises, on a real workload and under attack.

It produces a stream of orders, some of them twice, to Kafka. Worker processes
apply each to Postgres and charge for it at a payment endpoint. Meanwhile workers
are killed with SIGKILL in mid-batch, one joins and leaves, the group's offsets
are reset, and the whole stream is produced again. Then it counts.

usage: go run ./examples/quickstart [flags]

`

const usageTail = `
Without -postgres and -brokers it finds or starts servers of its own, which end
with it; ONLYONCE_ENV (local, embedded, docker) chooses how.

Exit status: 0 every effect is there once; 1 one is missing or doubled, or the run
got stuck; 2 usage or environment; 130 interrupted.
`

// parseFlags returns every fault at once.
func parseFlags(program *command.Program, args []string) (o options, err error) {
	fs := flag.NewFlagSet(program.Name, flag.ContinueOnError)
	fs.IntVar(&o.messages, "messages", 10_000, "unique orders to produce")
	fs.Float64Var(&o.duplicates, "duplicates", 0.1, "`fraction` of the messages that is produced twice, 0 to 1")
	fs.IntVar(&o.kills, "kills", 5, "worker processes to kill with SIGKILL in mid-batch\n(by default fewer for less than 500 messages)")
	fs.IntVar(&o.partitions, "partitions", 6, "partitions of the topic, 1 to 64")
	fs.IntVar(&o.workers, "workers", 3, "worker processes, 1 to 16")
	fs.StringVar(&o.input, "input", "", "produce your own messages from this `file`: JSON, one a line")
	fs.StringVar(&o.pointer, "key", "", "with -input: JSON `pointer` (RFC 6901) to a message's id (default /id)")
	o.servers.Register(fs)
	fs.DurationVar(&o.patience, "patience", time.Minute, "give up when nothing has moved for so long")
	fs.BoolVar(&o.keep, "keep",
		false,
		"leave the servers that it started running until Ctrl-C, to look at them with onlyonce ui;\nor "+
			"topic, group and rows of this run in your own servers")
	program.Register(fs)
	given, err := program.Parse(fs, args, usageHead, usageTail)
	if err != nil {
		return o, err
	}
	return o, o.check(fs.Args(), given)
}

func (o *options) check(rest []string, given map[string]bool) error {
	var faults command.Faults
	faults.Rest(rest)
	faults.Between("messages", o.messages, 1, 5_000_000)
	faults.Between("kills", o.kills, 0, 1000)
	faults.Between("partitions", o.partitions, 1, 64)
	faults.Between("workers", o.workers, 1, 16)
	faults.Fraction("duplicates", o.duplicates)
	faults.Patience(o.patience)
	switch {
	case o.input == "" && given["input"]:
		faults.Add("-input: must name a file")
	case o.input == "" && given["key"]:
		faults.Add("-key: only with -input: generated orders carry their id in a header")
	case o.input != "" && given["messages"]:
		faults.Add("-messages: not with -input, which holds as many as it holds")
	}
	if o.input != "" && !given["key"] {
		o.pointer = "/id"
	}
	if (o.input != "" || given["key"]) && !strings.HasPrefix(o.pointer, "/") {
		faults.Add("-key: %q is not a JSON pointer: it begins with '/', as in /order/id", o.pointer)
	}
	o.fixedKills = given["kills"]
	if o.input == "" && !given["input"] {
		if err := o.fit(o.messages); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, o.servers.Faults()...)
	return faults.Err()
}

// perKill is how many messages there must be for each kill, so that it finds a batch.
const perKill = 100

// fit sees to it that there are enough messages for all kills.
func (o *options) fit(messages int) error {
	switch {
	case !o.fixedKills:
		o.kills = min(o.kills, messages/perKill)
	case messages < perKill*o.kills:
		return fmt.Errorf("-kills: %d messages are too few for %d kills, each of which needs batches to hit: at least %d",
			messages, o.kills, perKill*o.kills)
	}
	return nil
}
