package rules

import (
	"go/ast"
	"go/types"
	"iter"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// add adds what a declaration declares: its function, and the literals in it; of variables, the
// literals that initialize them.
func (p *program) add(pass *analysis.Pass, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if f, ok := pass.TypesInfo.Defs[decl.Name].(*types.Func); ok {
			p.addFunction(p.pkg.Prog.FuncValue(f))
		}
	case *ast.GenDecl:
		for _, anon := range p.pkg.Func("init").AnonFuncs {
			if decl.Pos() <= anon.Pos() && anon.Pos() < decl.End() {
				p.addFunction(anon)
			}
		}
	}
}

func (p *program) addFunction(fn *ssa.Function) {
	if fn == nil {
		return
	}
	p.funcs = append(p.funcs, fn)
	for _, anon := range fn.AnonFuncs {
		p.addFunction(anon)
	}
}

// instructions are those of a function itself, without its literals.
func instructions(fn *ssa.Function) iter.Seq[ssa.Instruction] {
	return func(yield func(ssa.Instruction) bool) {
		for _, b := range fn.Blocks {
			for _, i := range b.Instrs {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// calls are a function's calls, with those of go and defer.
func calls(fn *ssa.Function) iter.Seq[ssa.CallInstruction] {
	return func(yield func(ssa.CallInstruction) bool) {
		for i := range instructions(fn) {
			if call, ok := i.(ssa.CallInstruction); ok && !yield(call) {
				return
			}
		}
	}
}

// unwrapped is a value before it became an interface or a type of the same shape.
func unwrapped(v ssa.Value) ssa.Value {
	for {
		switch of := v.(type) {
		case *ssa.MakeInterface:
			v = of.X
		case *ssa.ChangeType:
			v = of.X
		case *ssa.ChangeInterface:
			v = of.X
		default:
			return v
		}
	}
}
