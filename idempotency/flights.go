package idempotency

import (
	"context"
	"sync"
	"time"
)

// Bounds of those that wait (H10).
const (
	keyWaiters    = 8
	tenantWaiters = 64
)

// flights are the requests that this process is working on. They spare the database what is known here; what other processes work
// on, it tells.
type flights struct {
	mu      sync.Mutex
	running map[[16]byte]*flight
	waiting map[[16]byte]int // by key, wherever it is worked on
	tenants map[string]*tenantLoad
}

type flight struct {
	id    [16]byte
	done  chan struct{}
	ended bool
}

type tenantLoad struct {
	running, waiting int
	conns            chan struct{} // as many places as its handlers may hold connections
	held             int           // how many hold one, or wait for it
}

// enter counts a request of a tenant, if it may be worked on.
func (f *flights) enter(tenant string, limit int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	if t == nil {
		t = &tenantLoad{}
		f.tenants[tenant] = t
	}
	if t.running >= limit {
		return false
	}
	t.running++
	return true
}

func (f *flights) leave(tenant string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	t.running--
	f.forget(tenant, t)
}

// connect waits until a tenant's handler may hold one of the connections that are the tenant's share, and reports false where ctx ended before that.
// Then disconnect gives it back. It waits here and not in the pool, where the other tenants wait.
func (f *flights) connect(ctx context.Context, tenant string, share int) bool {
	f.mu.Lock()
	t := f.tenants[tenant]
	if t == nil {
		t = &tenantLoad{}
		f.tenants[tenant] = t
	}
	if t.conns == nil {
		t.conns = make(chan struct{}, share)
	}
	t.held++
	f.mu.Unlock()
	select {
	case t.conns <- struct{}{}:
		return true
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.held--
	f.forget(tenant, t)
	return false
}

func (f *flights) disconnect(tenant string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	<-t.conns
	t.held--
	f.forget(tenant, t)
}

// forget drops a tenant that has nothing under way.
func (f *flights) forget(tenant string, t *tenantLoad) {
	if t.running == 0 && t.held == 0 {
		delete(f.tenants, tenant)
	}
}

// look returns what is closed when the request of this process that has a key is done, nil where none has it.
func (f *flights) look(id [16]byte) (first <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.running[id]; one != nil {
		return one.done
	}
	return nil
}

// begin takes a key for a request of this process, or returns what is closed when the one that has it is done.
func (f *flights) begin(id [16]byte) (mine *flight, first <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.running[id]; one != nil {
		return nil, one.done
	}
	mine = &flight{id: id, done: make(chan struct{})}
	f.running[id] = mine
	return mine, nil
}

// end gives a key back. One that was abandoned has been given back before.
func (f *flights) end(one *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !one.ended {
		one.ended = true
		close(one.done)
		delete(f.running, one.id)
	}
}

// wait waits for the one who has the key, or for the time to look again where that is another process; false: no longer. It holds
// no connection.
func (f *flights) wait(client context.Context, id [16]byte, tenant string, first <-chan struct{}, n int, deadline time.Time) bool {
	f.mu.Lock()
	load := f.tenants[tenant]
	if load.waiting >= tenantWaiters || f.waiting[id] >= keyWaiters {
		f.mu.Unlock()
		return false
	}
	load.waiting++
	f.waiting[id]++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		load.waiting--
		if f.waiting[id]--; f.waiting[id] == 0 {
			delete(f.waiting, id)
		}
	}()
	pause := time.Until(deadline)
	if first == nil { // another process has it
		pause = min(pause, lookFirst<<min(n, 4))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-first:
	case <-timer.C:
	case <-client.Done():
		return false
	}
	return time.Until(deadline) > 0 || first != nil
}

// lookFirst is the first pause between two looks at a key that another process works on; it doubles, four times at most.
const lookFirst = 25 * time.Millisecond
