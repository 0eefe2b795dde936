// Remotes measures what the calls of other tenants see of a tenant whose remote fails in some way:
// the time from a call's commit to its arrival.
//
//	make remotes [CALLS=1000] [ONLY=hangs]
//
// Each case has a database, a remote, an HTTP sink and a relay of its own, all at their defaults.
// First the calls of the bad tenants are committed, then those of tenant good at 50 a second. All
// cases are played side by side. It prints a line for each.
//
// Exit status: 0 in each case good's calls arrive, their 99th percentile within twice that of the
// case in which nobody is bad; 1 they do not; 2 usage or environment.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// slack is what a slow machine adds to the 99th percentile of one case and not of another.
const slack = 250 * time.Millisecond

func main() {
	calls := flag.Int("calls", 1000, "calls of the tenant good")
	most := flag.Duration("wait", time.Minute, "how long it waits for the last of them")
	only := flag.String("only", "", "play the first case, and those whose names contain this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	failed, err := run(ctx, *only, *calls, *most)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "remotes:", err)
		os.Exit(2)
	case failed > 0:
		fmt.Printf("remotes: in %d cases a tenant's remote holds up the calls of another\n", failed)
		os.Exit(1)
	}
	fmt.Printf("remotes ok calls=%d\n", *calls)
}

// run plays the cases side by side, prints how they went, and returns how many have failed.
func run(ctx context.Context, only string, calls int, most time.Duration) (failed int, err error) {
	pg, err := devenv.StartPostgres(ctx, devenv.Options{PostgresSettings: devenv.ThrowawaySettings()})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	server, err := workerdb.NewServer(ctx, pg.URL, "remotes")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	var played []*play
	for i, c := range cases {
		if i == 0 || strings.Contains(c.name, only) {
			played = append(played, &play{scene: c, calls: calls, most: most})
		}
	}
	errs := make([]error, len(played))
	var all sync.WaitGroup
	for i, p := range played {
		all.Go(func() { errs[i] = p.run(ctx, server) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	bound := 2*played[0].percentile(99) + slack
	fmt.Printf("%-45s %8s %8s %9s %9s %9s\n", "", "BAD MADE", "ARRIVED", "P50", "P99", "LAST")
	for _, p := range played {
		verdict := ""
		switch {
		case p.ended != nil:
			verdict = fmt.Sprintf("  Run ended: %.80v", p.ended)
		case p.missing() > 0 || p.percentile(99) > bound:
			verdict = "  held up"
		}
		if verdict != "" {
			failed++
		}
		fmt.Printf("%-45s %8d %4d/%-4d %9s %9s %9s%s\n", p.name, p.bad.Load(), calls-p.missing(), calls,
			rounded(p.percentile(50)), rounded(p.percentile(99)), rounded(p.percentile(100)), verdict)
	}
	fmt.Printf("bound of the 99th percentile: %s\n", rounded(bound))
	return failed, nil
}

func rounded(d time.Duration) string { return d.Round(time.Millisecond).String() }

// percentile is how long at most that part of good's calls took, in percent. A call that has not
// arrived took as long as it was waited for.
func (p *play) percentile(of int) time.Duration {
	took := slices.Sorted(slices.Values(p.took))
	if len(took) == 0 {
		return 0
	}
	return took[max(len(took)*of/100-1, 0)]
}

// missing is how many of good's calls have not arrived.
func (p *play) missing() int { return p.calls - int(p.arrived.Load()) }
