package idempotency

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/internal/bodies"
)

// Bounds on waiting copies of requests, per key and per tenant (H10).
const (
	keyWaiters    = 8
	tenantWaiters = 64
)

// flights holds the requests that this process is working on. It saves queries to the database,
// which knows about requests in other processes (H10).
type flights struct {
	mu      sync.Mutex
	byKey   map[[16]byte]*flight
	waiting map[[16]byte]int // by key, also if another process works on it
	tenants map[string]*tenantLoad
}

type flight struct {
	key   [16]byte
	done  chan struct{}
	ended bool
}

type tenantLoad struct {
	running, waiting int
	arriving         int           // requests whose bodies are on their way
	bodies           *bodies.Room  // the memory of those bodies; nil if there was none
	conns            chan struct{} // one place for each connection that the tenant's handlers may hold
	connUsers        int           // handlers that hold a connection or wait for one
}

// admit counts a request of a tenant. It returns false if the tenant has reached its limit. After
// true the caller must call leave.
func (f *flights) admit(tenant string, limit int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.lockedTenant(tenant)
	if t.running >= limit {
		return false
	}
	t.running++
	return true
}

// expectBody counts a request of a tenant whose body is on its way, and returns the room for the
// bodies of the tenant's requests, of so many bytes. Such a request takes no place of those that
// run: a client that does not send its body would hold it (H6). After true the caller must call
// bodyEnded. If no further request may run now, expectBody returns false.
func (f *flights) expectBody(tenant string, limit, most int) (room *bodies.Room, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.lockedTenant(tenant)
	if t.running >= limit {
		return nil, false
	}
	if t.bodies == nil {
		t.bodies = bodies.NewRoom(int64(most))
	}
	t.arriving++
	return t.bodies, true
}

// bodyEnded is for a body that is complete, or is given up.
func (f *flights) bodyEnded(tenant string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	t.arriving--
	f.removeIdle(tenant, t)
}

// leave ends what admit has counted.
func (f *flights) leave(tenant string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	t.running--
	f.removeIdle(tenant, t)
}

// reserveConn waits until a handler of the tenant may hold a connection of the tenant's share. It
// returns false if ctx ends first. After true, the caller must call releaseConn. Waiting happens
// here and not in the pool, because other tenants wait in the pool.
func (f *flights) reserveConn(ctx context.Context, tenant string, share int) bool {
	f.mu.Lock()
	t := f.lockedTenant(tenant)
	if t.conns == nil {
		t.conns = make(chan struct{}, share)
	}
	t.connUsers++
	f.mu.Unlock()
	select {
	case t.conns <- struct{}{}:
		return true
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.connUsers--
	f.removeIdle(tenant, t)
	return false
}

// releaseConn gives back what reserveConn has taken.
func (f *flights) releaseConn(tenant string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	<-t.conns
	t.connUsers--
	f.removeIdle(tenant, t)
}

// lockedTenant returns a tenant, and makes it if it has no request. The caller counts something in
// it, and removeIdle takes it away.
func (f *flights) lockedTenant(tenant string) *tenantLoad {
	t := f.tenants[tenant]
	if t == nil {
		t = &tenantLoad{}
		f.tenants[tenant] = t
	}
	return t
}

// removeIdle removes a tenant that has no request.
func (f *flights) removeIdle(tenant string, t *tenantLoad) {
	if t.running == 0 && t.connUsers == 0 && t.arriving == 0 {
		delete(f.tenants, tenant)
	}
}

// running returns a channel that is closed when this process's request with the key ends, or nil if
// there is none.
func (f *flights) running(id [16]byte) (ahead <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.byKey[id]; running != nil {
		return running.done
	}
	return nil
}

// start takes a key for a request of this process, which gives it back with end. If another request
// has it, start returns a channel that is closed when that one ends.
func (f *flights) start(id [16]byte) (mine *flight, ahead <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.byKey[id]; running != nil {
		return nil, running.done
	}
	mine = &flight{key: id, done: make(chan struct{})}
	f.byKey[id] = mine
	return mine, nil
}

// end gives a key back. If the request was abandoned, it has been given back before.
func (f *flights) end(one *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !one.ended {
		one.ended = true
		close(one.done)
		delete(f.byKey, one.key)
	}
}

// wait waits until the request with the key ends, or, if another process works on it, until it is
// time to look again. It returns false if the caller must not wait any longer. It holds no
// connection.
func (f *flights) wait(
	client context.Context,
	id [16]byte,
	tenant string,
	ahead <-chan struct{},
	n int,
	deadline time.Time,
) bool {
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
	if ahead == nil { // another process works on it
		pause = min(pause, firstPollPause<<min(n, 4))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ahead:
	case <-timer.C:
	case <-client.Done():
		return false
	}
	return time.Until(deadline) > 0 || ahead != nil
}

// firstPollPause is the first pause between two looks at a key that another process works on. It
// doubles, four times at most.
const firstPollPause = 25 * time.Millisecond

// recentKeys remembers keys that have a record, as far as this process knows. Copies of those
// requests are answered with one query, and new requests claim their key without looking for a
// record first. It may forget any key, and it decides nothing: the claim itself looks for a record
// too.
type recentKeys struct {
	slots [1 << 15]atomic.Uint64
}

func (s *recentKeys) slot(id [16]byte) (*atomic.Uint64, uint64) {
	mark := binary.BigEndian.Uint64(id[8:]) // random in every id
	return &s.slots[mark%uint64(len(s.slots))], mark
}

func (s *recentKeys) add(id [16]byte) {
	slot, mark := s.slot(id)
	slot.Store(mark)
}

func (s *recentKeys) has(id [16]byte) bool {
	slot, mark := s.slot(id)
	return slot.Load() == mark
}
