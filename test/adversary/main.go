package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/results"
)

// options say what to play, and how.
type options struct {
	sample   int
	seed     string
	part     *results.Part // nil: all
	only     []string
	workers  int
	bound    time.Duration
	patience time.Duration
	list     bool
	verbose  bool
	command  string // plays one history again, which is to be filled in
	out      io.Writer
}

// Exit statuses: docs/design's conventions.
const (
	statusBreach      = 1
	statusEnvironment = 2
)

func main() { os.Exit(run()) }

func run() int {
	o := &options{out: os.Stdout}
	only := flag.String("only",
		"",
		"comma-separated names of scenes or histories, parts of which may be patterns: consumer/*/key, relay/late; empty: all")
	flag.IntVar(&o.sample, "sample", 0, "how many histories are played, drawn by -seed; 0: all")
	flag.StringVar(&o.seed, "seed", "", "draws the sample; empty: the commit")
	part := flag.String("part",
		"",
		"k/n: part k of the histories, divided into n by their names; a part that held at this commit is passed over")
	flag.IntVar(&o.workers, "workers", 8, "histories at once: most of the time they wait")
	flag.DurationVar(&o.bound, "bound", time.Second, "what the bounds of the processes under test are made of")
	flag.DurationVar(&o.patience, "patience", 0, "after how long something waits beyond its bound; 0: 40 bounds")
	flag.BoolVar(&o.list, "list", false, "print the names of the histories, and play none")
	flag.BoolVar(&o.verbose, "v", false, "print the timeline of each history")
	flag.Parse()
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if o.patience == 0 {
		o.patience = 40 * o.bound
	}
	if o.seed == "" {
		o.seed = commit()
	}
	if *part != "" {
		p, err := results.ParsePart(*part)
		if err != nil {
			fmt.Fprintln(os.Stderr, "adversary:", err)
			return statusEnvironment
		}
		o.part = &p
	}
	sensible := o.workers >= 1 && o.sample >= 0 && o.bound >= 100*time.Millisecond
	if flag.NArg() > 0 || !sensible {
		flag.Usage()
		return statusEnvironment
	}
	o.command = "go run ./test/adversary -only "
	var book *ledger
	whole := o.sample == 0 && *only == ""
	if o.part != nil && whole && !o.list {
		var held bool
		var err error
		if book, held, err = openLedger(*o.part); err != nil {
			fmt.Fprintln(os.Stderr, "adversary:", err)
			return statusEnvironment
		}
		if held {
			fmt.Printf("adversary: part %s held at this commit before\n", o.part)
			return 0
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, breached, err := adversary(ctx, os.Getenv(devenv.EnvPostgresURL), o)
	if err == nil && book != nil {
		err = book.note(n, breached)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "adversary:", err)
		return statusEnvironment
	case breached:
		return statusBreach
	}
	return 0
}

// commit is the default seed.
func commit() string {
	out, err := exec.CommandContext(context.Background(), "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "1"
	}
	return strings.TrimSpace(string(out))
}

var errNothing = errors.New("nothing is selected: see -list")
