// Package attemptlock keeps a message that may kill its process apart from all other work.
package attemptlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/process"
)

// Lock keeps a message that may kill its process apart from everything else that this process works
// on: it is tried with no other attempt under way, so if the process dies again, that message was
// the cause (F9).
//
// An attempt takes the lock shared or alone, before it is counted, and releases it when it has
// ended. One that waits to be alone goes before those that want to share. It waits only for
// attempts that are under way, each of which has bounds. An attempt under way never waits for one
// that has not begun.
type Lock struct {
	mu               sync.Mutex
	holders          int  // attempts under way
	exclusive        bool // the only one of them has asked to be alone
	exclusiveWaiting int  // attempts that wait to be alone
	changed          chan struct{}
}

// Of returns the lock of the process, or of the imaginary process, that ctx is of. All consumers
// share it, because one of them kills the partitions of the others too.
func Of(ctx context.Context) *Lock { return process.Shared[Lock](ctx) }

// Acquire waits until the attempt may begin, and returns the function that releases the lock. The
// caller must call it when the attempt has ended, on every path; calls after the first do nothing.
// Acquire fails if ctx ends first, or if the bound for being alone has passed; then there is
// nothing to release.
func (l *Lock) Acquire(ctx context.Context, alone bool, bound time.Duration) (release func(), err error) {
	var late <-chan time.Time
	l.mu.Lock()
	if alone {
		timer := time.NewTimer(bound)
		defer timer.Stop()
		late = timer.C
		l.exclusiveWaiting++
		defer func() {
			l.mu.Lock()
			l.exclusiveWaiting--
			l.wakeWaiters()
			l.mu.Unlock()
		}()
	}
	defer l.mu.Unlock()
	for {
		free := !l.exclusive && l.exclusiveWaiting == 0
		if alone {
			free = l.holders == 0
		}
		if free {
			l.holders++
			l.exclusive = alone
			return sync.OnceFunc(l.release), nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			err = fmt.Errorf("a message that may have killed a process waits for a moment in which this "+
				"process handles nothing else, and found none in %v", bound)
		case <-ctx.Done():
			err = ctx.Err()
		}
		l.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

func (l *Lock) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holders--
	l.exclusive = false
	l.wakeWaiters()
}

func (l *Lock) wakeWaiters() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
