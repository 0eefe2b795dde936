package rules

import (
	"fmt"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// flow finds the source of a value: a clock, a random value or the like. It goes backwards through
// the functions of one package. Conditions do not count: a value that only decides what happens is
// not followed. Elements of a slice, array or map are not told apart; fields of a struct are.
type flow struct {
	p    *program
	seen map[step]bool
}

// source is a call or variable whose value differs from run to run.
type source struct {
	pos  token.Pos
	name name
}

// step is one visit of a value. path is the part of it that counts.
type step struct {
	v    ssa.Value
	path string
	at   *frame
	into bool
}

// frame is a call within the package that flow has gone into.
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

// maxDepth bounds how many calls flow goes into, one inside of the other.
const maxDepth = 4

// encoded is a path: all fields that package encoding/json encodes.
const encoded = -1

// isEncoded reports whether a field of a struct is.
func isEncoded(of *ssa.FieldAddr) bool {
	s, ok := of.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct)
	return ok && s.Field(of.Field).Exported() && reflect.StructTag(s.Tag(of.Field)).Get("json") != "-"
}

// first visits a step, and reports whether that is the first time.
func (f *flow) first(v ssa.Value, path []int, at *frame, into bool) bool {
	s := step{v, fmt.Sprint(path), at, into}
	if f.seen[s] || len(path) > 8 {
		return false
	}
	f.seen[s] = true
	return true
}

// from returns a source of v, or of the field of v that path names. A pointer is taken for what it
// points to.
func (f *flow) from(v ssa.Value, path []int, at *frame) *source {
	if v == nil || !f.first(v, path, at, false) {
		return nil
	}
	field := func(i int) []int { return slices.Concat([]int{i}, path) }
	switch v := v.(type) {
	case *ssa.Call:
		return f.result(v, 0, path, at)
	case *ssa.Extract:
		if call, ok := v.Tuple.(*ssa.Call); ok {
			return f.result(call, v.Index, path, at)
		}
		return f.operands(v.Tuple.(ssa.Instruction), path, at)
	case *ssa.FieldAddr:
		return f.from(v.X, field(v.Field), at)
	case *ssa.Field:
		return f.from(v.X, field(v.Field), at)
	case *ssa.IndexAddr:
		return f.from(v.X, path, at)
	case *ssa.Index:
		return f.from(v.X, path, at)
	case *ssa.Lookup:
		return f.from(v.X, path, at)
	case *ssa.UnOp:
		if v.Op == token.ARROW {
			return nil
		}
		return f.from(v.X, path, at)
	case *ssa.Slice:
		return either(f.from(v.X, path, at), func() *source { return f.into(v, path, at) })
	case *ssa.Alloc, *ssa.MakeMap, *ssa.MakeSlice:
		return f.into(v, path, at)
	case *ssa.Phi, *ssa.BinOp, *ssa.MakeInterface, *ssa.ChangeType, *ssa.ChangeInterface,
		*ssa.Convert, *ssa.MultiConvert, *ssa.SliceToArrayPointer, *ssa.TypeAssert:
		return f.operands(v.(ssa.Instruction), path, at)
	case *ssa.Parameter:
		for ; at != nil; at = at.up {
			if i := slices.Index(at.fn.Params, v); at.fn == v.Parent() && i >= 0 && i < len(at.args) {
				return f.from(at.args[i], path, at.up)
			}
		}
	case *ssa.FreeVar:
		return f.from(captured(v), path, at)
	case *ssa.Global:
		if v.Pkg != nil && v.Pkg.Pkg.Path() == "crypto/rand" {
			return &source{v.Pos(), name{"crypto/rand", "", v.Name()}}
		}
	}
	return nil
}

func either(s *source, or func() *source) *source {
	if s != nil {
		return s
	}
	return or()
}

func (f *flow) operands(i ssa.Instruction, path []int, at *frame) *source {
	for _, op := range i.Operands(nil) {
		if s := f.from(*op, path, at); s != nil {
			return s
		}
	}
	return nil
}

// any returns a source of any part of the values.
func (f *flow) any(vs []ssa.Value, at *frame) *source {
	for _, v := range vs {
		if s := f.from(v, nil, at); s != nil {
			return s
		}
	}
	return nil
}

// captured is the variable of the function around that a literal uses.
func captured(v *ssa.FreeVar) ssa.Value {
	fn := v.Parent()
	if fn.Parent() == nil {
		return nil
	}
	for i := range instructions(fn.Parent()) {
		if c, ok := i.(*ssa.MakeClosure); ok && c.Fn == fn {
			return c.Bindings[slices.Index(fn.FreeVars, v)]
		}
	}
	return nil
}

// result returns a source of a call's result.
func (f *flow) result(c *ssa.Call, index int, path []int, at *frame) *source {
	if b, ok := c.Call.Value.(*ssa.Builtin); ok {
		if n := b.Name(); n == "append" || n == "min" || n == "max" {
			for _, arg := range c.Call.Args {
				if s := f.from(arg, path, at); s != nil {
					return s
				}
			}
		}
		return nil
	}
	n := nameOf(&c.Call)
	switch {
	case differs(n):
		return &source{c.Pos(), n}
	case n.pkg == "encoding/json" && strings.HasPrefix(n.fn, "Marshal"):
		return f.from(c.Call.Args[0], []int{encoded}, at)
	case passesOn(n):
		return f.any(c.Call.Args, at)
	}
	fn := c.Call.StaticCallee()
	if fn != nil && index == 0 && len(path) == 0 {
		if known := f.p.fact(fn); known != nil && known.Differs != "" {
			return &source{c.Pos(), name{pkg: n.pkg, recv: n.recv, fn: n.fn + ", by " + known.Differs}}
		}
	}
	elsewhere := fn == nil || fn.Pkg != f.p.pkg
	tooDeep := at != nil && at.depth >= maxDepth
	if elsewhere || tooDeep {
		return nil
	}
	in := &frame{fn: fn, args: c.Call.Args, up: at, depth: 1}
	if at != nil {
		in.depth += at.depth
	}
	for i := range instructions(fn) {
		if ret, ok := i.(*ssa.Return); ok && index < len(ret.Results) {
			if s := f.from(ret.Results[index], path, in); s != nil {
				return s
			}
		}
	}
	return nil
}

// into returns a source of what is written into v, a variable, slice or map, at path.
func (f *flow) into(v ssa.Value, path []int, at *frame) *source {
	if v.Referrers() == nil || !f.first(v, path, at, true) {
		return nil
	}
	for _, r := range *v.Referrers() {
		if s := f.written(v, r, path, at); s != nil {
			return s
		}
	}
	return nil
}

// written returns a source of what one instruction writes into v.
func (f *flow) written(v ssa.Value, by ssa.Instruction, path []int, at *frame) *source {
	switch by := by.(type) {
	case *ssa.Store:
		if by.Addr == v {
			return f.from(by.Val, path, at)
		}
	case *ssa.MapUpdate:
		if by.Map == v {
			return either(f.from(by.Key, nil, at), func() *source { return f.from(by.Value, path, at) })
		}
	case *ssa.FieldAddr:
		switch {
		case len(path) == 0:
			return f.into(by, nil, at)
		case path[0] == encoded && isEncoded(by):
			return f.into(by, path, at)
		case path[0] == by.Field:
			return f.into(by, path[1:], at)
		}
	case *ssa.IndexAddr:
		if by.X == v {
			return f.into(by, path, at)
		}
	case *ssa.Slice:
		return f.into(by, path, at)
	case *ssa.MakeInterface:
		return f.into(by, path, at) // for example the writer of fmt.Fprintf
	case *ssa.UnOp:
		switch by.Type().Underlying().(type) {
		case *types.Pointer, *types.Slice, *types.Map:
			return f.into(by, path, at)
		}
	case *ssa.MakeClosure:
		fn := by.Fn.(*ssa.Function)
		for i, b := range by.Bindings {
			if b == v {
				return f.into(fn.FreeVars[i], path, at)
			}
		}
	case ssa.CallInstruction:
		return f.filled(v, by, at)
	}
	return nil
}

// filled returns a source of what a call writes into its argument v.
func (f *flow) filled(v ssa.Value, by ssa.CallInstruction, at *frame) *source {
	args := by.Common().Args
	if b, ok := by.Common().Value.(*ssa.Builtin); ok {
		if b.Name() == "copy" && args[0] == v {
			return f.from(args[1], nil, at)
		}
		return nil
	}
	n := nameOf(by.Common())
	switch i := slices.Index(args, v); {
	case fillsRandom[n] && i >= 0:
		return &source{by.Pos(), n}
	case i >= 0 && i == fills(n):
		return f.any(slices.Delete(slices.Clone(args), i, i+1), at)
	}
	return nil
}
