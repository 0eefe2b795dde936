// Package imagined lets a test run several imaginary processes in one. What a package shares among
// all that runs in a process, it then shares among what runs with the same [Process] in its
// context. Without one, Shared costs a look at the context.
//
// The test can also learn which parts such a process makes: see [Made].
package imagined

import (
	"context"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Process is an imaginary process. Its zero value is one in which nothing is shared yet.
type Process struct {
	shared sync.Map
	// Made is called when a part is made with a pool of the process. Defaults to nothing.
	Made func(Part)
	// Logger is what its parts log to if their configuration has no Logger. Defaults to nil: they
	// log as in a real process.
	Logger *slog.Logger
}

// Part is a part of a program that does work that others leave in the database.
type Part struct {
	Relay  bool     // it sends calls
	Topics []string // it reads the stored events of these topics
}

// owners are the processes of pools.
var owners sync.Map

// Adopt makes a pool the process's, until the returned function is called.
func (p *Process) Adopt(pool *pgxpool.Pool) (release func()) {
	owners.Store(pool, p)
	return func() { owners.Delete(pool) }
}

// Made reports a part to the process that the pool belongs to. Constructors call it: whether a part
// was made does not depend on time, as whether it has begun to work does.
func Made(pool *pgxpool.Pool, part Part) {
	if p, ok := owners.Load(pool); ok && p.(*Process).Made != nil {
		p.(*Process).Made(part)
	}
}

// Logger returns the logger of a part that is made with a pool: the given one, or that of the
// pool's process. It is nil if there is neither.
func Logger(pool *pgxpool.Pool, given *slog.Logger) *slog.Logger {
	if given != nil {
		return given
	}
	if p, ok := owners.Load(pool); ok {
		return p.(*Process).Logger
	}
	return nil
}

type key struct{}

// With returns a context for what runs in an imaginary process.
func With(ctx context.Context, p *Process) context.Context { return context.WithValue(ctx, key{}, p) }

// Shared returns what the process of ctx has in place of real: real itself, or in an imaginary
// process a value of its own, which begins as the zero value.
func Shared[T any](ctx context.Context, real *T) *T {
	p, ok := ctx.Value(key{}).(*Process)
	if !ok {
		return real
	}
	own, _ := p.shared.LoadOrStore(real, new(T))
	return own.(*T)
}
