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
)

// options say what is played, and how.
type options struct {
	sample   int
	seed     string
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
	only := flag.String("only", "", "comma-separated names of scenes or histories, parts of which may be patterns: consumer/*/key, relay/late; empty: all")
	flag.IntVar(&o.sample, "sample", 0, "how many histories are played, drawn by -seed; 0: all")
	flag.StringVar(&o.seed, "seed", "", "draws the sample; empty: the commit")
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
	if flag.NArg() > 0 || o.workers < 1 || o.sample < 0 || o.bound < 100*time.Millisecond {
		flag.Usage()
		return statusEnvironment
	}
	o.command = "go run ./test/adversary -only "
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pg, err := devenv.StartPostgres(ctx, devenv.Options{Own: os.Getenv(devenv.EnvPostgresURL) == "", PostgresSettings: map[string]string{
		// What is looked for are interleavings, and no server dies.
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "400"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "adversary:", err)
		return statusEnvironment
	}
	_, breached, err := adversary(ctx, pg.URL, o)
	if stopped := pg.Stop(); err == nil {
		err = stopped
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

// commit is the seed of who gives none.
func commit() string {
	out, err := exec.CommandContext(context.Background(), "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "1"
	}
	return strings.TrimSpace(string(out))
}

var errNothing = errors.New("nothing is selected: see -list")
