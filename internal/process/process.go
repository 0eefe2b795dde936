// Package process holds what all parts of a program share because they run in one process. A test
// can run several imaginary processes in one, each with a [Process] in its context, and learn which
// parts each of them makes: see [Made].
package process

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Process is one process. Its zero value is one in which nothing is shared yet.
type Process struct {
	shared sync.Map // by type
	// Made is called when a part is made with a pool of the process. Defaults to nothing.
	Made func(Part)
	// Logger is what its parts log to if their configuration has no Logger. Defaults to nil: they
	// log as in a real process.
	Logger *slog.Logger
	// Pace is how often the engines do what no user has a reason to change.
	Pace Pace
}

// Pace says how often the engines do their own upkeep. No user has a reason to change it, but a
// test has: what comes once in a hundred transactions has to come in a history of ten. The zero
// value of a field is its default.
type Pace struct {
	// Start bounds the queries that a process makes before it begins to work. A server that is gone
	// without notice is found then, and not when TCP gives up, after a quarter of an hour. Defaults
	// to 10 s.
	Start time.Duration
	// Prune is how many transactions of a partition lie between two looks at the rows of progress
	// that can go. Defaults to 128.
	Prune int
	// Sweep is how long a partition with several transactions at once waits between two moves of
	// its position, unless some hundred messages are done. Defaults to 100 ms.
	Sweep time.Duration
	// PruneIdle is how long a partition with several transactions at once, whose position does not
	// move, waits until it looks for rows of done that can go. Defaults to 1 s.
	PruneIdle time.Duration
	// Watch is how often a source checks its topics for new partitions. Defaults to 5 s.
	Watch time.Duration
	// Promote is how often a lane looks for blocked calls that no unsettled call precedes. Defaults
	// to 5 minutes.
	Promote time.Duration
}

// real is the process of each context that no test has given another.
var real Process

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

func of(ctx context.Context) *Process {
	if p, ok := ctx.Value(key{}).(*Process); ok {
		return p
	}
	return &real
}

// Shared returns the one value of its type that the process of ctx has. It begins as the zero
// value.
func Shared[T any](ctx context.Context) *T {
	shared := &of(ctx).shared
	v, ok := shared.Load((*T)(nil))
	if !ok {
		v, _ = shared.LoadOrStore((*T)(nil), new(T))
	}
	return v.(*T)
}

// AtStart bounds what a part asks of its servers before it begins to work. The bound does not
// follow from the timeouts of its work: a program whose statements are short is started on busy
// machines too, and its Run would return an error.
func AtStart(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, PaceOf(ctx).Start)
}

// PaceOf returns the pace of the process of ctx.
func PaceOf(ctx context.Context) Pace {
	p := of(ctx).Pace
	return Pace{
		Start:     cmp.Or(p.Start, 10*time.Second),
		Prune:     cmp.Or(p.Prune, 128),
		Sweep:     cmp.Or(p.Sweep, 100*time.Millisecond),
		PruneIdle: cmp.Or(p.PruneIdle, time.Second),
		Watch:     cmp.Or(p.Watch, 5*time.Second),
		Promote:   cmp.Or(p.Promote, 5*time.Minute),
	}
}
