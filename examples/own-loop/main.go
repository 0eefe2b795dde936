// Own-loop shows how little of onlyonce a team may take: it keeps its kafka-go loop and its transaction, and adds one call,
// dedupe.Claim. See loop.go; this file feeds it and counts.
//
//	go run ./examples/own-loop
//
// Exit status: 0 every order is applied once; 1 one is not; 2 usage or environment; 130 interrupted.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/onlyonce/onlyonce/examples/internal/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintln(stderr, "own-loop:", line)
		}
		return status
	}
	fs := flag.NewFlagSet("own-loop", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var f servers.Flags
	f.Register(fs)
	messages := fs.Int("messages", 500, "unique orders to produce, 50 to 100000")
	duplicates := fs.Float64("duplicates", 0.1, "`fraction` of them that is produced twice, 0 to 1")
	asJSON := fs.Bool("json", false, "print one JSON object to standard output, and the rest to standard error")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	faults := f.Faults()
	if *messages < 50 || *messages > 100_000 {
		faults = append(faults, fmt.Errorf("-messages: %d is not from 50 to 100000", *messages))
	}
	if !(*duplicates >= 0 && *duplicates <= 1) {
		faults = append(faults, fmt.Errorf("-duplicates: %v is not from 0 to 1: it is a fraction", *duplicates))
	}
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	if len(faults) > 0 {
		return fail(2, errors.Join(faults...))
	}
	human := stdout
	if *asJSON {
		human = stderr
	}
	say := func(line string) { _, _ = fmt.Fprintln(human, line) }
	say("looking for Postgres and Kafka, or starting them")
	srv, err := servers.Start(ctx, f, say, func(string) {})
	if err != nil {
		return fail(2, err)
	}
	p := &proof{servers: srv, scope: "own-loop-" + strings.ToLower(rand.Text()[:8]), say: say}
	r, err := p.perform(ctx, *messages, *duplicates)
	status := 0
	switch {
	case ctx.Err() != nil:
		status = fail(130, errors.New("interrupted"))
	case err != nil && !p.begun:
		status = fail(2, err)
	case err != nil:
		status = fail(1, err)
	default:
		_, _ = fmt.Fprintf(human, "\n%s\n", r.table())
		if *asJSON {
			err = json.NewEncoder(stdout).Encode(r)
		}
		if !r.OK {
			status = 1
		}
	}
	for _, err := range []error{err, p.tidy(), srv.Stop()} {
		if err != nil && status == 0 {
			status = fail(2, err)
		}
	}
	return status
}
