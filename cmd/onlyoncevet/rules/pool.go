package rules

import (
	"go/token"
	"go/types"
	"iter"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Pool reports statements that a handler sends past its transaction.
var Pool = &analysis.Analyzer{
	Name: rulePool,
	Doc: `report statements of a handler that are not sent through its transaction

A statement on a *pgxpool.Pool, *pgx.Conn, *sql.DB or the like commits by itself. If the handler's
transaction rolls back, the handler runs again, and so does the statement. It is found in the handler
and in all that it calls: methods of repositories, the Queries of sqlc, functions of the module's
other packages. Statements that only read are not reported. They are read by PostgreSQL's own parser:
constants, embedded files, and those that fmt.Sprintf or + put together. What a function of your own
does in a SELECT is not known. Nor are statements reported on a *sql.DB that sql.OpenDB makes of a
connector of the same package: where that one leads is not known, for example to the transaction
itself.

Writes by GORM are reported if each place where the *gorm.DB may come from was there before the
handler's transaction, for example the handler's own field. They are not if it may be the
transaction's: of sqltx.Within, of db.Transaction, or of a context.

A pool that is passed where the transaction would fit is reported too, if what gets it is in another
module.`,
	Requires: []*analysis.Analyzer{handlers},
	Run:      runPool,
}

// connections are the types whose methods send statements past a handler's transaction.
var connections = map[string]bool{
	"github.com/jackc/pgx/pgxpool.Pool":  true,
	"github.com/jackc/pgx/pgxpool.Conn":  true,
	"github.com/jackc/pgx.Conn":          true,
	"github.com/jackc/pgx/pgconn.PgConn": true,
	"database/sql.DB":                    true,
	"database/sql.Conn":                  true,
}

// sends are the methods that send a statement, or begin what will.
var sends = map[string]bool{
	"Exec":            true,
	"Query":           true,
	"QueryRow":        true,
	"SendBatch":       true,
	"CopyFrom":        true,
	"CopyTo":          true,
	"Begin":           true,
	"BeginTx":         true,
	"ExecContext":     true,
	"QueryContext":    true,
	"QueryRowContext": true,
	"Prepare":         true,
	"PrepareContext":  true,
	"ExecParams":      true,
	"ExecPrepared":    true,
	"ExecBatch":       true,
}

func runPool(pass *analysis.Pass) (any, error) { return reportFound(pass, rulePool) }

// reportFound reports what handlers has found for a rule.
func reportFound(pass *analysis.Pass, rule string) (any, error) {
	p := pass.ResultOf[handlers].(*program)
	for _, f := range p.findings {
		if f.rule == rule {
			p.report(pass, f.pos, "%s", f.text)
		}
	}
	return nil, nil
}

// instead returns the type of a connection that a call in a handler passes as an interface for
// statements, if the handler's transaction has that interface too. It returns "" if there is none.
func (p *program) instead(fn *ssa.Function, c *ssa.CallCommon) string {
	params, args := c.Signature().Params(), c.Args
	if !c.IsInvoke() && c.Signature().Recv() != nil {
		args = args[1:]
	}
	for i := range min(params.Len(), len(args)) {
		want, ok := params.At(i).Type().Underlying().(*types.Interface)
		value := unwrapped(args[i])
		if !ok || !sendsStatements(want) {
			continue
		}
		if !connections[typeName(value.Type())] || p.leadsHere(value) {
			continue
		}
		for f := fn; f != nil; f = f.Parent() {
			for t := range transactions(f) {
				if types.Implements(t, want) {
					full := typeName(value.Type())
					return full[strings.LastIndexByte(full, '/')+1:]
				}
			}
		}
	}
	return ""
}

// sendsStatements reports whether an interface has a method that sends a statement.
func sendsStatements(i *types.Interface) bool {
	for m := range i.Methods() {
		if sends[m.Name()] {
			return true
		}
	}
	return false
}

// transactions are the types of a function's transactions: those that it takes, also a *sql.Tx, and
// the result of idempotency.TxOf.
func transactions(fn *ssa.Function) iter.Seq[types.Type] {
	return func(yield func(types.Type) bool) {
		for _, param := range fn.Params {
			if (isTx(param.Type()) || typeName(param.Type()) == "database/sql.Tx") && !yield(param.Type()) {
				return
			}
		}
		for call := range calls(fn) {
			if c := call.Common(); nameOf(c) == handlersTx && !yield(c.Signature().Results().At(0).Type()) {
				return
			}
		}
	}
}

// ownConnector reports whether a call is a method of the result of sql.OpenDB, for a connector of a
// type of this package.
func (p *program) ownConnector(c *ssa.CallCommon) bool {
	return !c.IsInvoke() && len(c.Args) > 0 && p.leadsHere(c.Args[0])
}

// leadsHere reports whether a value is a *sql.DB over such a connector.
func (p *program) leadsHere(db ssa.Value) bool {
	open, ok := stored(db).(*ssa.Call)
	if !ok || nameOf(open.Common()) != (name{"database/sql", "", "OpenDB"}) {
		return false
	}
	return strings.HasPrefix(
		typeName(stored(unwrapped(open.Common().Args[0])).Type()),
		unversioned(p.pkg.Pkg.Path())+".",
	)
}

// stored returns the value of a variable that is assigned once, and another value as it is. A
// variable that a function literal captures is one.
func stored(v ssa.Value) ssa.Value {
	load, ok := v.(*ssa.UnOp)
	if !ok || load.Op != token.MUL {
		return v
	}
	variable, ok := load.X.(*ssa.Alloc)
	if !ok {
		return v
	}
	var only ssa.Value
	for _, use := range *variable.Referrers() {
		if s, ok := use.(*ssa.Store); ok && s.Addr == variable {
			if only != nil {
				return v
			}
			only = s.Val
		}
	}
	if only == nil {
		return v
	}
	return only
}
