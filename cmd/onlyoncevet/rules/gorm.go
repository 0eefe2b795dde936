package rules

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// A *gorm.DB is a connection to a pool or to a transaction, and its type does not tell which. So a
// write is reported only if each place where the *gorm.DB may come from was there before the
// handler got its transaction: gorm.Open over a pool, a global variable, the receiver of a handler,
// or the parameter of the function that makes the handler.

const gormPath = "gorm.io/gorm"

// gormDB is the type whose methods send statements.
const gormDB = gormPath + ".DB"

func isGORM(t types.Type) bool { return typeName(t) == gormDB }

// gormWrites are the methods that write, or begin what will.
var gormWrites = map[name]bool{}

func init() {
	for recv, fns := range map[string][]string{
		"DB": {
			"Begin", "Create", "CreateInBatches", "Delete", "FirstOrCreate", "Save", "Transaction",
			"Update", "UpdateColumn", "UpdateColumns", "Updates",
		},
		"Association": {"Append", "Clear", "Delete", "Replace"},
	} {
		for _, fn := range fns {
			gormWrites[name{gormPath, recv, fn}] = true
		}
	}
}

// isChain reports whether a call returns what its receiver is a connection to.
func isChain(n name) bool { return n.pkg == gormPath && n.recv == "DB" && n.fn != "Begin" }

// gormTx returns the transaction of a *gorm.DB.
var gormTx = name{module + "sqltx/gormtx", "", "Of"}

// setsPool reports whether a field is ConnPool of a Statement: who sets it makes a *gorm.DB one of
// another connection.
func setsPool(to *ssa.FieldAddr) bool {
	f, _ := fieldOf(to)
	return f != nil && typeName(to.X.Type()) == gormPath+".Statement" && f.Name() == "ConnPool"
}

// place says what is known of an origin of a *gorm.DB.
type place int

const (
	placeUnknown place = iota
	placeNone          // nil
	placeOutside       // it was there before the transaction
	placeParam         // a parameter of the function that a summary is of
)

// placeOf returns where an origin is.
func (r *reach) placeOf(o origin) place {
	switch v := o.v.(type) {
	case nil:
		if o.conn == gormDB {
			return placeOutside
		}
	case *ssa.Const:
		return placeNone
	case *ssa.Global:
		return placeOutside
	case *ssa.Call:
		if r.p.opensPool(v, o.at) {
			return placeOutside
		}
	case *ssa.Parameter:
		return r.placeOfParameter(v)
	}
	return placeUnknown
}

func (r *reach) placeOfParameter(v *ssa.Parameter) place {
	fn := v.Parent()
	switch {
	case r.into != nil && fn == r.stack[0]:
		return placeParam
	case fn == r.stack[0]:
		if fn.Signature.Recv() != nil && fn.Params[0] == v && isHandlers(fn.Signature) {
			return placeOutside
		}
		return placeUnknown
	case fn.Parent() != nil || slices.Contains(r.stack, fn) || slices.Contains(r.p.handlers, fn):
		return placeUnknown // a function that gets it as it runs, for example that of Transaction
	}
	return placeOutside
}

// isHandlers reports whether a function is what a consumer calls: so its receiver was there before.
func isHandlers(s *types.Signature) bool {
	if s.Params().Len() != 3 || s.Results().Len() != 1 || !isTx(s.Params().At(1).Type()) {
		return false
	}
	last := s.Params().At(2).Type()
	if all, ok := last.Underlying().(*types.Slice); ok {
		last = all.Elem()
	}
	return typeName(last) == module+"consumer.Message"
}

// gorm judges a call of a method of a *gorm.DB.
func (r *reach) gorm(call ssa.CallInstruction, n name, at *frame, via token.Pos) {
	c := call.Common()
	if len(c.Args) == 0 {
		return
	}
	text := n.recv == "DB" && (n.fn == "Exec" || n.fn == "Raw")
	if !gormWrites[n] && (!text || r.p.judge(c, at) != writes) {
		return // also if the text is not known: what a query builder puts together mostly reads
	}
	outside, params := r.places(r.p.origins(c.Args[0], nil, at, r.into == nil))
	switch {
	case outside && r.into != nil:
		r.add(effect{rulePool, n.String(), r.p.where(call.Pos())})
	case outside:
		if via.IsValid() { // the same line is right if its *gorm.DB is the transaction's
			r.report(rulePool, via, fmt.Sprintf("this reaches %s (%s): it %s", n, r.p.where(call.Pos()), pastGORM))
		} else {
			r.report(rulePool, call.Pos(), n.String()+" "+pastGORM)
		}
	default:
		for _, o := range params {
			r.throughAt(o, r.p.where(call.Pos()), true)
		}
	}
}

// applyGORM judges a call of a function that writes by a *gorm.DB that it gets.
func (r *reach) applyGORM(t through, n name, all []origin, via token.Pos) {
	outside, params := r.places(all)
	switch {
	case outside && r.into != nil:
		r.add(effect{rulePool, short(gormDB), t.Where})
	case outside:
		r.report(rulePool, via, fmt.Sprintf("%v writes by GORM (%s): it %s", n, t.Where, pastGORM))
	default:
		for _, o := range params {
			r.throughAt(o, t.Where, true)
		}
	}
}

// pastGORM follows what writes.
const pastGORM = "commits outside of the handler's transaction: if the message is handled again, the write is " +
	"made again. Use a *gorm.DB on the *sql.Tx of sqltx.Within instead."

// places reports whether all origins are outside of the transaction. If some are parameters of the
// function that a summary is of, and the others outside, it returns these.
func (r *reach) places(all []origin) (outside bool, params []origin) {
	for _, o := range all {
		switch r.placeOf(o) {
		case placeUnknown:
			return false, nil
		case placeParam:
			params = append(params, o)
		case placeOutside:
			outside = true
		case placeNone:
		}
	}
	return outside && len(params) == 0, params
}

// opensPool reports whether a call is gorm.Open over a pool or an address, and not over a
// transaction, nor over what nothing is known of.
func (p *program) opensPool(c *ssa.Call, at *frame) bool {
	if nameOf(&c.Call) != (name{gormPath, "", "Open"}) || len(c.Call.Args) == 0 {
		return false
	}
	for i, arg := range c.Call.Args {
		o := &opened{dialector: i == 0}
		w := &walk{p: p, ask: o, parts: true, callers: true}
		w.begin(arg, nil, at)
		if o.other || w.cut {
			return false
		}
	}
	return true
}

// opened looks for transactions in what gorm.Open gets. Of the dialector all has to be known.
type opened struct {
	dialector bool
	other     bool
}

func (o *opened) ends(_ *walk, v ssa.Value, _ []int, _ *frame) bool {
	if isAnyTx(v.Type()) {
		o.other = true
	}
	return connections[typeName(v.Type())]
}

func (o *opened) call(w *walk, c *ssa.Call, _ int, _ []int, at *frame) bool {
	if fn := c.Call.StaticCallee(); fn == nil || len(fn.Blocks) > 0 && w.p.follows(fn) {
		return false
	}
	for _, arg := range c.Call.Args {
		w.from(arg, nil, at)
	}
	return true
}

func (*opened) writes(*walk, name, ssa.CallInstruction) {}

func (o *opened) unknown(v ssa.Value, _ []int, _ *frame) {
	if o.dialector && isInterface(v.Type()) {
		o.other = true
	}
}
