package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// played plays histories of some kinds, always the same, and fails if one breaches.
func played(t *testing.T, n int, kinds ...string) {
	t.Helper()
	var out bytes.Buffer
	o := &options{n: n, seed: "test", only: strings.Join(kinds, ","), workers: 2, patience: pgtest.Patience(40 * time.Second), out: &out}
	breached, err := playAll(t.Context(), pgtest.ServerURL(t), o)
	if err != nil || breached > 0 {
		t.Errorf("%v\n%s", err, &out)
	}
}

// H31: no request's record ends before its calls and operations, whatever happens to these.
func TestH31Histories(t *testing.T) { played(t, 60, "requests", "operations") }

// O6: whatever became of the attempts at a call, it takes effect once, and an operator reads what
// is true.
func TestO6Histories(t *testing.T) { played(t, 80, "calls") }

// A history is drawn by seed and number alone.
func TestDrawn(t *testing.T) {
	names := func(h history) (all []string) {
		_, acts := h.kind.draw(draws(h.seed, h.n))
		for _, a := range acts {
			all = append(all, a.name)
		}
		return all
	}
	o := &options{n: 200, seed: "1"}
	first, err := o.drawn()
	if err != nil {
		t.Fatal(err)
	}
	second, err := o.drawn()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, h := range first {
		a := names(h)
		b := names(second[i])
		if h.kind.name != second[i].kind.name || !slices.Equal(a, b) {
			t.Errorf("history %d: %s %v and %s %v", h.n, h.kind.name, a, second[i].kind.name, b)
		}
		seen[h.kind.name] = true
	}
	if len(seen) != len(allKinds()) {
		t.Errorf("of %d kinds only these are drawn: %v", len(allKinds()), seen)
	}
}

// The judge accuses what took effect too often or too seldom, and nothing else.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name         string
		does         func(p *promises)
		local, calls int
		want         string
	}{
		{"kept", func(p *promises) { p.add("a", 1, 1) }, 1, 1, ""},
		{"never accepted", func(*promises) {}, 1, 0, "twice"},
		{"twice here", func(p *promises) { p.add("a", 1, 1) }, 2, 1, "twice"},
		{"twice at the remote", func(p *promises) { p.add("a", 1, 1) }, 1, 2, "twice"},
		{"lost here", func(p *promises) { p.add("a", 1, 0) }, 0, 0, "lost"},
		{"lost on its way", func(p *promises) { p.add("a", 1, 1) }, 1, 0, "lost"},
		{"a call that is given up", func(p *promises) { p.add("a", 1, 1); p.giveUp("a", true) }, 1, 0, ""},
		{"only its call is given up", func(p *promises) { p.add("a", 1, 1); p.giveUp("a", true) }, 0, 0, "lost"},
		{"a message that is given up", func(p *promises) { p.add("a", 1, 1); p.giveUp("a", false) }, 0, 0, ""},
		{"a failover loses it, and not its call", func(p *promises) { p.keep(); p.add("a", 1, 1); p.lose() }, 0, 1, ""},
		{"a failover loses it, and it is here", func(p *promises) { p.keep(); p.add("a", 1, 0); p.lose() }, 1, 0, "twice"},
		{"a failover came later", func(p *promises) { p.add("a", 1, 1); p.keep(); p.lose() }, 1, 0, "lost"},
		{"a record of Kafka outlives it", func(p *promises) { p.keep(); p.add("a", 1, 0); p.outlive("a"); p.lose() }, 0, 0, "lost"},
	} {
		p := &promises{}
		c.does(p)
		found := strings.Join(p.judge(map[string]int{"a": c.local}, map[string]int{"a": c.calls}), "; ")
		if c.want == "" && found != "" || !strings.HasPrefix(found, c.want) {
			t.Errorf("%s: %q, want %q", c.name, found, c.want)
		}
	}
}
