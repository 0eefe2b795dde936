package rules

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// tracer finds where a value may come from: backwards through the functions of one package,
// through what the package stores in a field or a variable, and through what facts say of
// functions of other packages. It returns origins: connections, transactions, functions,
// constants, and parameters that nothing is known of.
type tracer struct {
	p    *program
	seen map[step]bool
	// callers: a parameter of a function that nothing is known of gets what the package's calls
	// pass.
	callers bool
	found   []origin
}

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

// maxSteps bounds one trace.
const maxSteps = 400

// origins returns where v, or the field of v that path names, may come from.
func (p *program) origins(v ssa.Value, path []int, at *frame, callers bool) []origin {
	t := &tracer{p: p, seen: map[step]bool{}, callers: callers}
	t.from(v, path, at)
	return t.found
}

func (t *tracer) ends(v ssa.Value, path []int, at *frame) {
	t.found = append(t.found, origin{v: v, path: path, at: at})
}

// from visits a value. A pointer is taken for what it points to.
func (t *tracer) from(v ssa.Value, path []int, at *frame) {
	if v == nil || len(path) > 6 || len(t.seen) > maxSteps {
		return
	}
	s := step{v, fmt.Sprint(path), at, false}
	if t.seen[s] {
		return
	}
	t.seen[s] = true
	if len(path) == 0 && (connections[typeName(v.Type())] || isAnyTx(v.Type())) {
		t.ends(v, path, at)
		return
	}
	field := func(i int) []int { return slices.Concat([]int{i}, path) }
	switch v := v.(type) {
	case *ssa.Call:
		t.result(v, 0, path, at)
	case *ssa.Extract:
		if call, ok := v.Tuple.(*ssa.Call); ok {
			t.result(call, v.Index, path, at)
		}
	case *ssa.FieldAddr:
		t.from(v.X, field(v.Field), at)
	case *ssa.Field:
		t.from(v.X, field(v.Field), at)
	case *ssa.UnOp:
		if v.Op == token.MUL {
			t.from(v.X, path, at)
		}
	case *ssa.Alloc:
		if _, is := v.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct); is && len(path) == 0 {
			t.ends(v, path, at) // a value of its own, and no variable that holds one
		}
		t.stored(v, path, at)
	case *ssa.Phi, *ssa.MakeInterface, *ssa.ChangeType, *ssa.ChangeInterface, *ssa.Convert, *ssa.TypeAssert:
		for _, op := range v.(ssa.Instruction).Operands(nil) {
			t.from(*op, path, at)
		}
	case *ssa.Parameter:
		t.parameter(v, path, at)
	case *ssa.FreeVar:
		t.captured(v, path, at)
	case *ssa.Global:
		for _, s := range t.p.globals[v] {
			t.from(s, path, nil)
		}
	case *ssa.Function, *ssa.MakeClosure, *ssa.Const:
		t.ends(v, path, at)
	}
}

// parameter continues with the argument, if the call is known.
func (t *tracer) parameter(v *ssa.Parameter, path []int, at *frame) {
	i := slices.Index(v.Parent().Params, v)
	for f := at; f != nil; f = f.up {
		if f.fn == v.Parent() && i >= 0 && i < len(f.args) {
			t.from(f.args[i], path, f.argAt(i))
			return
		}
	}
	t.unknown(v, path, at)
	if t.callers {
		for _, c := range t.p.callers[v.Parent()] {
			if i < len(c.Args) {
				t.from(c.Args[i], path, nil)
			}
		}
	}
}

// captured continues with the variable of the function around, or with the receiver of a method
// value.
func (t *tracer) captured(v *ssa.FreeVar, path []int, at *frame) {
	for f := at; f != nil; f = f.up {
		if f.fn == v.Parent() && f.closure != nil {
			t.from(f.closure.Bindings[slices.Index(v.Parent().FreeVars, v)], path, f.up)
			return
		}
	}
	t.from(captured(v), path, at)
}

// unknown ends at a value, and goes on with what the package stores in that field of any value of
// the type.
func (t *tracer) unknown(v ssa.Value, path []int, at *frame) {
	t.ends(v, path, at)
	if len(path) == 0 {
		return
	}
	for _, s := range t.p.fields[fieldKey{typeName(v.Type()), path[0]}] {
		t.from(s, path[1:], nil)
	}
}

// stored continues with what is stored in a variable, or in the field of it that path names.
func (t *tracer) stored(v ssa.Value, path []int, at *frame) {
	if v.Referrers() == nil {
		return
	}
	s := step{v, fmt.Sprint(path), at, true}
	if t.seen[s] {
		return
	}
	t.seen[s] = true
	for _, r := range *v.Referrers() {
		switch r := r.(type) {
		case *ssa.Store:
			if r.Addr == v {
				t.from(r.Val, path, at)
			}
		case *ssa.FieldAddr:
			if len(path) > 0 && path[0] == r.Field {
				t.stored(r, path[1:], at)
			}
		}
	}
}

// result continues with what a call returns.
func (t *tracer) result(c *ssa.Call, index int, path []int, at *frame) {
	fn := c.Call.StaticCallee()
	switch {
	case fn == nil:
		t.unknown(c, path, at)
	case len(path) == 0 && t.p.fact(fn) != nil && !isInterface(c.Call.Signature().Results().At(index).Type()):
		t.ends(c, path, at)
	case len(fn.Blocks) > 0 && t.p.follows(fn):
		if at.level() >= maxDepth+maxCalls {
			return
		}
		in := &frame{fn: fn, args: c.Call.Args, up: at, depth: at.level() + 1}
		for i := range instructions(fn) {
			if ret, ok := i.(*ssa.Return); ok && index < len(ret.Results) {
				t.from(ret.Results[index], path, in)
			}
		}
	default:
		known := t.p.fact(fn)
		if known == nil {
			t.unknown(c, path, at)
			return
		}
		for _, r := range known.Returns {
			if r.Result != index || len(r.Path) > len(path) || !slices.Equal(r.Path, path[:len(r.Path)]) {
				continue
			}
			rest := path[len(r.Path):]
			switch {
			case r.Conn != "" && len(rest) == 0:
				t.found = append(t.found, origin{conn: r.Conn})
			case r.Conn == "" && r.Param < len(c.Call.Args):
				t.from(c.Call.Args[r.Param], slices.Concat(r.ParamPath, rest), at)
			}
		}
	}
}

func isInterface(t types.Type) bool {
	_, is := t.Underlying().(*types.Interface)
	return is
}

// level is how many calls a frame is deep.
func (f *frame) level() int {
	if f == nil {
		return 0
	}
	return f.depth
}

// argAt is the frame in which an argument is.
func (f *frame) argAt(i int) *frame {
	if i == 0 && f.recvAt != nil {
		return f.recvAt
	}
	return f.up
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

// index notes what the package stores in fields and variables, and its calls.
func (p *program) index() {
	p.fields = map[fieldKey][]ssa.Value{}
	p.globals = map[*ssa.Global][]ssa.Value{}
	p.callers = map[*ssa.Function][]*ssa.CallCommon{}
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
