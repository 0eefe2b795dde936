package main

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

func cursorArgs(verb string, more ...string) []string {
	return append([]string{"cursor", verb, "-scope", "stock", "-topic", "orders", "-partition", "0", "-reason", "OPS-12"}, more...)
}

// K6: a consumer that runs with nothing to do halts, and goes on once the cursor is brought back.
func TestRetire(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	halted := make(chan *consumer.HaltError, 100)
	s.start(effect, func(c *consumer.Config) { c.Hooks.Halted = func(h *consumer.HaltError) { halted <- h } })
	s.keyed("a", "v0", "v1")
	s.reaches(2)
	s.run(cursorArgs("retire", "-topic", "other", "-yes")...).want(t, statusEnvironment, "there is no cursor")
	r := s.run(cursorArgs("retire", "-yes")...).want(t, statusGood, "out of use", "Done: retired at offset 2; audit row")
	t.Log("\n" + r.out)
	if h := next(t, halted); h.Reason != consumer.HaltRetired || h.Position != 2 {
		t.Errorf("halt: %v", h)
	}
	s.keyed("a", "v2", "v3")
	s.run(cursorArgs("retire", "-yes")...).want(t, statusGood, "was retired at", "already: nothing was changed")
	s.run("cursor", "show").want(t, statusGood, "retired")
	s.run("status").want(t, statusGood, "an operator retired the cursor", "1 retired")
	if c := s.shown(); c.RetiredAt == nil || c.Position != 2 {
		t.Errorf("cursor: %+v", c)
	}
	s.run(replayArgs("-from", "0", "-yes")...).want(t, statusFailed, "the cursor is retired")
	s.run(adoptArgs("-yes", "-group", "g1")...).want(t, statusFailed, "the cursor is retired", "-at OFFSET brings it back")
	if n := one[int](s.fixture, `select count(*) from onlyonce.audit`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	if got := s.effects(); got != "v0 v1" {
		t.Errorf("effects of a retired cursor: %s", got)
	}
	r = s.run(adoptArgs("-yes", "-at", "3")...).want(t, statusGood, "was retired, and is brought back", "1 offsets, 2 to 2")
	t.Log("\n" + r.out)
	s.reaches(4)
	if got := s.effects(); got != "v0 v1 v3" {
		t.Errorf("effects: %s", got)
	}
	if c := s.shown(); c.RetiredAt != nil {
		t.Errorf("cursor: %+v", c)
	}
}

func TestRetireAsks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	before := f.shown()
	f.terminal = true
	f.stdin = strings.NewReader("n\n")
	r := f.run(cursorArgs("retire")...).want(t, statusFailed, "the answer was no")
	if !strings.Contains(r.out, "retired") ||
		!strings.Contains(r.out, "2 parked messages of it are not settled") ||
		!strings.Contains(r.out, "did not release it properly") {
		t.Errorf("what was asked:\n%s", r.out)
	}
	f.untouched(before)
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stop := s.start(effect, nil)
	s.keyed("a", "v0")
	s.reaches(1)
	paused := make(chan consumer.PausedEvent, 10)
	stop()
	stop = s.start(effect, func(c *consumer.Config) { c.Hooks.Paused = func(p consumer.PausedEvent) { paused <- p } })

	s.run(cursorArgs("resume", "-yes")...).want(t, statusGood, "It is not paused: nothing was changed")
	s.run(cursorArgs("pause", "-yes")...).want(t, statusGood, "Pause scope stock, topic orders, partition 0: 1 cursors in use",
		"Done; audit row")
	<-paused
	s.keyed("a", "v1")
	s.run(cursorArgs("pause", "-yes")...).want(t, statusGood, "paused already", "OPS-12", "nothing was changed")
	s.run("cursor", "pause", "-scope", "stock", "-reason", "all of it", "-yes").want(t, statusGood, "scope stock as a whole")
	s.run("cursor", "show").want(t, statusGood, "paused")
	s.run("status").want(t, statusGood, "paused")
	if c := s.shown(); c.Paused == nil || *c.Paused != "all of it" {
		t.Errorf("cursor: %+v", c)
	}
	s.run(cursorArgs("resume", "-yes")...).want(t, statusGood, "Still paused: scope stock as a whole")
	s.run(cursorArgs("resume", "-yes")...).want(t, statusGood, "not paused itself, but scope stock as a whole is",
		"leave out -partition and -topic")
	stop()
	s.start(effect, nil) // a restart does not end it
	if got := s.effects(); got != "v0" {
		t.Errorf("effects of a paused scope: %s", got)
	}
	// A replay of a paused partition begins when it is resumed.
	s.run(replayArgs("-from", "0", "-yes")...).want(t, statusGood)
	s.run("cursor", "resume", "-scope", "stock", "-reason", "over", "-yes").want(
		t,
		statusGood,
		"Resume scope stock as a whole",
		"all of it",
	)
	s.reaches(2)
	if got := s.effects(); got != "v0 v0 v1" {
		t.Errorf("effects: %s", got)
	}
	if n := one[int](s.fixture, `select count(*) from onlyonce.audit where action in ('cursor pause', 'cursor resume')`); n != 4 {
		t.Errorf("%d audit rows, want one for each pause and each end", n)
	}
	s.run("cursor", "pause", "-scope", "stok", "-reason", "a slip", "-yes").want(t, statusGood, "Is the name right?")
	s.run(cursorArgs("pause", "-yes")...).want(t, statusGood)
	s.run("cursor", "resume", "-scope", "stock", "-reason", "over", "-yes").want(
		t,
		statusGood,
		"It is not paused as a whole",
		"partition 0",
	)
}
