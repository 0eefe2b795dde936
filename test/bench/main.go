// Command bench measures the ratios of docs/results/bench.md: what a guarantee costs, compared with
// the same work without it.
//
// It prints one line for each ratio. It exits 1 if a ratio misses its bar, and 2 if it cannot
// measure.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// options are the command line.
type options struct {
	only    string
	rounds  int
	window  time.Duration
	verbose bool
	json    bool
	profile string
	long    bool
	keep    int  // how many keys P8 keeps; 0: by long
	retains bool // simulate retention, and measure no ratio
	sim     sim
	apart   bool // measure calls whose relay is another process, and no ratio
	across  across
	holds   bool // measure queues beside a held snapshot, and no ratio
	held    held
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what is measured logs nothing
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if spec := os.Getenv(peakEnv); spec != "" {
		os.Exit(childMain(ctx, spec, os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 2
	}
	pairs, err := pick(allPairs(), o.only)
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 2
	}
	short, err := measureAll(ctx, o, pairs, stdout, stderr)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 2
	case short:
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var seconds float64
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.only, "only", "", "ratios to measure, such as P2,P3 or P2a (default: all)")
	fs.IntVar(&o.rounds, "rounds", 5, "counted rounds a ratio; each measures both sides")
	fs.Float64Var(&seconds, "seconds", 3, "length of a measurement in seconds")
	fs.BoolVar(&o.verbose, "v", false, "print min and max, and every round to standard error")
	fs.BoolVar(&o.json, "json", false, "print one JSON object a ratio")
	fs.StringVar(&o.profile, "profile", "", "directory for CPU profiles of the last round, one a side")
	fs.BoolVar(&o.long, "long", false, "the long form of the ratios that have one (P8: 50 million keys; P14, P17: a minute a side)")
	fs.IntVar(&o.keep, "kept", 0, "how many keys P8 keeps (default: 5 million, with -long 50 million)")
	fs.BoolVar(&o.retains, "retention", false, "simulate months of retention instead, and print what keys take")
	fs.IntVar(&o.sim.days, "days", 45, "with -retention: simulated days")
	fs.IntVar(&o.sim.horizon, "horizon", 30, "with -retention: days for which keys are remembered")
	fs.IntVar(&o.sim.keys, "keys", 100_000, "with -retention: keys a simulated day")
	fs.Float64Var(&o.sim.scale, "scale", 1e7, "with -retention: keys a day to which the figures are scaled")
	fs.BoolVar(&o.apart, "across", false, "measure commit to call with the relay in another process instead, and what that costs")
	fs.IntVar(&o.across.calls, "calls", 1000, "with -across: how many calls")
	fs.DurationVar(&o.across.every, "every", time.Second, "with -across: the time between two calls")
	fs.DurationVar(&o.across.idle, "idle", 10*time.Minute, "with -across: how long the relay is idle before that is measured")
	fs.BoolVar(&o.holds, "held", false, "measure queues beside a held snapshot instead")
	fs.DurationVar(&o.held.length, "length", 20*time.Minute, "with -held: how long each way takes")
	fs.IntVar(&o.held.rate, "rate", 1000, "with -held: events a second")
	fs.StringVar(&o.held.only, "ways", "", "with -held: which, by `names`: "+strings.Join(heldNames(), ",")+" (default: all)")
	fs.StringVar(&o.held.page, "page", "", "with -held: write the page of results to this `file`")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.window = time.Duration(seconds * float64(time.Second))
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: choose ratios with -only", fs.Arg(0))
	case o.rounds < 1:
		return o, fmt.Errorf("-rounds is %d: must be at least 1", o.rounds)
	case o.window < 100*time.Millisecond:
		return o, fmt.Errorf("-seconds is %g: must be at least 0.1", seconds)
	case o.keep != 0 && o.keep < smallShare*bigSegments:
		return o, fmt.Errorf("-kept is %d: must be at least %d", o.keep, smallShare*bigSegments)
	case o.sim.horizon < 1 || o.sim.days < o.sim.horizon*8/7+2:
		return o, fmt.Errorf("-days is %d, -horizon %d: must be at least 1, and days 8/7 of it and 2 more, so that a segment is forgotten",
			o.sim.days, o.sim.horizon)
	case o.sim.keys < 1000:
		return o, fmt.Errorf("-keys is %d: must be at least 1000", o.sim.keys)
	case o.sim.scale < 1:
		return o, fmt.Errorf("-scale is %g: must be at least 1", o.sim.scale)
	case o.across.calls < 1:
		return o, fmt.Errorf("-calls is %d: must be at least 1", o.across.calls)
	case o.held.length < time.Minute || o.held.rate < 100:
		return o, fmt.Errorf("-length is %v, -rate %d: must be at least 1m and 100", o.held.length, o.held.rate)
	case o.across.every <= 0:
		return o, fmt.Errorf("-every is %v: must be positive", o.across.every)
	}
	return o, nil
}

// pick returns the pairs that measure what was asked for, without their other metrics.
func pick(pairs []pair, only string) ([]pair, error) {
	if only == "" {
		return pairs, nil
	}
	var picked []pair
	found := map[string]bool{}
	names := strings.Split(only, ",")
	for _, p := range pairs {
		var metrics []metric
		for _, m := range p.metrics {
			for _, n := range names {
				if m.name == n || strings.TrimRight(m.name, "abcdefgh") == n {
					found[n] = true
					metrics = append(metrics, m)
					break
				}
			}
		}
		if len(metrics) > 0 {
			p.metrics = metrics
			picked = append(picked, p)
		}
	}
	for _, n := range names {
		if !found[n] {
			return nil, fmt.Errorf("-only: there is no ratio %q here", n)
		}
	}
	return picked, nil
}

// measureAll makes the server keep its WAL files for reuse, as a server does that has run for a
// while. A new server makes and zeroes each file, which makes the side that writes more of it pay
// twice. It changes no setting that makes commits durable.
func measureAll(ctx context.Context, o options, pairs []pair, stdout, stderr io.Writer) (short bool, err error) {
	progress := func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	pg, err := devenv.StartPostgres(ctx, devenv.Options{
		Log:              func(line string) { progress("%s", line) },
		PostgresSettings: map[string]string{"min_wal_size": "1GB", "max_wal_size": "8GB"},
	})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	srv, err := openServer(ctx, pg.URL, func(line string) { progress("%s", line) })
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	if srv.postmaster == 0 {
		progress("the server's processes are not to be seen from here: its CPU time is not measured")
	}
	if o.retains {
		return false, o.sim.simulate(ctx, srv, stdout)
	}
	if o.apart {
		return false, o.across.measure(ctx, srv, stdout)
	}
	if o.holds {
		return false, o.held.measure(ctx, srv, stdout)
	}
	commit := headCommit(ctx)
	for _, p := range pairs {
		if p.rounds > 0 {
			progress("%s: %d rounds: %s", p.names(), min(p.rounds, o.rounds), p.what)
		} else {
			progress("%s: %d rounds of %v a side: %s", p.names(), o.rounds, o.window, p.what)
		}
		results, err := p.measure(ctx, srv, o, progress)
		if err != nil {
			return false, fmt.Errorf("%s: %w", p.names(), err)
		}
		for _, r := range results {
			short = short || !r.OK
			r.Commit = commit
			r.Date = time.Now().UTC().Format(time.DateOnly)
			r.Postgres = srv.version
			if err := r.print(stdout, o); err != nil {
				return false, err
			}
		}
	}
	return short, nil
}

// print writes the result as a line or as a JSON object.
func (r result) print(w io.Writer, o options) error {
	if o.json {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := fmt.Fprintln(w, r.line(o.verbose))
	return err
}
