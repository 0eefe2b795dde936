package rules

import (
	"go/token"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// source is a call or variable whose value differs from run to run.
type source struct {
	pos  token.Pos
	name name
}

// sources looks for what makes a value differ from run to run: a clock, a random value or the like.
type sources struct {
	found *source
	// params are the parameters of functions that nothing calls within the walk: the value is as
	// steady as what they get.
	params []origin
}

// sources returns what makes v, or the field of v that path names, differ from run to run.
func (p *program) sources(v ssa.Value, path []int, at *frame) *sources {
	s := &sources{}
	w := &walk{p: p, ask: s, parts: true}
	w.begin(v, path, at)
	return s
}

func (s *sources) is(w *walk, pos token.Pos, n name) bool {
	s.found = &source{pos, n}
	w.done = true
	return true
}

func (s *sources) ends(w *walk, v ssa.Value, _ []int, _ *frame) bool {
	g, ok := v.(*ssa.Global)
	if !ok || g.Pkg == nil || g.Pkg.Pkg.Path() != "crypto/rand" {
		return false
	}
	return s.is(w, g.Pos(), name{"crypto/rand", "", g.Name()})
}

func (s *sources) call(w *walk, c *ssa.Call, index int, path []int, at *frame) bool {
	n := nameOf(&c.Call)
	switch {
	case differs(n):
		return s.is(w, c.Pos(), n)
	case n.pkg == "encoding/json" && strings.HasPrefix(n.fn, "Marshal"):
		w.from(c.Call.Args[0], []int{encoded}, at)
		return true
	case passesOn(n):
		for _, arg := range c.Call.Args {
			w.from(arg, nil, at)
		}
		return true
	}
	if fn := c.Call.StaticCallee(); fn != nil && index == 0 && len(path) == 0 {
		if known := w.p.fact(fn); known != nil && known.Differs != "" {
			return s.is(w, c.Pos(), name{pkg: n.pkg, recv: n.recv, fn: n.fn + ", by " + known.Differs})
		}
	}
	return false
}

func (s *sources) writes(w *walk, n name, by ssa.CallInstruction) {
	if fillsRandom[n] {
		s.is(w, by.Pos(), n)
	}
}

func (s *sources) unknown(v ssa.Value, path []int, at *frame) {
	if _, is := v.(*ssa.Parameter); is {
		s.params = append(s.params, origin{v: v, path: path, at: at})
	}
}
