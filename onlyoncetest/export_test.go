package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// SetPerPlay changes the bound of one history, and returns a function to undo it.
func SetPerPlay(d time.Duration) (undo func()) {
	was := perPlay
	perPlay = d
	return func() { perPlay = was }
}

// Draws makes Run play pairs of faults that are drawn with a seed, and nothing else.
func Draws(c *Case, seed uint64, pairs int) {
	c.seed = seed
	c.draws = pairs
}

// Crashes makes Run play one of so many crashes. It plays all other faults.
func Crashes(c *Case, oneOf int) { c.oneOf = oneOf }

// Awaits reports whether all else is done, and the play of the process waits for a part that has
// not begun.
func Awaits(p *Process) bool {
	p.run.mu.Lock()
	defer p.run.mu.Unlock()
	return p.run.awaited != ""
}

// Likeness says what the difference of two rows looks like, and what to do about it.
func Likeness(a, b string) (text, advice string) { return likeness(a, b) }

// DDMin is ddmin.
func DDMin(all []int, fails func([]int) bool) []int { return ddmin(all, fails) }

// Trace plays one history of a case, and returns its timeline without the times.
func Trace(ctx context.Context, c Case, text string) ([]string, error) {
	h, err := parseHistory(text)
	if err != nil {
		return nil, err
	}
	c.sent = time.Now().Add(-age).Truncate(time.Millisecond)
	c.parts = &parts{}
	r := &runner{c: &c, rep: &Report{Played: map[string]int{}}}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	defer waitFor(&r.dead)
	defer r.close()
	x, _, err := r.play(ctx, &c, h)
	if err == nil && x.wrong != nil {
		err = errors.New(x.wrong.String())
	}
	var lines []string
	for _, l := range x.timeline.Lines() {
		_, line, _ := strings.Cut(l.Text, " ms  ")
		lines = append(lines, line)
	}
	for i, struck := range x.struck {
		if !struck {
			err = errors.Join(err, fmt.Errorf("%s did not happen", h.events[i]))
		}
	}
	return lines, err
}
