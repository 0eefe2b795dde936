package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/examples/internal/servers"
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
	json       bool
	verbose    bool
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

// errHelp says that help was asked for and given.
var errHelp = errors.New("help")

// parseFlags returns every fault at once. help goes to out.
func parseFlags(args []string, out io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&o.messages, "messages", 10_000, "unique orders to produce")
	fs.Float64Var(&o.duplicates, "duplicates", 0.1, "`fraction` of the messages that is produced twice, 0 to 1")
	fs.IntVar(&o.kills, "kills", 5, "worker processes to kill with SIGKILL in mid-batch\n(by default fewer for less than 500 messages)")
	fs.IntVar(&o.partitions, "partitions", 6, "partitions of the topic, 1 to 64")
	fs.IntVar(&o.workers, "workers", 3, "worker processes, 1 to 16")
	fs.StringVar(&o.input, "input", "", "produce your own messages from this `file`: JSON, one a line")
	fs.StringVar(&o.pointer, "key", "", "with -input: JSON `pointer` (RFC 6901) to a message's id (default /id)")
	o.servers.Register(fs)
	fs.DurationVar(&o.patience, "patience", time.Minute, "give up when nothing has moved for so long")
	fs.BoolVar(&o.keep, "keep", false, "leave topic, group and rows of this run in your own servers")
	fs.BoolVar(&o.json, "json", false, "print one JSON object to standard output, and the rest to standard error")
	fs.BoolVar(&o.verbose, "v", false, "tell every event")

	err = fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(out)
		_, _ = fmt.Fprint(out, usageHead)
		fs.PrintDefaults()
		_, _ = fmt.Fprint(out, usageTail)
		return o, errHelp
	}
	if err != nil {
		return o, fmt.Errorf("%w; -h lists the flags", err)
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return o, o.check(fs.Args(), given)
}

func (o *options) check(rest []string, given map[string]bool) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(rest) > 0 {
		fault("unexpected argument %q: values follow their flags", rest[0])
	}
	between := func(name string, n, least, most int) {
		if n < least || n > most {
			fault("-%s: %d is not from %d to %d", name, n, least, most)
		}
	}
	between("messages", o.messages, 1, 5_000_000)
	between("kills", o.kills, 0, 1000)
	between("partitions", o.partitions, 1, 64)
	between("workers", o.workers, 1, 16)
	if !(o.duplicates >= 0 && o.duplicates <= 1) { // NaN too
		fault("-duplicates: %v is not from 0 to 1: it is a fraction", o.duplicates)
	}
	if o.patience < time.Second {
		fault("-patience: %v is less than 1s", o.patience)
	}
	switch {
	case o.input == "" && given["input"]:
		fault("-input: must name a file")
	case o.input == "" && given["key"]:
		fault("-key: only with -input: generated orders carry their id in a header")
	case o.input != "" && given["messages"]:
		fault("-messages: not with -input, which holds as many as it holds")
	}
	if o.input != "" && !given["key"] {
		o.pointer = "/id"
	}
	if (o.input != "" || given["key"]) && !strings.HasPrefix(o.pointer, "/") {
		fault("-key: %q is not a JSON pointer: it begins with '/', as in /order/id", o.pointer)
	}
	o.fixedKills = given["kills"]
	if o.input == "" && !given["input"] {
		if err := o.fit(o.messages); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(append(faults, o.servers.Faults()...)...)
}

// perKill is how many messages there must be for each kill, so that it finds a batch.
const perKill = 100

// fit sees to it that there are enough messages for all kills.
func (o *options) fit(messages int) error {
	switch {
	case !o.fixedKills:
		o.kills = min(o.kills, messages/perKill)
	case messages < perKill*o.kills:
		return fmt.Errorf("-kills: %d messages are too few for %d kills, each of which needs batches to hit: at least %d", messages, o.kills, perKill*o.kills)
	}
	return nil
}
