package main

import (
	"flag"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// options are the flags.
type options struct {
	servers    servers.Flags
	requests   int
	clients    int
	retries    float64
	kills      int
	fixedKills bool // -kills was given
	processes  int
	keep       bool
	patience   time.Duration
}

const usageHead = `Payments shows what onlyonce promises to the clients of an HTTP API.

The API of examples/payments-api runs in several processes, over one Postgres,
with a payment provider behind it. Clients charge, capture, refund and pay out.
They time out and ask again, send a request several times at once, ask again long
after their answer, and take a used key for something else; meanwhile the
processes are killed with SIGKILL in mid-request and replaced. Then it counts.

usage: go run ./test/demo/payments [flags]

`

const usageTail = `
Without -postgres it finds or starts a server of its own, which ends with it;
ONLYONCE_ENV (local, embedded, docker) chooses how.

Exit status: 0 every effect is there once and each key had one answer; 1 not, or
the run got stuck; 2 usage or environment; 130 interrupted.
`

// parseFlags returns every fault at once.
func parseFlags(program *command.Program, args []string) (o options, err error) {
	fs := flag.NewFlagSet(program.Name, flag.ContinueOnError)
	fs.IntVar(&o.requests, "requests", 4000, "unique operations that clients want, each under a key of its own")
	fs.IntVar(&o.clients, "clients", 16, "clients at work at the same time, 1 to 256")
	fs.Float64Var(&o.retries, "retries", 0.2, "`fraction` of the operations that are asked for again after their answer, 0 to 1")
	fs.IntVar(&o.kills, "kills", 5, "server processes to kill with SIGKILL in mid-request\n(by default fewer for less than 500 requests)")
	fs.IntVar(&o.processes, "servers", 2, "server processes, 1 to 16")
	o.servers.RegisterPostgres(fs)
	fs.DurationVar(&o.patience, "patience", time.Minute, "give up when an operation has no answer for so long")
	fs.BoolVar(&o.keep, "keep", false, "leave the rows of this run in your own database")
	program.Register(fs)
	given, err := program.Parse(fs, args, usageHead, usageTail)
	if err != nil {
		return o, err
	}
	o.fixedKills = given["kills"]
	return o, o.check(fs.Args())
}

// perKill is how many operations there must be for each kill, so that it finds a request under way.
const perKill = 30

func (o *options) check(rest []string) error {
	var faults command.Faults
	faults.Rest(rest)
	faults.Between("requests", o.requests, 1, 1_000_000)
	faults.Between("clients", o.clients, 1, 256)
	faults.Between("kills", o.kills, 0, 1000)
	faults.Between("servers", o.processes, 1, 16)
	faults.Fraction("retries", o.retries)
	faults.Patience(o.patience)
	switch {
	case !o.fixedKills:
		o.kills = min(o.kills, o.requests/100)
	case o.requests < perKill*o.kills:
		faults.Add("-kills: %d requests are too few for %d kills, each of which needs some to hit: at least %d",
			o.requests, o.kills, perKill*o.kills)
	}
	return faults.Err()
}
