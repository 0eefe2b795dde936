package rules

import (
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Goroutine reports transactions that a handler gives to another goroutine.
var Goroutine = &analysis.Analyzer{
	Name: ruleGo,
	Doc: `report transactions that reach another goroutine

A transaction is valid until the handler returns, and for one goroutine at a time. A statement that
comes too late is refused, and one that overlaps with another fails the attempt. What has the
transaction in a field counts too, for example the Queries of sqlc.`,
	Requires: []*analysis.Analyzer{handlers},
	Run:      runGoroutine,
}

// starters are the functions that run a function in another goroutine, or later.
var starters = map[name]bool{
	{"golang.org/x/sync/errgroup", "Group", "Go"}:    true,
	{"golang.org/x/sync/errgroup", "Group", "TryGo"}: true,
	{"sync", "WaitGroup", "Go"}:                      true,
	{"time", "", "AfterFunc"}:                        true,
	{"context", "", "AfterFunc"}:                     true,
}

func runGoroutine(pass *analysis.Pass) (any, error) {
	p := pass.ResultOf[handlers].(*program)
	for _, fn := range p.handlers {
		for i := range instructions(fn) {
			by := ""
			switch i := i.(type) {
			case *ssa.Go:
				if p.holdsTx(i.Call.Value) || p.anyHoldsTx(i.Call.Args) {
					by = "a go statement"
				}
			case *ssa.Send:
				if p.holdsTx(i.X) {
					by = "a channel"
				}
			case *ssa.Call:
				if n := nameOf(&i.Call); starters[n] && p.anyHoldsTx(i.Call.Args) {
					by = n.String()
				}
			}
			if by != "" {
				p.report(
					pass,
					i.Pos(),
					"the transaction reaches another goroutine through %s: a statement "+
						"after the handler's return or beside another one fails, and the message is handled "+
						"again. Use tx in the handler's own goroutine.",
					by,
				)
			}
		}
	}
	return nil, nil
}

func (p *program) anyHoldsTx(vs []ssa.Value) bool { return slices.ContainsFunc(vs, p.holdsTx) }

// holdsTx reports whether a value is a transaction, has one in a field, for example the Queries of
// sqlc, or is a function that uses one of those.
func (p *program) holdsTx(v ssa.Value) bool {
	v = unwrapped(v)
	c, ok := v.(*ssa.MakeClosure)
	if !ok {
		return p.holdsTxAt(v, func(int) bool { return true })
	}
	for i, b := range c.Bindings {
		if p.holdsTxAt(b, fieldsUsed(c.Fn.(*ssa.Function).FreeVars[i])) {
			return true
		}
	}
	return false
}

// holdsTxAt is holdsTx for those fields of a value that are used.
func (p *program) holdsTxAt(v ssa.Value, used func(field int) bool) bool {
	if isTx(v.Type()) {
		return true
	}
	for _, path := range paths(v.Type(), 2) {
		if len(path) > 0 && !used(path[0]) {
			continue
		}
		o := &origins{}
		w := &walk{p: p, ask: o}
		w.begin(v, path, nil)
		for _, from := range o.found {
			if from.v != nil && len(from.path) == 0 && isTx(from.v.Type()) {
				return true
			}
		}
	}
	return false
}

// fieldsUsed reports which fields of a captured variable a function uses: all, if it uses the
// variable as a whole.
func fieldsUsed(v *ssa.FreeVar) func(field int) bool {
	whole := false
	fields := map[int]bool{}
	var look func(v ssa.Value)
	look = func(v ssa.Value) {
		for _, r := range *v.Referrers() {
			switch r := r.(type) {
			case *ssa.FieldAddr:
				fields[r.Field] = true
			case *ssa.Field:
				fields[r.Field] = true
			case *ssa.UnOp:
				look(r)
			default:
				whole = true
			}
		}
	}
	look(v)
	return func(field int) bool { return whole || fields[field] }
}
