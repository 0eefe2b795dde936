package rules

import (
	"fmt"
	"go/token"
	"go/types"
	"reflect"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// walk goes backwards from a value to where it may come from: through the functions of one package,
// their variables, and what the package stores in fields. Conditions do not count: a value that
// only decides what happens is not followed. Elements of a slice, array or map are not told apart;
// fields of a struct are. A pointer is taken for what it points to.
type walk struct {
	p   *program
	ask question
	// parts: all that a value is made of counts, for example what is written into a buffer, and not
	// only which value it is.
	parts bool
	// fields: a field of a value that nothing is known of has what the package stores in that field
	// of any value of the type.
	fields bool
	// callers: a parameter that nothing is known of gets what the package's calls pass.
	callers bool

	seen    map[step]bool
	deepest int  // how many calls it goes into
	done    bool // there is an answer
	cut     bool // it became too long
}

// question says what a walk looks for.
type question interface {
	// ends sees each value, and reports whether the walk does not go on behind it.
	ends(w *walk, v ssa.Value, path []int, at *frame) bool
	// call sees each call whose result the walk has come to, and reports whether it has gone on
	// from there by itself.
	call(w *walk, c *ssa.Call, index int, path []int, at *frame) bool
	// writes sees each call that gets what the walk looks into.
	writes(w *walk, n name, by ssa.CallInstruction)
	// unknown sees the values behind which nothing is known.
	unknown(v ssa.Value, path []int, at *frame)
}

// step is one visit of a value. path is the part of it that counts.
type step struct {
	v    ssa.Value
	path string
	at   *frame
	into bool
}

// frame is a call within the package that a walk or reach has gone into.
type frame struct {
	fn    *ssa.Function
	args  []ssa.Value
	up    *frame
	depth int
	// recvAt is the frame in which args[0] is, if that is not up: the receiver of a method that an
	// interface holds.
	recvAt *frame
	// closure is what is called, if it is a function literal or a method value.
	closure *ssa.MakeClosure
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

// Bounds of a walk.
const (
	maxDepth = 6 // calls, one inside of the other
	maxPath  = 8
	maxSteps = 1000
)

// encoded is a path: all fields that package encoding/json encodes.
const encoded = -1

// isEncoded reports whether a field of a struct is.
func isEncoded(of *ssa.FieldAddr) bool {
	f, tag := fieldOf(of)
	return f != nil && f.Exported() && tag.Get("json") != "-"
}

// fieldOf returns the field whose address is taken, with its tag. It is nil if it is not known.
func fieldOf(of *ssa.FieldAddr) (*types.Var, reflect.StructTag) {
	s, ok := of.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct)
	if !ok {
		return nil, ""
	}
	return s.Field(of.Field), reflect.StructTag(s.Tag(of.Field))
}

// begin starts a walk at a value in a frame.
func (w *walk) begin(v ssa.Value, path []int, at *frame) {
	w.seen = map[step]bool{}
	w.deepest = at.level() + maxDepth
	w.from(v, path, at)
}

// first visits a step, and reports whether that is the first time.
func (w *walk) first(v ssa.Value, path []int, at *frame, into bool) bool {
	if len(path) > maxPath || len(w.seen) > maxSteps {
		w.cut = true
		return false
	}
	s := step{v, fmt.Sprint(path), at, into}
	if w.done || w.seen[s] {
		return false
	}
	w.seen[s] = true
	return true
}

// from goes on behind a value, or behind the field of it that path names.
func (w *walk) from(v ssa.Value, path []int, at *frame) {
	if v == nil || !w.first(v, path, at, false) || w.ask.ends(w, v, path, at) {
		return
	}
	switch v := v.(type) {
	case *ssa.Call:
		w.result(v, 0, path, at)
	case *ssa.Extract:
		if call, ok := v.Tuple.(*ssa.Call); ok {
			w.result(call, v.Index, path, at)
			return
		}
		w.all(v.Tuple.(ssa.Instruction).Operands(nil), path, at)
	case *ssa.FieldAddr:
		w.from(v.X, slices.Concat([]int{v.Field}, path), at)
	case *ssa.Field:
		w.from(v.X, slices.Concat([]int{v.Field}, path), at)
	case *ssa.IndexAddr:
		w.from(v.X, path, at)
	case *ssa.Index:
		w.from(v.X, path, at)
	case *ssa.Lookup:
		w.from(v.X, path, at)
	case *ssa.UnOp:
		if v.Op != token.ARROW {
			w.from(v.X, path, at)
		}
	case *ssa.Slice:
		w.from(v.X, path, at)
		w.into(v, path, at)
	case *ssa.Alloc, *ssa.MakeMap, *ssa.MakeSlice:
		w.into(v, path, at)
	case *ssa.Phi, *ssa.BinOp, *ssa.MakeInterface, *ssa.ChangeType, *ssa.ChangeInterface,
		*ssa.Convert, *ssa.MultiConvert, *ssa.SliceToArrayPointer, *ssa.TypeAssert:
		w.all(v.(ssa.Instruction).Operands(nil), path, at)
	case *ssa.Parameter:
		w.parameter(v, path, at)
	case *ssa.FreeVar:
		w.captured(v, path, at)
	case *ssa.Global:
		for _, s := range w.p.globals[v] {
			w.from(s, path, nil)
		}
	}
}

func (w *walk) all(operands []*ssa.Value, path []int, at *frame) {
	for _, op := range operands {
		w.from(*op, path, at)
	}
}

// unknown ends at a value, or goes on with what the package stores in that field of any value of
// the type.
func (w *walk) unknown(v ssa.Value, path []int, at *frame) {
	w.ask.unknown(v, path, at)
	if !w.fields || len(path) == 0 {
		return
	}
	for _, s := range w.p.fields[fieldKey{typeName(v.Type()), path[0]}] {
		w.from(s, path[1:], nil)
	}
}

// parameter goes on with the argument, if the call is known.
func (w *walk) parameter(v *ssa.Parameter, path []int, at *frame) {
	i := slices.Index(v.Parent().Params, v)
	for f := at; f != nil; f = f.up {
		if f.fn == v.Parent() && i < len(f.args) {
			w.from(f.args[i], path, f.argAt(i))
			return
		}
	}
	w.unknown(v, path, at)
	if !w.callers {
		return
	}
	for _, c := range w.p.callers[v.Parent()] {
		if i < len(c.Args) {
			w.from(c.Args[i], path, nil)
		}
	}
}

// captured goes on with the variable of the function around, or with the receiver of a method
// value.
func (w *walk) captured(v *ssa.FreeVar, path []int, at *frame) {
	fn := v.Parent()
	i := slices.Index(fn.FreeVars, v)
	for f := at; f != nil; f = f.up {
		if f.fn == fn && f.closure != nil {
			w.from(f.closure.Bindings[i], path, f.up)
			return
		}
	}
	if fn.Parent() == nil {
		return
	}
	for in := range instructions(fn.Parent()) {
		if c, ok := in.(*ssa.MakeClosure); ok && c.Fn == fn {
			w.from(c.Bindings[i], path, at)
			return
		}
	}
}

// result goes on with what a call returns.
func (w *walk) result(c *ssa.Call, index int, path []int, at *frame) {
	if b, ok := c.Call.Value.(*ssa.Builtin); ok {
		if n := b.Name(); n == "append" || n == "min" || n == "max" {
			for _, arg := range c.Call.Args {
				w.from(arg, path, at)
			}
		}
		return
	}
	if w.ask.call(w, c, index, path, at) {
		return
	}
	fn := c.Call.StaticCallee()
	known := fn != nil && len(fn.Blocks) > 0 && w.p.follows(fn)
	if !known || at.level() >= w.deepest {
		w.unknown(c, path, at)
		return
	}
	in := &frame{fn: fn, args: c.Call.Args, up: at, depth: at.level() + 1}
	for i := range instructions(fn) {
		if ret, ok := i.(*ssa.Return); ok && index < len(ret.Results) {
			w.from(ret.Results[index], path, in)
		}
	}
}

// into goes on with what is written into v, a variable, slice or map, at path.
func (w *walk) into(v ssa.Value, path []int, at *frame) {
	if v.Referrers() == nil || !w.first(v, path, at, true) {
		return
	}
	for _, r := range *v.Referrers() {
		w.written(v, r, path, at)
	}
}

// written goes on with what one instruction writes into v.
func (w *walk) written(v ssa.Value, by ssa.Instruction, path []int, at *frame) {
	switch by := by.(type) {
	case *ssa.Store:
		if by.Addr == v {
			w.from(by.Val, path, at)
		}
	case *ssa.MapUpdate:
		if by.Map == v {
			if w.parts {
				w.from(by.Key, nil, at)
			}
			w.from(by.Value, path, at)
		}
	case *ssa.FieldAddr:
		switch {
		case len(path) == 0:
			if w.parts {
				w.into(by, nil, at)
			}
		case path[0] == encoded && isEncoded(by):
			w.into(by, path, at)
		case path[0] == by.Field:
			w.into(by, path[1:], at)
		}
	case *ssa.IndexAddr:
		if by.X == v {
			w.into(by, path, at)
		}
	case *ssa.Slice:
		w.into(by, path, at)
	case *ssa.MakeInterface:
		if w.parts {
			w.into(by, path, at) // for example the writer of fmt.Fprintf
		}
	case *ssa.UnOp:
		switch by.Type().Underlying().(type) {
		case *types.Pointer, *types.Slice, *types.Map:
			w.into(by, path, at)
		}
	case *ssa.MakeClosure:
		fn := by.Fn.(*ssa.Function)
		for i, b := range by.Bindings {
			if b == v {
				w.into(fn.FreeVars[i], path, at)
			}
		}
	case ssa.CallInstruction:
		if w.parts {
			w.filled(v, by, at)
		}
	}
}

// filled goes on with what a call writes into its argument v.
func (w *walk) filled(v ssa.Value, by ssa.CallInstruction, at *frame) {
	args := by.Common().Args
	if b, ok := by.Common().Value.(*ssa.Builtin); ok {
		if b.Name() == "copy" && args[0] == v {
			w.from(args[1], nil, at)
		}
		return
	}
	n := nameOf(by.Common())
	i := slices.Index(args, v)
	if i < 0 {
		return
	}
	w.ask.writes(w, n, by)
	if i == fills(n) {
		for _, arg := range slices.Delete(slices.Clone(args), i, i+1) {
			w.from(arg, nil, at)
		}
	}
}
