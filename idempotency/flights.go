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
	tenants map[string]*tenantLoad
}

type flight struct {
	done    chan struct{}
	waiters int
}

type tenantLoad struct{ running, waiting int }

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
	if t := f.tenants[tenant]; t.running > 1 {
		t.running--
	} else {
		delete(f.tenants, tenant)
	}
}

// begin takes a key for a request of this process, or returns what is closed when the one that has it is done.
func (f *flights) begin(id [16]byte) (mine bool, first <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.running[id]; one != nil {
		return false, one.done
	}
	f.running[id] = &flight{done: make(chan struct{})}
	return true, nil
}

func (f *flights) end(id [16]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.running[id].done)
	delete(f.running, id)
}

// wait waits for the one who has the key, or for the time to look again where that is another process; false: no longer. It holds
// no connection.
func (f *flights) wait(client context.Context, id [16]byte, tenant string, first <-chan struct{}, n int, deadline time.Time) bool {
	f.mu.Lock()
	load, one := f.tenants[tenant], f.running[id]
	if load.waiting >= tenantWaiters || one != nil && one.waiters >= keyWaiters {
		f.mu.Unlock()
		return false
	}
	load.waiting++
	if one != nil {
		one.waiters++
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		load.waiting--
		if one != nil {
			one.waiters--
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
