// Package imagined lets a test run several imaginary processes in one. What a package shares among
// all that runs in a process, it then shares among what runs with the same [Process] in its
// context. Without one, Shared costs a look at the context.
package imagined

import (
	"context"
	"sync"
)

// Process is an imaginary process. Its zero value is one in which nothing is shared yet.
type Process struct{ shared sync.Map }

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
