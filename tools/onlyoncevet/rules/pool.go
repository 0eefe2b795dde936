package rules

import (
	"go/constant"
	"go/token"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Pool reports statements that a handler sends past its transaction.
var Pool = &analysis.Analyzer{
	Name: "oncepool",
	Doc: `report statements of a handler that are not sent through its transaction

A statement on a *pgxpool.Pool, *pgx.Conn, *sql.DB or the like commits by itself. If the handler's
transaction rolls back, the handler runs again, and so does the statement. Reads are not reported:
a constant statement that begins with SELECT and writes nothing. Nor are those on a *sql.DB that
sql.OpenDB makes of a connector of the same package: where that one leads is not known, for example
to the transaction itself.`,
	Requires: []*analysis.Analyzer{handlers},
	Run:      runPool,
}

// connections are the types whose methods send statements past a handler's transaction.
var connections = map[string]bool{
	"github.com/jackc/pgx/pgxpool.Pool": true, "github.com/jackc/pgx/pgxpool.Conn": true, "github.com/jackc/pgx.Conn": true,
	"github.com/jackc/pgx/pgconn.PgConn": true, "database/sql.DB": true, "database/sql.Conn": true,
}

// sends are the methods that send a statement, or begin what will.
var sends = map[string]bool{
	"Exec": true, "Query": true, "QueryRow": true, "SendBatch": true, "CopyFrom": true, "CopyTo": true, "Begin": true, "BeginTx": true,
	"ExecContext": true, "QueryContext": true, "QueryRowContext": true, "Prepare": true, "PrepareContext": true,
	"ExecParams": true, "ExecPrepared": true, "ExecBatch": true,
}

func runPool(pass *analysis.Pass) (any, error) {
	p := pass.ResultOf[handlers].(*program)
	for _, fn := range p.handlers {
		for call := range calls(fn) {
			c := call.Common()
			n := nameOf(c)
			switch {
			case connections[n.pkg+"."+n.recv] && sends[n.fn] && !reads(c) && !p.ownConnector(c):
			case n.pkg == "github.com/jackc/pgx" && (n.fn == "BeginFunc" || n.fn == "BeginTxFunc") && len(c.Args) > 1 && connections[typeName(unwrapped(c.Args[1]).Type())]:
			default:
				continue
			}
			p.report(pass, call.Pos(), "%v commits outside of the handler's transaction: if the message is handled again, the write is made again. Use tx instead.", n)
		}
	}
	return nil, nil
}

// ownConnector reports whether a call is a method of the result of sql.OpenDB, for a connector of a
// type of this package.
func (p *program) ownConnector(c *ssa.CallCommon) bool {
	if c.IsInvoke() || len(c.Args) == 0 {
		return false
	}
	open, ok := stored(c.Args[0]).(*ssa.Call)
	if !ok || nameOf(open.Common()) != (name{"database/sql", "", "OpenDB"}) {
		return false
	}
	return strings.HasPrefix(typeName(stored(unwrapped(open.Common().Args[0])).Type()), unversioned(p.pkg.Pkg.Path())+".")
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

var (
	comment = regexp.MustCompile(`--[^\n]*`)
	begins  = regexp.MustCompile(`(?i)^\s*(select|with|values|table|show)\b`)
	writes  = regexp.MustCompile(`(?i)\b(insert|update|delete|merge|into|nextval|setval)\b`)
)

// reads reports whether a call sends a constant statement that only reads.
func reads(c *ssa.CallCommon) bool {
	for _, arg := range c.Args {
		if k, ok := arg.(*ssa.Const); ok && k.Value != nil && k.Value.Kind() == constant.String {
			return readsOnly(constant.StringVal(k.Value))
		}
	}
	return false
}

func readsOnly(sql string) bool {
	sql = comment.ReplaceAllString(sql, "")
	return begins.MatchString(sql) && !writes.MatchString(sql)
}
