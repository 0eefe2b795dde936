package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
)

// stage is one playing of a history of some kind.
type stage interface {
	// setUp makes what the acts need.
	setUp(w *world) error
	// settle lets copies arrive and operators decide, until nothing is left to do. The judge looks
	// at what has come of it.
	settle(w *world) error
}

// act is one thing that happens.
type act struct {
	name string
	play func(w *world) error
}

// kind is a kind of histories. draw makes a stage and the acts of one history.
type kind struct {
	name   string
	weight int // of all that are drawn
	draw   func(d *dice) (stage, []act)
}

// dice draw what a history consists of.
type dice struct{ *rand.Rand }

// draws returns the dice of a history: the same for a seed and a number.
func draws(seed string, n int) *dice {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %d", seed, n)
	return &dice{rand.New(rand.NewPCG(h.Sum64(), 11))} //nolint:gosec // reproducible by intent
}

// of draws one of several values.
func of[T any](d *dice, values ...T) T { return values[d.IntN(len(values))] }

// once in n it is true.
func (d *dice) once(n int) bool { return d.IntN(n) == 0 }

// history is a history that is drawn: its number, and which of its acts are left out.
type history struct {
	seed string
	n    int
	kind *kind
	out  map[int]bool
}

// pick draws the kind of a history.
func pick(seed string, n int, kinds []*kind) history {
	d := draws(seed+" kind", n)
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	at := d.IntN(sum)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			return history{seed: seed, n: n, kind: k}
		}
	}
	panic("weights")
}

// without is the history without one more act.
func (h history) without(i int) history {
	out := map[int]bool{i: true}
	for was := range h.out {
		out[was] = true
	}
	h.out = out
	return h
}

// outcome is what came of a history.
type outcome struct {
	breaches []string
	acts     []string // that were played
	lines    []histories.Line
	took     time.Duration
}

// play plays a history. An error is one of the rig.
func (h history) play(ctx context.Context, w *worker, patience time.Duration) (out outcome, err error) {
	began := time.Now()
	if err := w.ready(ctx); err != nil {
		return out, err
	}
	x, err := newWorld(ctx, w, patience)
	if err != nil {
		return out, err
	}
	defer x.close()
	stage, acts := h.kind.draw(draws(h.seed, h.n))
	if slices.ContainsFunc(acts, func(a act) bool { return a.name == actKeep }) {
		err = x.makeLanes()
	}
	if err == nil {
		err = stage.setUp(x)
	}
	for i, a := range acts {
		if err != nil {
			break
		}
		if h.out[i] {
			continue
		}
		out.acts = append(out.acts, a.name)
		x.say("ACT %s", a.name)
		err = a.play(x)
	}
	if err == nil {
		x.say("ACT it is settled")
		err = stage.settle(x)
	}
	if err == nil {
		err = x.judge()
	}
	if errors.Is(err, errStands) {
		err = nil
	}
	out.breaches = x.found()
	out.lines = x.Lines()
	out.took = time.Since(began)
	if err != nil {
		err = fmt.Errorf("history %d (%s: %s): %w\n%s", h.n, h.kind.name, strings.Join(out.acts, ", "), err, timeline(out.lines))
	}
	return out, err
}

// judge compares what was promised with what took effect.
func (w *world) judge() error {
	local, err := w.effects()
	if err != nil {
		return err
	}
	calls, err := w.remote.counts()
	if err != nil {
		return err
	}
	for _, b := range w.promises.judge(local, calls) {
		w.breach("%s", b)
	}
	return nil
}

// shortening is for how long a history is shortened at most.
const shortening = time.Minute

// shorten leaves out acts for as long as the history breaches all the same.
func (h history) shorten(ctx context.Context, w *worker, patience time.Duration, was outcome) (history, outcome, error) {
	_, acts := h.kind.draw(draws(h.seed, h.n))
	began := time.Now()
	for i := len(acts) - 1; i >= 0 && time.Since(began) < shortening; i-- {
		shorter := h.without(i)
		out, err := shorter.play(ctx, w, min(patience, shortening/4))
		if err != nil {
			return h, was, err
		}
		if len(out.breaches) > 0 {
			h = shorter
			was = out
		}
	}
	return h, was, nil
}

func timeline(lines []histories.Line) string {
	var b strings.Builder
	for _, l := range lines {
		if strings.Contains(l.Text, "fsync is off") {
			continue
		}
		_, _ = fmt.Fprintf(&b, "    %s\n", l.Text)
	}
	return b.String()
}
