package rules

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// reach goes through a handler and all that it calls. It follows calls, method values and
// interfaces within the package, and takes facts for other packages. Either it reports, or it
// fills a summary.
type reach struct {
	p        *program
	into     *summary // nil to report
	reported map[string]bool
	stack    []*ssa.Function
}

// finding is what a rule reports.
type finding struct {
	rule string
	pos  token.Pos
	text string
}

// maxCalls bounds how deep reach goes.
const maxCalls = 6

// visit looks at a function. via is the handler's call that leads to it, or 0 in the handler
// itself. In a step requests are allowed.
func (r *reach) visit(fn *ssa.Function, at *frame, via token.Pos, step bool) {
	if len(r.stack) > maxCalls || slices.Contains(r.stack, fn) {
		return
	}
	r.stack = append(r.stack, fn)
	defer func() { r.stack = r.stack[:len(r.stack)-1] }()
	for i := range instructions(fn) {
		if c, ok := i.(*ssa.MakeClosure); ok && c.Fn.(*ssa.Function).Parent() != nil {
			literal := c.Fn.(*ssa.Function)
			in := &frame{fn: literal, closure: c, up: at, depth: at.level() + 1}
			r.visit(literal, in, via, step || r.p.inStep(literal))
		}
		if call, ok := i.(ssa.CallInstruction); ok {
			r.call(fn, call, at, via, step)
		}
		if v := keyOf(i); v != nil && (step || r.into != nil) {
			r.key(v, cmp.Or(i.Pos(), v.Pos(), via), at)
		}
	}
	for _, literal := range fn.AnonFuncs {
		if len(literal.FreeVars) == 0 { // no closure is made of it
			r.visit(literal, at, via, step || r.p.inStep(literal))
		}
	}
}

// begins reports whether a function of pgx runs another one in a transaction of its own. Its second
// argument is where.
func begins(n name) bool {
	return n.pkg == "github.com/jackc/pgx" && (n.fn == "BeginFunc" || n.fn == "BeginTxFunc")
}

// call judges one call.
func (r *reach) call(fn *ssa.Function, call ssa.CallInstruction, at *frame, via token.Pos, step bool) {
	c := call.Common()
	n := nameOf(c)
	own := via
	if !own.IsValid() {
		own = call.Pos()
	}
	if n == runsStep {
		r.steps(call, at, via)
		return
	}
	for _, arg := range c.Args { // a method value may be called by what gets it, for example an errgroup
		if f, ok := unwrapped(arg).(*ssa.MakeClosure); ok && f.Fn.(*ssa.Function).Parent() == nil {
			bound := f.Fn.(*ssa.Function)
			r.visit(bound, &frame{fn: bound, closure: f, up: at, depth: at.level() + 1}, own, step)
		}
	}
	switch {
	case connections[n.pkg+"."+n.recv] && sends[n.fn]:
		if !r.p.ownConnector(c) {
			r.statement(call, n, at)
		}
		return
	case begins(n) && len(c.Args) > 1:
		if connections[typeName(unwrapped(c.Args[1]).Type())] {
			r.effect(rulePool, call.Pos(), n.String(), committed(n.String()))
		}
		return
	case n.pkg == gormPath && (n.recv == "DB" || n.recv == "Association"):
		r.gorm(call, n, at, via)
		return
	case remotes[n]:
		if !step {
			r.effect(ruleRemote, call.Pos(), n.String(), fmt.Sprintf(reachesRemote, n.String()))
		}
		return
	case c.IsInvoke():
		r.invoke(call, at, own, step)
		return
	}
	callee := c.StaticCallee()
	switch {
	case callee == nil:
		r.value(c, at, own, step)
	case len(callee.Blocks) > 0 && r.p.follows(callee):
		r.visit(callee, &frame{fn: callee, args: c.Args, up: at, depth: at.level() + 1}, own, step)
	default:
		if known := r.p.fact(callee); known != nil {
			r.apply(known, n, c.Args, at, own, step)
		} else if conn := r.p.instead(fn, c); conn != "" && r.into == nil {
			r.report(
				rulePool,
				call.Pos(),
				fmt.Sprintf("%v gets a %s where the handler's transaction would fit: what it writes commits "+
					"outside of it, and is written again if the message is handled again. Pass tx instead.", n, conn),
			)
		}
	}
}

// stepsOf follows the steps of a function that is no handler.
func (r *reach) stepsOf(fn *ssa.Function) {
	for call := range calls(fn) {
		if nameOf(call.Common()) == runsStep {
			r.steps(call, nil, 0)
		}
	}
}

// steps follows what an idempotency.Step runs. A function literal is judged at its own lines.
func (r *reach) steps(call ssa.CallInstruction, at *frame, via token.Pos) {
	for _, o := range r.p.origins(call.Common().Args[2], nil, at, r.into == nil) {
		fn := function(o.v)
		if fn == nil || len(fn.Blocks) == 0 || !r.p.follows(fn) {
			continue
		}
		in := &frame{fn: fn, up: o.at, depth: at.level() + 1}
		in.closure, _ = o.v.(*ssa.MakeClosure)
		if fn.Parent() != nil {
			r.visit(fn, in, via, true)
		} else {
			r.visit(fn, in, cmp.Or(via, call.Pos()), true)
		}
	}
}

// value follows a call of a function value.
func (r *reach) value(c *ssa.CallCommon, at *frame, via token.Pos, step bool) {
	if _, builtin := c.Value.(*ssa.Builtin); builtin {
		return
	}
	for _, o := range r.p.origins(c.Value, nil, at, r.into == nil) {
		switch f := o.v.(type) {
		case *ssa.Function:
			if len(f.Blocks) > 0 && r.p.follows(f) {
				r.visit(f, &frame{fn: f, args: c.Args, up: at, depth: at.level() + 1}, via, step)
			}
		case *ssa.MakeClosure:
			if fn := f.Fn.(*ssa.Function); fn.Parent() == nil && r.p.follows(fn) {
				r.visit(fn, &frame{fn: fn, args: c.Args, closure: f, up: o.at, depth: at.level() + 1}, via, step)
			}
		}
	}
}

// invoke judges a call of an interface's method: a statement, or a method of the package.
func (r *reach) invoke(call ssa.CallInstruction, at *frame, via token.Pos, step bool) {
	c := call.Common()
	i, ok := c.Value.Type().Underlying().(*types.Interface)
	if !ok || isAnyTx(c.Value.Type()) {
		return
	}
	sender := sends[c.Method.Name()] && sendsStatements(i)
	for _, o := range r.p.origins(c.Value, nil, at, r.into == nil) {
		switch {
		case sender && o.connection() != "":
			if verdict := r.p.judge(c, at); verdict != reads {
				r.effectAt(via, call.Pos(), short(o.connection())+"."+c.Method.Name(), verdict)
			}
		case sender:
			if r.into != nil && r.p.judge(c, at) != reads {
				r.through(o, call.Pos())
			}
		case o.v != nil && len(o.path) == 0:
			r.method(c, o, at, via, step)
		}
	}
}

// method follows a method of the type that an interface holds.
func (r *reach) method(c *ssa.CallCommon, o origin, at *frame, via token.Pos, step bool) {
	t := o.v.Type()
	if isInterface(t) {
		return
	}
	found := types.NewMethodSet(t).Lookup(c.Method.Pkg(), c.Method.Name())
	if found == nil {
		return
	}
	f, ok := found.Obj().(*types.Func)
	if !ok {
		return
	}
	args := slices.Concat([]ssa.Value{o.v}, c.Args)
	if fn := r.p.pkg.Prog.FuncValue(f); fn != nil && len(fn.Blocks) > 0 && r.p.follows(fn) {
		r.visit(fn, &frame{fn: fn, args: args, recvAt: o.at, up: at, depth: at.level() + 1}, via, step)
	} else if known := r.p.factOf(f); known != nil {
		r.apply(known, methodName(f), args, at, via, step)
	}
}

// methodName is the name of a method.
func methodName(f *types.Func) name {
	full := typeName(f.Signature().Recv().Type())
	return name{unversioned(f.Pkg().Path()), full[strings.LastIndexByte(full, '.')+1:], f.Name()}
}

// apply judges a call by what is known of the callee.
func (r *reach) apply(known *summary, n name, args []ssa.Value, at *frame, via token.Pos, step bool) {
	for _, e := range known.Effects {
		remoteInStep := e.Rule == ruleRemote && step
		valueOutside := e.Rule == ruleValue && !step
		if remoteInStep || valueOutside && r.into == nil {
			continue
		}
		text := fmt.Sprintf("%v calls %s (%s): it %s", n, e.What, e.Where, commits)
		switch e.Rule {
		case ruleValue:
			text = fmt.Sprintf(otherRequest, n, fmt.Sprintf("%s (%s)", e.What, e.Where))
		case ruleRemote:
			text = fmt.Sprintf(reachesRemote, fmt.Sprintf("%v, by %s (%s),", n, e.What, e.Where))
		}
		if r.into != nil {
			r.add(e)
			continue
		}
		r.report(e.Rule, via, text)
	}
	for _, t := range known.Through {
		if t.Param >= len(args) {
			continue
		}
		all := r.p.origins(args[t.Param], t.Path, at, r.into == nil)
		if t.GORM {
			r.applyGORM(t, n, all, via)
			continue
		}
		for _, o := range all {
			switch conn := o.connection(); {
			case conn != "" && r.into != nil:
				r.add(effect{rulePool, short(conn), t.Where})
			case conn != "":
				r.report(
					rulePool,
					via,
					fmt.Sprintf("%v sends its statement (%s) on a %s: it %s", n, t.Where, short(conn), commits),
				)
			case r.into != nil:
				r.throughAt(o, t.Where, false)
			}
		}
	}
	for _, k := range known.Keys {
		if k.Param < len(args) && (step || r.into != nil) {
			r.keyOf(r.p.sources(args[k.Param], k.Path, at), k.Where, via, n.String())
		}
	}
}

// statement judges a statement on a connection.
func (r *reach) statement(call ssa.CallInstruction, n name, at *frame) {
	switch verdict := r.p.judge(call.Common(), at); verdict {
	case reads:
	case unknown:
		r.effect(rulePool, call.Pos(), n.String(), fmt.Sprintf(cannotTell, n.String()))
	default:
		r.effect(rulePool, call.Pos(), n.String(), committed(n.String()))
	}
}

// Texts of the rule oncepool.
const (
	commits = "commits outside of the handler's transaction: if the message is handled again, the write " +
		"is made again. Use tx instead."
	cannotTell = "%v sends a statement that is put together as the program runs, so whether it writes " +
		"cannot be told: if it does, it commits outside of the handler's transaction, and again if the " +
		"message is handled again. Use tx, or give the reason in a comment onlyoncevet:ignore."
)

func committed(what string) string { return what + " " + commits }

// effect reports an effect at its own line, or notes it in the summary.
func (r *reach) effect(rule string, pos token.Pos, what, text string) {
	if r.into != nil {
		r.add(effect{rule, what, r.p.where(pos)})
		return
	}
	r.report(rule, pos, text)
}

// effectAt reports a statement of an interface at the handler's call: the same line is right if it
// is called with a transaction.
func (r *reach) effectAt(via, pos token.Pos, what string, verdict sqlVerdict) {
	if r.into != nil {
		r.add(effect{rulePool, what, r.p.where(pos)})
		return
	}
	if verdict == unknown {
		r.report(rulePool, via, fmt.Sprintf(cannotTell, what+" ("+r.p.where(pos)+")"))
		return
	}
	r.report(rulePool, via, fmt.Sprintf("this reaches %s (%s): it %s", what, r.p.where(pos), commits))
}

func (r *reach) report(rule string, pos token.Pos, text string) {
	if key := fmt.Sprint(pos, text); !r.reported[key] {
		r.reported[key] = true
		r.p.findings = append(r.p.findings, finding{rule, pos, text})
	}
}

func (r *reach) add(e effect) {
	if len(r.into.Effects) < most && !slices.Contains(r.into.Effects, e) {
		r.into.Effects = append(r.into.Effects, e)
	}
}

func (r *reach) through(o origin, pos token.Pos) { r.throughAt(o, r.p.where(pos), false) }

// throughAt notes a statement on a parameter of the function that the summary is of.
func (r *reach) throughAt(o origin, where string, gorm bool) {
	if i := r.ownParam(o); i >= 0 && len(r.into.Through) < most {
		r.into.Through = append(r.into.Through, through{i, o.path, where, gorm})
	}
}

// ownParam is the index of an origin among the parameters of the function that the summary is of,
// or -1.
func (r *reach) ownParam(o origin) int {
	param, ok := o.v.(*ssa.Parameter)
	if !ok || r.into == nil || param.Parent() != r.stack[0] {
		return -1
	}
	return slices.Index(param.Parent().Params, param)
}

// where is file:line.
func (p *program) where(pos token.Pos) string {
	at := p.pass.Fset.Position(pos)
	return fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)
}

// short is a type's name with the last part of its package.
func short(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }
