// Package rules holds the analyzers of onlyoncevet.
//
// They look at handlers: functions that take a transaction of onlyonce (consumer.Tx
// or dedupe.GuardedTx) or get one from idempotency.TxOf, sqltx.Do, sqltx.Within or gormtx.Of, and
// the function literals in them.
// A handler may run several times for one message, and only one of the runs commits. So an effect
// outside of its transaction can happen twice, and a value that differs between two runs must not
// become part of a key or of a call's bytes.
//
// A rule follows calls, method values and interfaces through the functions of one package, and
// knows by facts what functions of the module's other packages do. It cannot see what another
// package puts into an interface: facts go from a package to those that import it, and main,
// which makes the parts, imports all of them. So silence proves nothing: package onlyoncetest
// runs a handler, and this finds the line while it is written.
//
// Files that end in _test.go are not judged. A comment that gives a reason switches all rules off
// for its own line and the next one:
//
//	//onlyoncevet:ignore the audit database keeps refused attempts too
package rules

import (
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// All returns the rules.
func All() []*analysis.Analyzer { return []*analysis.Analyzer{Pool, Remote, Goroutine, Value} }

// Names of the rules.
const (
	rulePool   = "oncepool"
	ruleRemote = "onceremote"
	ruleGo     = "oncego"
	ruleValue  = "oncevalue"
)

// module is the path of onlyonce's packages.
const module = "github.com/onlyonce/onlyonce/"

// program is a package in SSA form, with its handlers.
type program struct {
	pkg      *ssa.Package
	funcs    []*ssa.Function // all of them, literals included, without those of tests
	handlers []*ssa.Function // those that run in a transaction of onlyonce
	ignored  map[string]map[int]bool
	findings []finding // of oncepool, onceremote and oncevalue

	pass    *analysis.Pass // of handlers
	fields  map[fieldKey][]ssa.Value
	globals map[*ssa.Global][]ssa.Value
	callers map[*ssa.Function][]*ssa.CallCommon
	embeds  map[string]string      // what //go:embed puts into variables
	pooled  map[*ssa.Function]bool // they give a *gorm.DB another connection
	steps   map[*ssa.Function]bool // idempotency.Step runs them
	given   map[*ssa.Function]bool // sqltx gives them a transaction
}

// handlers finds the package's handlers, and what they reach. Its facts are about functions of the
// module that is judged: of other modules it makes none, and does not look at their code.
var handlers = &analysis.Analyzer{
	Name:       "oncehandlers",
	Doc:        "find functions that run in a transaction of onlyonce",
	Run:        findHandlers,
	ResultType: reflect.TypeFor[*program](),
	FactTypes:  []analysis.Fact{new(summary)},
}

func findHandlers(pass *analysis.Pass) (any, error) {
	p := &program{ignored: map[string]map[int]bool{}, pass: pass, embeds: map[string]string{}}
	names := slices.ContainsFunc(pass.Pkg.Imports(), func(i *types.Package) bool {
		return strings.HasPrefix(i.Path(), module)
	})
	if !inModule(pass) && !names {
		return p, nil // it can name no transaction, and no facts are made about it
	}
	prog := ssa.NewProgram(pass.Fset, 0)
	for _, i := range pass.Pkg.Imports() {
		prog.CreatePackage(i, nil, nil, true)
	}
	p.pkg = prog.CreatePackage(pass.Pkg, pass.Files, pass.TypesInfo, false)
	p.pkg.Build()
	for _, file := range pass.Files {
		name := pass.Fset.Position(file.FileStart).Filename
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, group := range file.Comments {
			for _, c := range group.List {
				p.ignore(c.Text, pass.Fset.Position(c.Pos()))
			}
		}
		for _, decl := range file.Decls {
			p.add(pass, decl)
			p.embed(decl, filepath.Dir(name))
		}
	}
	p.index()
	for _, fn := range p.funcs {
		if p.inHandler(fn) {
			p.handlers = append(p.handlers, fn)
		}
	}
	reported := map[string]bool{}
	for _, fn := range p.funcs {
		r := &reach{p: p, reported: reported}
		switch {
		case !slices.Contains(p.handlers, fn):
			r.stepsOf(fn)
		case fn.Parent() == nil || !slices.Contains(p.handlers, fn.Parent()):
			r.visit(fn, nil, 0, p.inStep(fn))
		}
	}
	if inModule(pass) {
		p.export()
	}
	return p, nil
}

// ignore notes the lines that a comment excludes.
func (p *program) ignore(text string, at token.Position) {
	reason, ok := strings.CutPrefix(text, "//onlyoncevet:ignore ")
	if !ok || strings.TrimSpace(reason) == "" {
		return
	}
	if p.ignored[at.Filename] == nil {
		p.ignored[at.Filename] = map[int]bool{}
	}
	p.ignored[at.Filename][at.Line] = true
	p.ignored[at.Filename][at.Line+1] = true
}

// inHandler reports whether a function runs in a transaction of onlyonce.
func (p *program) inHandler(fn *ssa.Function) bool {
	if p.given[fn] || fn.Parent() != nil && p.inHandler(fn.Parent()) {
		return true
	}
	for _, param := range fn.Params {
		if isTx(param.Type()) {
			return true
		}
	}
	for call := range calls(fn) {
		switch c := call.Common(); nameOf(c) {
		case handlersTx:
			return true
		case gormTx: // of db.Transaction, which gives it to this function
			if param, ok := c.Args[0].(*ssa.Parameter); ok && param.Parent() == fn {
				return true
			}
		}
	}
	return false
}

// handlersTx returns the transaction of an HTTP handler.
var handlersTx = name{module + "idempotency", "", "TxOf"}

// sqlDo and sqlWithin give the function that is their last argument a *sql.Tx.
var (
	sqlDo     = name{module + "sqltx", "", "Do"}
	sqlWithin = name{module + "sqltx", "", "Within"}
)

// isTx reports whether a type is a transaction of onlyonce, or a pointer to one: a function literal
// captures its variables as pointers.
func isTx(t types.Type) bool {
	switch typeName(t) {
	case module + "consumer.Tx", module + "dedupe.GuardedTx":
		return true
	}
	return false
}

// typeName returns the name of a named type, or of what a pointer to one points to, with the path
// of its package.
func typeName(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return ""
	}
	return unversioned(n.Obj().Pkg().Path()) + "." + n.Obj().Name()
}

var version = regexp.MustCompile(`/v[0-9]+(/|$)`)

// unversioned is a package's path without its module's major version, for example
// github.com/jackc/pgx.
func unversioned(path string) string { return version.ReplaceAllString(path, "$1") }

// name is what a call calls. recv is the receiver's type, and empty for a function.
type name struct{ pkg, recv, fn string }

func (n name) String() string {
	pkg := n.pkg[strings.LastIndexByte(n.pkg, '/')+1:]
	if n.recv != "" {
		return pkg + "." + n.recv + "." + n.fn
	}
	return pkg + "." + n.fn
}

// nameOf returns the name of what a call calls, or the zero name if that is not known.
func nameOf(call *ssa.CallCommon) name {
	f := call.Method
	if fn := call.StaticCallee(); fn != nil {
		f, _ = fn.Object().(*types.Func)
	}
	if f == nil || f.Pkg() == nil {
		return name{}
	}
	n := name{pkg: unversioned(f.Pkg().Path()), fn: f.Name()}
	if recv := f.Signature().Recv(); recv != nil {
		full := typeName(recv.Type())
		n.recv = full[strings.LastIndexByte(full, '.')+1:]
	}
	return n
}

// report adds a diagnostic, unless its line is ignored.
func (p *program) report(pass *analysis.Pass, pos token.Pos, format string, args ...any) {
	if at := pass.Fset.Position(pos); !p.ignored[at.Filename][at.Line] {
		pass.Reportf(pos, format, args...)
	}
}

// where names a source line that is not the reported one.
func where(pass *analysis.Pass, source, reported token.Pos) string {
	from, to := pass.Fset.Position(source), pass.Fset.Position(reported)
	if from.Filename == to.Filename && from.Line == to.Line {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", filepath.Base(from.Filename), from.Line)
}
