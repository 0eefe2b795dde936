// Package hook guards and joins users' hooks: functions that observe an engine and must not change
// what it does. Each function here returns nil for a hook that is nil, so an engine that checks for
// nil calls nothing and allocates nothing.
//
// [Apart] is for the other functions of a program, whose results count.
//
// A guarded hook that panics is logged, and the engine goes on as if the hook had returned. A
// guarded Start that panics or returns nil leaves the context as it was.
package hook

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// Guard recovers the panics of hooks, and logs one for each hook in pace.Refusals.
type Guard struct {
	Log    *slog.Logger
	seldom pace.Seldom
}

// recoverHook is deferred around a hook. It logs the value of a panic only if the runtime made it,
// because another value may be a payload.
func (g *Guard) recoverHook(name string) {
	p := recover()
	if p == nil {
		return
	}
	text := fmt.Sprintf("%T", p)
	if err, ok := p.(runtime.Error); ok {
		text = err.Error()
	}
	if held, yes := g.seldom.Let(name, time.Now(), pace.Refusals); yes {
		g.Log.Error("onlyonce: a hook panicked; the work continues without it",
			"hook", name, "panic", text, "stack", string(debug.Stack()), "not_logged", held)
	}
}

// Event guards a hook that is called once.
func Event[T any](g *Guard, name string, f func(T)) func(T) {
	if f == nil {
		return nil
	}
	return func(v T) {
		defer g.recoverHook(name)
		f(v)
	}
}

// Start guards a hook that begins a step.
func Start[S any](
	g *Guard,
	name string,
	f func(context.Context, S) context.Context,
) func(context.Context, S) context.Context {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, s S) (step context.Context) {
		step = ctx
		defer g.recoverHook(name)
		if made := f(ctx, s); made != nil {
			step = made
		}
		return step
	}
}

// End guards a hook that ends a step.
func End[E any](g *Guard, name string, f func(context.Context, E)) func(context.Context, E) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, e E) {
		defer g.recoverHook(name)
		f(ctx, e)
	}
}

// EndWith guards a hook that ends a step and has two arguments.
func EndWith[E, R any](g *Guard, name string, f func(context.Context, E, R)) func(context.Context, E, R) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, e E, r R) {
		defer g.recoverHook(name)
		f(ctx, e, r)
	}
}
