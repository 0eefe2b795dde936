package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/test/results"
)

// allScenes returns the scenes of every file.
func allScenes() []scene {
	return slices.Concat(consumerScenes(), relayScenes(), servingScenes(), homesScenes(), operatorScenes(), rotationScenes())
}

// counts are what a run has played and found.
type counts struct {
	scenes, points, unsteady int // points of clean runs; those that only some clean runs have
	spared                   int // histories that are equal to others
	drawn                    int
	histories, struck        int
	unstruck                 []string
	breaches                 int
	late, dead               int // late deliveries; those whose session had ended
}

// adversary plays the histories that the options select, and prints the result. breached reports
// that an invariant did not hold.
//
// Each worker has a Postgres server of its own, unless the address of one is given.
func adversary(ctx context.Context, given string, o *options) (n counts, breached bool, err error) {
	began := time.Now()
	pace.Prune, pace.Start, pace.Sweep, pace.PruneIdle = 1, o.bound, time.Millisecond, 2*time.Millisecond
	defer removeProgram()
	dbs := make(chan *database, o.workers)
	for i := range o.workers {
		d := newDatabase(given, i)
		defer func() { err = errors.Join(err, d.close(context.WithoutCancel(ctx))) }()
		dbs <- d
	}
	all, err := enumerate(ctx, dbs, o, &n)
	if err != nil {
		return n, false, err
	}
	picked := slices.DeleteFunc(slices.Clone(all), func(h history) bool { return !selects(o.only, h.String()) || !inPart(o.part, h.String()) })
	if len(picked) == 0 && n.breaches == 0 {
		return n, false, errNothing
	}
	if o.list {
		for _, h := range picked {
			_, _ = fmt.Fprintln(o.out, h)
		}
		return n, false, nil
	}
	random := draw(o.seed)
	random.Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
	if o.sample > 0 && o.sample < len(picked) {
		picked = picked[:o.sample]
	}
	n.drawn = len(picked)
	_, _ = fmt.Fprintf(o.out, "adversary: %d scenes, %d points, %d histories, %d of them played, seed %s, %d at once\n", n.scenes, n.points, len(all), len(picked), o.seed, o.workers)
	if err := playAll(ctx, dbs, o, picked, &n); err != nil {
		return n, false, err
	}
	// A message that depends on time may fail to come, for example the pool's ping of a connection
	// that was idle. If many fail to come, the rig does not do its work.
	breached = n.breaches > 0 || len(n.unstruck)*20 > len(picked)
	for _, name := range n.unstruck {
		_, _ = fmt.Fprintf(o.out, "never struck: %s: the process did not send it any more\n", name)
	}
	_, _ = fmt.Fprintf(o.out, "left out: %d histories that were not drawn; %d that are equal to others (test/adversary/equal.go); %d messages that only some clean runs send; Describe, Execute, Close, Flush and Terminate, behind whose neighbours the server does nothing; requests to cancel; %d of %d late deliveries found their session ended\n",
		len(all)-len(picked), n.spared, n.unsteady, n.dead, n.late)
	verdict := "ok"
	if breached {
		verdict = fmt.Sprintf("BREACH breaches=%d", n.breaches)
	}
	if len(n.unstruck) > 0 {
		verdict += fmt.Sprintf(" unstruck=%d", len(n.unstruck))
	}
	_, _ = fmt.Fprintf(o.out, "adversary %s points=%d histories=%d seconds=%d seed=%s\n", verdict, n.points, n.struck, int(time.Since(began).Seconds()), o.seed)
	return n, breached, nil
}

// inPart reports whether a history is in the part. It depends on the name alone, so that a history
// stays in its part if others are added.
func inPart(p *results.Part, name string) bool {
	if p == nil {
		return true
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()%uint64(p.N) == uint64(p.K-1)
}

func draw(seed string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed))
	return rand.New(rand.NewPCG(h.Sum64(), 7)) //nolint:gosec // reproducible by intent
}

// recordings is how often a scene is played without a fault: a message that each of them has is a
// point.
const recordings = 3

// enumerate plays the scenes without faults, and returns all histories.
func enumerate(ctx context.Context, dbs chan *database, o *options, n *counts) (all []history, err error) {
	scenes := slices.DeleteFunc(allScenes(), func(s scene) bool { return !touches(o.only, s.name) })
	if slices.ContainsFunc(scenes, func(s scene) bool { return s.command }) {
		if _, err := program(); err != nil { // before anything is bounded: it may take a minute
			return nil, err
		}
	}
	found := make([][]history, len(scenes))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, s := range scenes {
		wg.Go(func() {
			db := <-dbs
			defer func() { dbs <- db }()
			points, unsteady, failed := steady(ctx, db, o, s)
			mu.Lock()
			defer mu.Unlock()
			var wrong *breach
			if errors.As(failed, &wrong) && ctx.Err() == nil {
				n.breaches++
				_, _ = fmt.Fprintf(o.out, "\nBREACH %v\n", failed)
				return
			}
			if failed != nil {
				if err == nil {
					err = failed
				}
				return
			}
			n.scenes++
			n.points += len(points)
			n.unsteady += unsteady
			played := map[string]bool{}
			for _, p := range points {
				played[p.String()] = true
			}
			for _, p := range points {
				for _, f := range faults {
					if !f.meets(p.kind) {
						continue
					}
					if played[p.equal[f.name]] {
						n.spared++
						continue
					}
					found[i] = append(found[i], history{s, p, f})
				}
			}
		})
	}
	wg.Wait()
	return slices.Concat(found...), err
}

// steady returns the messages that every clean run of a scene sends, and how many messages only
// some runs send.
func steady(ctx context.Context, db *database, o *options, s scene) (points []point, unsteady int, err error) {
	times := map[string]int{}
	first := map[string]point{}
	for range recordings {
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		sent, err := record(ctx, db, o, s)
		if err != nil {
			return nil, 0, err
		}
		for _, p := range sent {
			times[p.String()]++
			was, there := first[p.String()]
			if there { // spared in every run
				p.equal = sparedTwice(p.equal, was.equal)
				was.equal = p.equal
			}
			if !there || p.phase > was.phase {
				was = p // the latest phase: a history waits that long for it
			}
			first[p.String()] = was
			if times[p.String()] == 1 {
				points = append(points, p)
			}
		}
	}
	for i, p := range points {
		points[i] = first[p.String()]
	}
	met := map[string]bool{}
	points = slices.DeleteFunc(points, func(p point) bool { // what is sent now and then for as long as nothing happens, once is enough
		again := p.phase == idle && met[p.label]
		met[p.label] = met[p.label] || p.phase == idle
		return again
	})
	some := func(p point) bool { return times[p.String()] < recordings }
	for _, p := range points {
		if some(p) {
			unsteady++
		}
	}
	return slices.DeleteFunc(points, some), unsteady, nil
}

// tries is how often a history is played if its fault does not strike: a message that a process
// sends now and then may come too late.
const tries = 3

// playAll plays histories, several at once.
func playAll(ctx context.Context, dbs chan *database, o *options, picked []history, n *counts) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	last := time.Now()
	for _, h := range picked {
		db := <-dbs
		mu.Lock()
		failed := err
		mu.Unlock()
		if failed != nil || ctx.Err() != nil {
			dbs <- db
			break
		}
		wg.Go(func() {
			defer func() { dbs <- db }()
			out, failed := outcome{}, error(nil)
			for range tries {
				if out, failed = play(ctx, db, o, h); failed != nil || out.struck || out.breach != nil {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				if err == nil {
					err = failed
					cancel()
				}
				return
			}
			n.histories++
			if out.struck {
				n.struck++
			} else if out.breach == nil {
				n.unstruck = append(n.unstruck, h.String())
			}
			if h.fault.name == "late" && out.struck {
				n.late++
				if out.dead {
					n.dead++
				}
			}
			if out.breach != nil {
				n.breaches++
				report(o, h, out)
			}
			if o.verbose && out.breach == nil {
				_, _ = fmt.Fprintf(o.out, "\n%s (%.1f s)\n%s\n", h, out.took.Seconds(), joined(out.lines))
			}
			if time.Since(last) > 30*time.Second {
				last = time.Now()
				_, _ = fmt.Fprintf(o.out, "%d of %d histories\n", n.histories, n.drawn)
			}
		})
	}
	wg.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// report prints a breach.
func report(o *options, h history, out outcome) {
	_, _ = fmt.Fprintf(o.out, "\nBREACH %s (%.1f s)\n", h, out.took.Seconds())
	for _, w := range out.breach.what {
		_, _ = fmt.Fprintf(o.out, "  %s\n", w)
	}
	_, _ = fmt.Fprintf(o.out, "%s\n  again: %s'%s'\n", joined(out.lines), o.command, h)
}

func joined(lines []string) string {
	return "    " + strings.Join(lines, "\n    ")
}
