package onlyoncetest

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// origin is where a statement or a request comes from.
type origin struct {
	// direct: the user's code uses the pool or the client itself, and not the engine's transaction.
	direct bool
	// caller is the innermost line of the user's code, as file:line; empty if there is none, for
	// example if the engine sends a statement that was queued.
	caller string
	// outer is the line of another file that the caller was called from. If all queries are in one
	// file, for example a generated one, it is the line that tells something.
	outer string
	// within: an engine that has a transaction for it has called the user's code.
	within bool
}

// at names both lines.
func (o origin) at() string {
	if o.outer == "" {
		return o.caller
	}
	return o.caller + ", called at " + o.outer
}

// where is the line for Verdict.Where.
func (o origin) where() string { return cmp.Or(o.outer, o.caller) }

const ourModule = "github.com/onlyonce/onlyonce/"

// carriers are the prefixes of functions that only pass a call on.
var carriers = []string{
	"github.com/jackc/pgx/",
	"github.com/jackc/puddle/",
	"database/sql.",
	"runtime.",
	"net/http.",
	ourModule + "onlyoncetest.(*transport)",
	ourModule + "onlyoncetest.tracer",
	ourModule + "onlyoncetest.originOf",
}

// engines are the folders of our module whose functions are the engine's.
var engines = []string{
	"consumer", "outbox", "webhook", "queue", "idempotency", "dedupe", "sqltx", "seal",
	"migrations", "ops", "internal/", "onlyoncetest.", "onlyoncetest/",
}

// lenders are those of them that call the user's code with a transaction.
var lenders = []string{"consumer.", "webhook.", "idempotency.", "dedupe."}

func hasPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// isEngine reports whether a function is the engine's: tests beside it are users.
func isEngine(f runtime.Frame) bool {
	rest, ours := strings.CutPrefix(f.Function, ourModule)
	return ours && hasPrefix(rest, engines) && !strings.HasSuffix(f.File, "_test.go")
}

// originOf looks at the callers.
func originOf() (o origin) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	// the engine is nearer than the user; the user's frames are over
	nearer := false
	left := false
	file := ""
	for {
		f, more := frames.Next()
		line := fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		switch {
		case f.Function == "" || hasPrefix(f.Function, carriers):
		case isEngine(f):
			nearer = true
			left = o.caller != ""
			o.within = o.within || left && hasPrefix(strings.TrimPrefix(f.Function, ourModule), lenders)
		case strings.HasPrefix(f.Function, "testing."):
		case o.caller == "":
			o.caller = line
			o.direct = !nearer
			file = f.File
		case o.outer == "" && !left && f.File != file:
			o.outer = line
		}
		if !more {
			return o
		}
	}
}

// tracer records the statements of a process.
type tracer struct{ p *Process }

// TraceQueryStart implements pgx.QueryTracer.
func (t tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.p.run.statement(data.SQL, originOf())
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (t tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	o := originOf()
	for _, q := range data.Batch.QueuedQueries {
		t.p.run.statement(q.SQL, o)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (t tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceCopyFromStart implements pgx.CopyFromTracer.
func (t tracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceCopyFromStartData) context.Context {
	t.p.run.statement("copy "+data.TableName.Sanitize(), originOf())
	return ctx
}

// TraceCopyFromEnd implements pgx.CopyFromTracer.
func (t tracer) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {}
