package rules

import (
	"fmt"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// summary is the fact about a function of the module: what a handler of another package does if it
// calls the function. Facts go from a package to those that import it. So what main gives to a
// service by an interface is not known where the service is: its package does not import main.
type summary struct {
	// Effects happen at each call.
	Effects []effect
	// Through happen if the argument, or the field of it, is a connection.
	Through []through
	// Keys are what becomes the idempotency key of a request.
	Keys []through
	// Returns say where results come from.
	Returns []returned
	// Differs is the clock or random value that the first result comes from, if there is one.
	Differs string
}

// AFact implements analysis.Fact.
func (*summary) AFact() {}

func (s *summary) String() string {
	return fmt.Sprintf("%d effects, %d by an argument", len(s.Effects), len(s.Through))
}

// effect is something that a rollback does not take back.
type effect struct {
	Rule  string // that reports it
	What  string // for example pgxpool.Pool.Exec
	Where string // file:line
}

// through is an effect on what a parameter is.
type through struct {
	Param int
	Path  []int
	Where string
	GORM  bool // it is a *gorm.DB, of which the type does not tell what it is on
}

// returned says that part of a result is part of a parameter, or a connection.
type returned struct {
	Result int
	Path   []int
	Conn   string

	Param     int
	ParamPath []int
}

// most bounds each list of a fact.
const most = 4

// inModule reports whether a package is the user's own. Facts about others would only cost time,
// and what this library's own functions write is theirs to answer for.
func inModule(pass *analysis.Pass) bool {
	m := pass.Module
	return m != nil && m.Path != "" && m.Version == "" && !strings.HasPrefix(m.Path+"/", module)
}

// fact returns what is known of a function of another package, or nil.
func (p *program) fact(fn *ssa.Function) *summary {
	if fn.Origin() != nil {
		fn = fn.Origin()
	}
	f, ok := fn.Object().(*types.Func)
	if !ok {
		return nil
	}
	return p.factOf(f)
}

func (p *program) factOf(f *types.Func) *summary {
	if f == nil || f.Pkg() == nil || f.Pkg() == p.pkg.Pkg {
		return nil
	}
	s := &summary{}
	if !p.pass.ImportObjectFact(f, s) {
		return nil
	}
	return s
}

// export makes the facts about a package's functions. Effects of those that take a transaction of
// onlyonce are reported where they are, as those of handlers.
func (p *program) export() {
	for _, fn := range p.funcs {
		f, ok := fn.Object().(*types.Func)
		if !ok {
			continue
		}
		s := &summary{}
		r := &reach{p: p, into: s, reported: map[string]bool{}}
		r.visit(fn, nil, 0, false)
		if slices.Contains(p.handlers, fn) {
			s.Effects = nil
		}
		s.Returns = p.returns(fn)
		if src := p.differs(fn); src != nil {
			s.Differs = src.name.String()
		}
		if len(s.Effects)+len(s.Through)+len(s.Keys)+len(s.Returns) > 0 || s.Differs != "" {
			p.pass.ExportObjectFact(f, s)
		}
	}
}

// differs returns the source of a function's first result, if that differs from run to run.
func (p *program) differs(fn *ssa.Function) *source {
	for i := range instructions(fn) {
		if ret, ok := i.(*ssa.Return); ok && len(ret.Results) > 0 {
			if s := p.sources(ret.Results[0], nil, nil); s.found != nil {
				return s.found
			}
		}
	}
	return nil
}

// returns finds which parameters and connections a function's results hold, two fields deep.
func (p *program) returns(fn *ssa.Function) (all []returned) {
	results := fn.Signature.Results()
	for n := range results.Len() {
		for _, path := range paths(results.At(n).Type(), 2) {
			for _, r := range p.returnsAt(fn, n, path) {
				if len(all) < 4*most {
					all = append(all, r)
				}
			}
		}
	}
	return all
}

// returnsAt finds what a field of one result is, wherever the function returns.
func (p *program) returnsAt(fn *ssa.Function, n int, path []int) (all []returned) {
	r := &reach{p: p, into: &summary{}, stack: []*ssa.Function{fn}}
	for i := range instructions(fn) {
		ret, ok := i.(*ssa.Return)
		if !ok || n >= len(ret.Results) {
			continue
		}
		for _, o := range p.origins(ret.Results[n], path, nil, false) {
			at := returned{Result: n, Path: path, Conn: o.connection()}
			switch i := r.ownParam(o); {
			case i >= 0:
				at.Conn = ""
				at.Param = i
				at.ParamPath = o.path
			case at.Conn == "" && isGORM(typeAt(ret.Results[n].Type(), path)):
				switch r.placeOf(o) {
				case placeOutside:
					at.Conn = gormDB
				case placeNone:
					continue
				default:
					return nil // it may be the transaction's
				}
			case at.Conn == "":
				continue
			}
			all = append(all, at)
		}
	}
	return all
}

// typeAt is the type of a field.
func typeAt(t types.Type, path []int) types.Type {
	for _, i := range path {
		if ptr, ok := t.Underlying().(*types.Pointer); ok {
			t = ptr.Elem()
		}
		t = t.Underlying().(*types.Struct).Field(i).Type()
	}
	return t
}

// paths are the parts of a type that may be, or may hold, a connection.
func paths(t types.Type, deep int) (all [][]int) {
	open := isInterface(t) || isGORM(t)
	if open || isTx(t) || connections[typeName(t)] {
		return [][]int{nil}
	}
	for { // what a function literal captures is a pointer to the variable
		ptr, ok := t.Underlying().(*types.Pointer)
		if !ok {
			break
		}
		t = ptr.Elem()
	}
	if isInterface(t) {
		return [][]int{nil}
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok || deep == 0 {
		return nil
	}
	for i := range s.NumFields() {
		for _, rest := range paths(s.Field(i).Type(), deep-1) {
			all = append(all, slices.Concat([]int{i}, rest))
		}
	}
	return all
}
