package rules

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// origins looks for where a value may come from: connections, transactions, functions, constants,
// and values that nothing is known of. Facts say what functions of other packages return.
type origins struct{ found []origin }

// origin is one place where a value may come from.
type origin struct {
	v    ssa.Value
	path []int  // the part of v that counts
	at   *frame // in which v is
	conn string // the type of a connection that a fact names; v is nil then
}

// connection returns the type of the connection that an origin is, or "".
func (o origin) connection() string {
	if o.v == nil {
		return o.conn
	}
	if len(o.path) == 0 && connections[typeName(o.v.Type())] {
		return typeName(o.v.Type())
	}
	return ""
}

// origins returns where v, or the field of v that path names, may come from. An origin without a
// value says that there may be others.
func (p *program) origins(v ssa.Value, path []int, at *frame, callers bool) []origin {
	o := &origins{}
	w := &walk{p: p, ask: o, fields: true, callers: callers}
	w.begin(v, path, at)
	if w.cut {
		o.found = append(o.found, origin{})
	}
	return o.found
}

func (o *origins) unknown(v ssa.Value, path []int, at *frame) {
	o.found = append(o.found, origin{v: v, path: path, at: at})
}

func (o *origins) ends(_ *walk, v ssa.Value, path []int, at *frame) bool {
	if len(path) == 0 && (connections[typeName(v.Type())] || isTx(v.Type())) {
		o.unknown(v, path, at)
		return true
	}
	switch v := v.(type) {
	case *ssa.Alloc:
		if _, is := v.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct); is && len(path) == 0 {
			o.unknown(v, path, at) // a value of its own, and no variable that holds one
		}
	case *ssa.Global:
		o.unknown(v, path, at)
	case *ssa.Function, *ssa.MakeClosure, *ssa.Const:
		o.unknown(v, path, at)
		return true
	}
	return false
}

func (*origins) writes(*walk, name, ssa.CallInstruction) {}

func (o *origins) call(w *walk, c *ssa.Call, index int, path []int, at *frame) bool {
	fn := c.Call.StaticCallee()
	if fn == nil {
		return false
	}
	if isChain(nameOf(&c.Call)) {
		if w.p.pooled[c.Parent()] { // it may be on the transaction by now
			o.unknown(c, path, at)
		} else {
			w.from(c.Call.Args[0], path, at)
		}
		return true
	}
	known := w.p.fact(fn)
	if known == nil {
		return false
	}
	result := c.Call.Signature().Results().At(index).Type()
	if len(path) == 0 && !isInterface(result) && !isGORM(result) {
		o.unknown(c, path, at)
		return true
	}
	before := len(o.found)
	for _, r := range known.Returns {
		if r.Result != index || len(r.Path) > len(path) || !slices.Equal(r.Path, path[:len(r.Path)]) {
			continue
		}
		rest := path[len(r.Path):]
		switch {
		case r.Conn != "" && len(rest) == 0:
			o.found = append(o.found, origin{conn: r.Conn})
		case r.Conn == "" && r.Param < len(c.Call.Args):
			w.from(c.Call.Args[r.Param], slices.Concat(r.ParamPath, rest), at)
		}
	}
	if len(o.found) == before {
		o.unknown(c, path, at)
	}
	return true
}

func isInterface(t types.Type) bool {
	_, is := t.Underlying().(*types.Interface)
	return is
}

// isAnyTx reports whether a type is a transaction, of onlyonce or of a driver.
func isAnyTx(t types.Type) bool {
	switch typeName(t) {
	case "github.com/jackc/pgx.Tx", "database/sql.Tx":
		return true
	}
	return isTx(t)
}

// fieldKey is a field of a named struct.
type fieldKey struct {
	of    string
	index int
}

// index notes what the package stores in fields and variables, and its calls. Then it finds the
// functions that are steps, and those that get a transaction of package sqltx.
func (p *program) index() {
	p.fields = map[fieldKey][]ssa.Value{}
	p.globals = map[*ssa.Global][]ssa.Value{}
	p.callers = map[*ssa.Function][]*ssa.CallCommon{}
	p.pooled = map[*ssa.Function]bool{}
	all := slices.Clone(p.funcs)
	if init := p.pkg.Func("init"); init != nil {
		all = append(all, init)
	}
	for _, fn := range all {
		for i := range instructions(fn) {
			switch i := i.(type) {
			case *ssa.Store:
				switch to := i.Addr.(type) {
				case *ssa.FieldAddr:
					k := fieldKey{typeName(to.X.Type()), to.Field}
					p.fields[k] = append(p.fields[k], i.Val)
					if setsPool(to) {
						p.pooled[fn] = true
					}
				case *ssa.Global:
					p.globals[to] = append(p.globals[to], i.Val)
				}
			case ssa.CallInstruction:
				if callee := i.Common().StaticCallee(); callee != nil {
					p.callers[callee] = append(p.callers[callee], i.Common())
				}
			}
		}
	}
	p.steps = map[*ssa.Function]bool{}
	p.given = map[*ssa.Function]bool{}
	for _, fn := range all {
		for call := range calls(fn) {
			c := call.Common()
			switch nameOf(c) {
			case runsStep:
				p.note(p.steps, c.Args[2])
			case sqlDo, sqlWithin:
				p.note(p.given, c.Args[len(c.Args)-1])
			}
		}
	}
}

// note notes the functions that a value may be.
func (p *program) note(in map[*ssa.Function]bool, v ssa.Value) {
	for _, o := range p.origins(v, nil, nil, true) {
		if fn := function(o.v); fn != nil {
			in[fn] = true
		}
	}
}

// function returns the function that a value is, or nil if it is none.
func function(v ssa.Value) *ssa.Function {
	switch v := v.(type) {
	case *ssa.MakeClosure:
		return v.Fn.(*ssa.Function)
	case *ssa.Function:
		return v
	}
	return nil
}

// follows reports whether the rules go into a function: it is one of the package, or what the
// compiler makes of a method value or of a generic function of it.
func (p *program) follows(fn *ssa.Function) bool {
	if fn.Origin() != nil {
		fn = fn.Origin()
	}
	if fn.Pkg == p.pkg {
		return !strings.HasSuffix(p.file(fn), "_test.go")
	}
	return fn.Pkg == nil && fn.Synthetic != ""
}

// file is the name of a function's file.
func (p *program) file(fn *ssa.Function) string {
	return fn.Prog.Fset.Position(fn.Pos()).Filename
}
