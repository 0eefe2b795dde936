package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/test/results"
)

// allScenes returns the scenes of every file.
func allScenes() []scene {
	return slices.Concat(consumerScenes(), relayScenes(), servingScenes(), placesScenes(), operatorScenes(), rotationScenes())
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
	ctx = process.With(ctx, &process.Process{Pace: process.Pace{
		Prune:     1,
		Start:     o.bound,
		Sweep:     time.Millisecond,
		PruneIdle: 2 * time.Millisecond,
	}})
	defer removeProgram()
	workers := make([]*worker, o.workers)
	for i := range workers {
		workers[i] = &worker{given: given}
		defer func() { err = errors.Join(err, workers[i].close(context.WithoutCancel(ctx))) }()
	}
	all, err := enumerate(ctx, workers, o, &n)
	if err != nil {
		return n, false, err
	}
	picked := slices.DeleteFunc(slices.Clone(all), func(h history) bool {
		return !selects(o.only, h.String()) || !inPart(o.part, h.String())
	})
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
	_, _ = fmt.Fprintf(o.out, "adversary: %d scenes, %d points, %d histories, %d of them played, seed %s, %d at once\n",
		n.scenes, n.points, len(all), len(picked), o.seed, o.workers)
	if err := playAll(ctx, workers, o, picked, &n); err != nil {
		return n, false, err
	}
	// A message that depends on time may fail to come, for example the pool's ping of a connection
	// that was idle. If many fail to come, the rig does not do its work.
	breached = n.breaches > 0 || len(n.unstruck)*20 > len(picked)
	for _, name := range n.unstruck {
		_, _ = fmt.Fprintf(o.out, "never struck: %s: the process did not send it any more\n", name)
	}
	_, _ = fmt.Fprintf(
		o.out,
		"left out: %d histories that were not drawn; %d that are equal to others (test/adversary/equal.go); %d messages that only "+
			"some clean runs send; Describe, Execute, Close, Flush and Terminate, behind whose neighbours the server does nothing; "+
			"requests to cancel; %d of %d late deliveries found their session ended\n",
		len(all)-len(picked),
		n.spared,
		n.unsteady,
		n.dead,
		n.late,
	)
	verdict := "ok"
	if breached {
		verdict = fmt.Sprintf("BREACH breaches=%d", n.breaches)
	}
	if len(n.unstruck) > 0 {
		verdict += fmt.Sprintf(" unstruck=%d", len(n.unstruck))
	}
	_, _ = fmt.Fprintf(o.out, "adversary %s points=%d histories=%d seconds=%d seed=%s\n",
		verdict, n.points, n.struck, int(time.Since(began).Seconds()), o.seed)
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
func enumerate(ctx context.Context, workers []*worker, o *options, n *counts) ([]history, error) {
	scenes := slices.DeleteFunc(allScenes(), func(s scene) bool { return !touches(o.only, s.name) })
	if slices.ContainsFunc(scenes, func(s scene) bool { return s.command }) {
		if _, err := program(); err != nil { // before anything is bounded: it may take a minute
			return nil, err
		}
	}
	found := map[string][]history{}
	var mu sync.Mutex
	next, stop := iter.Pull(slices.Values(scenes))
	defer stop()
	err := histories.Each(len(workers), next, func(worker int, s scene) error {
		points, unsteady, err := steady(ctx, workers[worker], o, s)
		mu.Lock()
		defer mu.Unlock()
		var wrong *breach
		if errors.As(err, &wrong) && ctx.Err() == nil {
			n.breaches++
			_, _ = fmt.Fprintf(o.out, "\nBREACH %v\n", err)
			return nil
		}
		if err != nil {
			return err
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
				switch {
				case !f.meets(p.kind):
				case played[p.equal[f.name]]:
					n.spared++
				default:
					found[s.name] = append(found[s.name], history{s, p, f})
				}
			}
		}
		return nil
	})
	var all []history
	for _, s := range scenes { // in their order, whichever was played first: the seed draws from it
		all = append(all, found[s.name]...)
	}
	return all, err
}

// steady returns the messages that every clean run of a scene sends, in their first order, and how
// many messages only some runs send.
func steady(ctx context.Context, w *worker, o *options, s scene) (points []point, unsteady int, err error) {
	times := map[string]int{}
	first := map[string]*point{}
	var order []*point
	for range recordings {
		sent, err := w.record(ctx, o, s)
		if err != nil {
			return nil, 0, err
		}
		for _, p := range sent {
			name := p.String()
			times[name]++
			if was := first[name]; was != nil {
				was.equal = sparedTwice(was.equal, p.equal) // in every run
				was.phase = max(was.phase, p.phase)         // a history waits that long for it
				continue
			}
			first[name] = &p
			order = append(order, &p)
		}
	}
	met := map[string]bool{}
	for _, p := range order {
		if p.phase == idle && met[p.label] {
			continue // what is sent now and then for as long as nothing happens, once is enough
		}
		met[p.label] = met[p.label] || p.phase == idle
		if times[p.String()] < recordings {
			unsteady++
		} else {
			points = append(points, *p)
		}
	}
	return points, unsteady, nil
}

// tries is how often a history is played if its fault does not strike: a message that a process
// sends now and then may come too late.
const tries = 3

// playAll plays histories, several at once.
func playAll(ctx context.Context, workers []*worker, o *options, picked []history, n *counts) error {
	var mu sync.Mutex
	last := time.Now()
	next, stop := iter.Pull(slices.Values(picked))
	defer stop()
	return histories.Each(len(workers), next, func(worker int, h history) error {
		var out outcome
		for try := 0; try < tries && !out.struck && out.breach == nil; try++ {
			var err error
			if out, err = workers[worker].play(ctx, o, h); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		n.histories++
		switch {
		case out.struck:
			n.struck++
		case out.breach == nil:
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
			_, _ = fmt.Fprintf(o.out, "\nBREACH %s (%.1f s)\n  %s%s\n  again: %s'%s'\n",
				h, out.took.Seconds(), strings.Join(out.breach.what, "\n  "), out.lines, o.command, h)
		} else if o.verbose {
			_, _ = fmt.Fprintf(o.out, "\n%s (%.1f s)%s\n", h, out.took.Seconds(), out.lines)
		}
		if time.Since(last) > 30*time.Second {
			last = time.Now()
			_, _ = fmt.Fprintf(o.out, "%d of %d histories\n", n.histories, n.drawn)
		}
		return nil
	})
}
