// Own-loop shows how little of onlyonce a team can use. The team keeps its kafka-go loop and adds
// one call, dedupe.DoWith. See loop.go; this file feeds the loop and counts.
//
//	go run ./examples/own-loop
//
// Exit status: 0 if every order is applied once; 1 if not; 2 for errors of usage or environment;
// 130 if it was interrupted.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
)

func main() { command.Main(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := &command.Program{Name: "own-loop", Stdout: stdout, Stderr: stderr}
	fs := flag.NewFlagSet(program.Name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	var f servers.Flags
	f.Register(fs)
	messages := fs.Int("messages", 500, "unique orders to produce, 50 to 100000")
	duplicates := fs.Float64("duplicates", 0.1, "`fraction` of them that is produced twice, 0 to 1")
	program.RegisterJSON(fs)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return command.Good
	} else if err != nil {
		return command.Environment
	}
	faults := command.Faults(f.Faults())
	faults.Between("messages", *messages, 50, 100_000)
	faults.Fraction("duplicates", *duplicates)
	if fs.NArg() > 0 {
		faults.Add("unexpected argument %q", fs.Arg(0))
	}
	if err := faults.Err(); err != nil {
		return program.Fail(command.Environment, err)
	}
	say := func(line string) { _, _ = fmt.Fprintln(program.Human(), line) }
	say("looking for Postgres and Kafka, or starting them")
	srv, err := servers.Start(ctx, f, say, func(string) {})
	if err != nil {
		return program.Fail(command.Environment, err)
	}
	p := &proof{servers: srv, scope: "own-loop-" + strings.ToLower(rand.Text()[:8]), say: say}
	r, err := p.runAndCheck(ctx, *messages, *duplicates)
	return program.End(ctx, r, p.begun, err, p.cleanUp, srv.Stop)
}
