package hook

import "context"

// JoinEvent calls a and then b.
func JoinEvent[T any](a, b func(T)) func(T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(v T) {
		a(v)
		b(v)
	}
}

// Pair is a step's Start and End.
type Pair[S, E any] struct {
	Start func(context.Context, S) context.Context
	End   func(context.Context, E)
}

// outer is the context key under which a joined Start keeps a's context. Each joined pair has its
// own, so pairs can be joined again.
type outer struct{ pair *byte }

// JoinPair joins two pairs around one step: b is inside a. Its Start calls a's, and then b's with
// a's context. Its End calls b's, and then a's. Each End gets the context that its own Start
// returned. So if both put a span into the context, neither ends the other's.
func JoinPair[S, E any](a, b Pair[S, E]) Pair[S, E] {
	switch {
	case a.Start == nil && a.End == nil:
		return b
	case b.Start == nil && b.End == nil:
		return a
	}
	key := outer{new(byte)}
	return Pair[S, E]{
		Start: func(ctx context.Context, s S) context.Context {
			if a.Start != nil {
				if of := a.Start(ctx, s); of != nil {
					ctx = of
				}
			}
			inside := ctx
			if b.Start != nil {
				if of := b.Start(ctx, s); of != nil {
					inside = of
				}
			}
			return context.WithValue(inside, key, ctx)
		},
		End: func(ctx context.Context, e E) {
			if b.End != nil {
				b.End(ctx, e)
			}
			if a.End == nil {
				return
			}
			if of, ok := ctx.Value(key).(context.Context); ok {
				ctx = of
			}
			a.End(ctx, e)
		},
	}
}

// ended holds the two arguments of an End.
type ended[E, R any] struct {
	e E
	r R
}

// PairWith is a step's Start and End, where End has two arguments.
type PairWith[S, E, R any] struct {
	Start func(context.Context, S) context.Context
	End   func(context.Context, E, R)
}

// JoinPairWith is [JoinPair] for an End with two arguments.
func JoinPairWith[S, E, R any](a, b PairWith[S, E, R]) PairWith[S, E, R] {
	joined := JoinPair(a.asPair(), b.asPair())
	p := PairWith[S, E, R]{Start: joined.Start}
	if joined.End != nil {
		p.End = func(ctx context.Context, e E, r R) { joined.End(ctx, ended[E, R]{e, r}) }
	}
	return p
}

func (p PairWith[S, E, R]) asPair() Pair[S, ended[E, R]] {
	of := Pair[S, ended[E, R]]{Start: p.Start}
	if p.End != nil {
		of.End = func(ctx context.Context, v ended[E, R]) { p.End(ctx, v.e, v.r) }
	}
	return of
}
