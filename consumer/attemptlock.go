package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/imagined"
)

// attemptLock keeps a message that may kill its process apart from everything else that this
// process works on (F9). Attempts are counted before they run, so a process that dies leaves a
// count for each attempt that was under way. One of them was the cause; the others were neighbours,
// on other partitions. So a message with such a count is tried with no other attempt under way: if
// the process dies again, that message was the cause.
//
// An attempt takes the lock shared or alone, before it is counted, and releases it when it has
// ended. One that waits to be alone goes before those that want to share. It waits only for
// attempts that are under way, each of which has bounds. An attempt under way never waits for one
// that has not begun.
type attemptLock struct {
	mu               sync.Mutex
	holders          int  // attempts under way
	exclusive        bool // the only one of them has asked to be alone
	exclusiveWaiting int  // attempts that wait to be alone
	changed          chan struct{}
}

// processLock is shared by all consumers of a process, because one of them kills the partitions of
// the others too.
var processLock = &attemptLock{}

// newAttemptLock returns the lock of a new consumer. Tests give each consumer its own.
var newAttemptLock = func() *attemptLock { return processLock }

// acquire waits until the attempt may begin, and returns the function that releases the lock. It
// fails if ctx ends first, or if the bound for being alone has passed.
func (t *attemptLock) acquire(ctx context.Context, alone bool, bound time.Duration) (leave func(), err error) {
	var late <-chan time.Time
	t.mu.Lock()
	if alone {
		timer := time.NewTimer(bound)
		defer timer.Stop()
		late = timer.C
		t.exclusiveWaiting++
		defer func() {
			t.mu.Lock()
			t.exclusiveWaiting--
			t.wakeWaiters()
			t.mu.Unlock()
		}()
	}
	defer t.mu.Unlock()
	for {
		if alone && t.holders == 0 || !alone && !t.exclusive && t.exclusiveWaiting == 0 {
			t.holders++
			t.exclusive = alone
			return sync.OnceFunc(t.release), nil
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			err = fmt.Errorf("a message that may have killed a process waits for a moment in which this process handles nothing else, and found none in %v", bound)
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

func (t *attemptLock) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holders--
	t.exclusive = false
	t.wakeWaiters()
}

func (t *attemptLock) wakeWaiters() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// lockAttempts waits for the engine's turn. While an attempt is alone, the engine knows that
// nothing else of the process is under way.
func (e *engine) lockAttempts(ctx context.Context, alone bool) (leave func(), err error) {
	cfg := &e.c.cfg
	bound := 2 * (cfg.BatchTimeout + cfg.HangTimeout + cfg.Timeouts.Commit + cfg.Timeouts.Lock + cfg.Timeouts.Statement)
	leave, err = imagined.Shared(ctx, e.c.attempts).acquire(ctx, alone, bound)
	e.exclusive = alone && err == nil
	return leave, err
}
