package onlyoncetest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
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
}

const ourModule = "github.com/onlyonce/onlyonce/"

// carriers are the prefixes of functions that only pass a call on.
var carriers = []string{"github.com/jackc/pgx/", "github.com/jackc/puddle/", "database/sql.", "runtime.", "net/http.", ourModule + "onlyoncetest.(*transport)", ourModule + "onlyoncetest.tracer", ourModule + "onlyoncetest.originOf"}

// engines are the folders of our module whose functions are the engine's.
var engines = []string{"consumer", "outbox", "webhook", "idempotency", "dedupe", "sqltx", "seal", "migrations", "ops", "internal/", "onlyoncetest.", "onlyoncetest/"}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
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
	seen := false
	for {
		f, more := frames.Next()
		if f.Function != "" && !hasPrefix(f.Function, carriers) {
			if isEngine(f) {
				if !seen {
					seen = true // the engine is nearer than the user
				}
			} else if o.caller == "" && !strings.HasPrefix(f.Function, "testing.") {
				o.caller = fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
				o.direct = !seen
			}
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
	t.p.run.statement(t.p, data.SQL, originOf())
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (t tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	o := originOf()
	for _, q := range data.Batch.QueuedQueries {
		t.p.run.statement(t.p, q.SQL, o)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (t tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceCopyFromStart implements pgx.CopyFromTracer.
func (t tracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceCopyFromStartData) context.Context {
	t.p.run.statement(t.p, "copy "+data.TableName.Sanitize(), originOf())
	return ctx
}

// TraceCopyFromEnd implements pgx.CopyFromTracer.
func (t tracer) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {}
