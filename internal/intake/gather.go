package intake

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Gather makes sets of events that arrive together, each in a goroutine that waits for its outcome.
// What waits is stored together, and nothing waits for company: the first event is stored alone at
// once, and those that come meanwhile are the next set. The zero value is not ready: Store must be
// set. It is safe for concurrent use.
//
// Its storers are goroutines that end when nothing waits. So a Gather need not be closed, and a
// server that has answered its requests has none (W23).
type Gather[E Entry] struct {
	// Store stores a set, and sets the outcome of each: see [Store.Store].
	Store func(ctx context.Context, set []E)
	// Storers is how many sets are stored at once, each over one connection.
	Storers int
	// Most is how many events a set has at most.
	Most int

	mu      sync.Mutex
	waiting []*ticket[E]    // in the order of arrival
	busy    map[string]bool // names of the events that are being stored
	storers int
	alone   bool // a storer has an event that waits for a copy
}

// ticket is one event that waits. Its goroutine owns it until take, and from then on the storer
// does until it closes stored.
type ticket[E Entry] struct {
	entry  E
	ctx    context.Context //nolint:containedctx // bounds the transaction of its set
	alone  bool
	names  []string
	stored chan struct{}
}

// ErrNotInTime means that it is not known in time whether the event is stored.
var ErrNotInTime = errors.New("intake: the transaction did not end in time")

// Do stores an event in the next set, and returns when the outcome in it is committed, or what
// else became of it. If ctx ends before, the error wraps ErrNotInTime, and the event must not be
// used any more: its transaction may still commit.
//
// With alone, the event is a set of its own, and only one storer at a time takes such an event: it
// may wait for a copy.
func (g *Gather[E]) Do(ctx context.Context, e E, alone bool) error {
	t := &ticket[E]{entry: e, ctx: ctx, alone: alone, names: namesOf(e.Entry()), stored: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, t)
	g.addStorer()
	g.mu.Unlock()
	select {
	case <-t.stored:
		return e.Entry().Err
	case <-ctx.Done():
	}
	select {
	case <-t.stored: // both at once
		return e.Entry().Err
	default:
	}
	g.mu.Lock()
	g.addStorer() // for what waited for this event
	g.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrNotInTime, context.Cause(ctx))
}

// addStorer begins a storer if there may be one more.
func (g *Gather[E]) addStorer() {
	if g.storers < g.Storers {
		g.storers++
		go g.run()
	}
}

// namesOf returns what two events must not have in common if they are stored at once: one would
// wait for the other in the database (its id, its body), or could overtake it (its ordering key).
func namesOf(it *Item) []string {
	names := []string{"id " + string(it.Hash.Bytes[:])}
	if it.Digest != nil {
		names = append(names, "body "+string(it.Digest))
	}
	if it.Key != nil {
		names = append(names, "key "+it.Tenant+" "+string(it.Key))
	}
	return names
}

// run is a storer: it stores set after set until nothing waits that it may take.
func (g *Gather[E]) run() {
	idle := false
	defer func() {
		if !idle { // a function of the user's has called runtime.Goexit
			go g.run()
		}
	}()
	for {
		set := g.take()
		if len(set) == 0 {
			idle = true
			return
		}
		g.storeSet(set)
	}
}

// take takes the next set out of those that wait. If there is none, it notes that the storer ends.
//
// What has a name of an event that is being stored waits for that, and so does what came after it
// with one of its own names: so events of one ordering key are stored in the order in which they
// came.
func (g *Gather[E]) take() (set []*ticket[E]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	passed := map[string]bool{}
	var rest []*ticket[E]
	size := 0
	full := false
	for _, t := range g.waiting {
		bytes := len(t.entry.Entry().Body)
		switch {
		case t.ctx.Err() != nil: // its goroutine has left
		case full, t.alone && (g.alone || len(set) > 0), g.holds(t.names, passed):
			rest = append(rest, t)
			for _, name := range t.names {
				passed[name] = true
			}
		case len(set) > 0 && size+bytes > maxSetBytes:
			full = true
			rest = append(rest, t)
		default:
			set = append(set, t)
			size += bytes
			full = t.alone || len(set) == g.Most
		}
	}
	g.waiting = rest
	if len(set) == 0 {
		g.storers--
		return nil
	}
	if len(rest) > 0 { // what the set has no place for may be another one's
		g.addStorer()
	}
	g.begin(set)
	return set
}

// holds reports whether one of the names is busy, or passed over.
func (g *Gather[E]) holds(names []string, passed map[string]bool) bool {
	for _, name := range names {
		if g.busy[name] || passed[name] {
			return true
		}
	}
	return false
}

// begin notes the names of a set that is being stored. storeSet takes them back.
func (g *Gather[E]) begin(set []*ticket[E]) {
	if g.busy == nil {
		g.busy = map[string]bool{}
	}
	for _, t := range set {
		for _, name := range t.names {
			g.busy[name] = true
		}
	}
	g.alone = g.alone || set[0].alone
}

var errNoReturn = errors.New("intake: storing the event did not return")

// storeSet stores a set, and answers each of its tickets once, whatever happens.
func (g *Gather[E]) storeSet(set []*ticket[E]) {
	ctx, cancel := lastOf(set)
	defer cancel()
	entries := make([]E, len(set))
	for i, t := range set {
		entries[i] = t.entry
		t.entry.Entry().Err = errNoReturn // until Store says otherwise
	}
	defer func() {
		if p := recover(); p != nil {
			for _, e := range entries {
				e.Entry().Err = fmt.Errorf("storing panicked: %v\n%s", p, debug.Stack())
			}
		}
		g.end(set)
	}()
	g.Store(ctx, entries)
}

// end answers the tickets of a set, and lets others have its names. Its storer then takes what
// waited for them.
func (g *Gather[E]) end(set []*ticket[E]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range set {
		for _, name := range t.names {
			delete(g.busy, name)
		}
		close(t.stored)
	}
	if set[0].alone {
		g.alone = false
	}
}

// lastOf returns a context that ends with the last of the tickets' contexts.
func lastOf[E Entry](set []*ticket[E]) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, t := range set {
		at, bounded := t.ctx.Deadline()
		if !bounded {
			return context.WithCancel(context.Background())
		}
		if at.After(last) {
			last = at
		}
	}
	return context.WithDeadline(context.Background(), last)
}
