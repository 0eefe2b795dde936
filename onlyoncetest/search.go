package onlyoncetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
)

// failing is a history that has a verdict.
type failing struct {
	h history
	v *Verdict
}

// many plays the single faults, and then pairs, until the budget is used up or a verdict is found.
func (r *runner) many(ctx context.Context, list []history) (found *failing, err error) {
	random := rand.New(rand.NewPCG(*seedFlag, 1)) //nolint:gosec // reproducible by intent
	limit := r.c.budget()
	from := time.Now()
	next := 0
	pairs := 0
	if r.c.draws > 0 {
		next = len(list)
		random = rand.New(rand.NewPCG(r.c.seed, 1)) //nolint:gosec // reproducible by intent
	}
	type drawn struct {
		h    history
		kind string
	}
	draw := func() (d drawn, ok bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		used := limit > 0 && r.c.draws == 0 && time.Since(from) > limit
		switch {
		case found != nil || used:
			return d, false
		case next < len(list):
			d = drawn{list[next], kindOf(list[next])}
			next++
			return d, true
		case r.c.draws > 0 && pairs < r.c.draws && len(list) > 1:
			pairs++
		case r.c.draws > 0 || limit == 0 || len(list) < 2:
			return d, false
		}
		return drawn{pair(list, random), "pairs"}, true
	}
	err = histories.Each(workers(), draw, func(_ int, d drawn) error {
		v, struck, err := r.judged(ctx, r.c, d.h)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rep.Played[d.kind]++
		if !struck {
			r.rep.Unstruck++
		}
		if v != nil && found == nil {
			found = &failing{d.h, v}
		}
		return err
	})
	r.rep.Singles = len(list)
	r.rep.Left = len(list) - next
	if found != nil {
		return found, nil
	}
	return nil, err
}

// some leaves crashes out, if the case has that.
func (c *Case) some(all []history) []history {
	n := 0
	return slices.DeleteFunc(all, func(h history) bool {
		if c.oneOf < 2 || kindOf(h) != "crashes" {
			return false
		}
		n++
		return n%c.oneOf != 1
	})
}

// kindOf names a history's fault for the report.
func kindOf(h history) string {
	switch h.events[0].what {
	case before, after:
		if len(h.events) > 1 {
			return "resets"
		}
		return "crashes"
	case cut:
		return "cuts"
	case lost:
		return "lost answers"
	case zombie:
		return "zombies"
	case rebalance:
		return "rebalances"
	case copies, moved:
		return "copies"
	case failover, rewind:
		return "failovers"
	case single:
		return "batches of one"
	}
	return "repeats"
}

// ddmin returns a part of a list that still fails, and of which no element can be left out (Zeller
// and Hildebrandt, 2002). It tries halves first, and then smaller parts. fails is not asked for the
// empty list, nor for all.
func ddmin[T any](all []T, fails func(part []T) bool) []T {
	for parts := 2; len(all) > 1; {
		size := (len(all) + parts - 1) / parts
		before := len(all)
		for at := 0; at < len(all) && len(all) == before; at += size {
			end := min(at+size, len(all))
			part := slices.Clone(all[at:end])
			rest := slices.Concat(all[:at], all[end:])
			switch {
			case parts > 2 && fails(part): // of two halves, each is the other one's rest
				all = part
				parts = 2
			case fails(rest):
				all = rest
				parts = max(parts-1, 2)
			}
		}
		switch {
		case len(all) < before:
		case size == 1:
			return all
		default:
			parts = min(2*parts, len(all))
		}
	}
	return all
}

// mostSteps bounds the histories that are played to find a shorter one.
const mostSteps = 30

// shrunk takes events, and then messages or requests, away from a history for as long as it shows
// the same kind of fault.
func (r *runner) shrunk(ctx context.Context, f *failing) *Verdict {
	steps := 0
	again := func(h history) *Verdict {
		if steps++; steps > mostSteps {
			return nil
		}
		c := *r.c
		if h.only != nil {
			s, _, v, err := r.clean(ctx, &c, h.only)
			if err != nil || v != nil {
				return nil
			}
			c.clean = s
		}
		if v, _, err := r.judged(ctx, &c, h); err == nil && v != nil && v.Kind == f.v.Kind {
			return v
		}
		return nil
	}
	smaller := func(h history) bool {
		v := again(h)
		if v != nil {
			f = &failing{h, v}
		}
		return v != nil
	}
	ddmin(f.h.events, func(events []event) bool { return smaller(history{events, f.h.only}) })
	if f.v.Kind == kindStuck {
		return f.v // each step would take as long
	}
	only := make([]int, max(len(r.c.Messages), len(r.c.Requests)))
	for i := range only {
		only[i] = i
	}
	ddmin(only, func(some []int) bool { return smaller(history{f.h.events, some}) })
	return f.v
}
