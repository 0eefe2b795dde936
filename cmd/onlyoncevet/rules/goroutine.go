package rules

import (
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Goroutine reports transactions that a handler gives to another goroutine.
var Goroutine = &analysis.Analyzer{
	Name: "oncego",
	Doc: `report transactions that reach another goroutine

A transaction is valid until the handler returns, and for one goroutine at a time. A statement that
comes too late is refused, and one that overlaps with another fails the attempt.`,
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
				if holdsTx(i.Call.Value) || anyHoldsTx(i.Call.Args) {
					by = "a go statement"
				}
			case *ssa.Send:
				if holdsTx(i.X) {
					by = "a channel"
				}
			case *ssa.Call:
				if n := nameOf(&i.Call); starters[n] && anyHoldsTx(i.Call.Args) {
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

func anyHoldsTx(vs []ssa.Value) bool {
	for _, v := range vs {
		if holdsTx(v) {
			return true
		}
	}
	return false
}

// holdsTx reports whether a value is a transaction, or a function that has captured one.
func holdsTx(v ssa.Value) bool {
	v = unwrapped(v)
	if c, ok := v.(*ssa.MakeClosure); ok {
		return anyHoldsTx(c.Bindings)
	}
	return isTx(v.Type())
}
