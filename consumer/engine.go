package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/internal/attemptlock"
	"github.com/onlyonce/onlyonce/consumer/source"
	brakes "github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// Steps of the engine's statements.
const (
	stepBegin = "begin" // see guard
	stepFence = "fence"
	stepClaim = "claim"
	stepAge   = "age"
	stepOrder = "order"
	stepPark  = "park"
	stepHook  = "hook" // Config.OnBegin and OnParked, see guard
	stepSeal  = "seal"
)

// ownership is what this process knows of a partition that it owns. The worker and its retrier, two
// goroutines, share it: after the take-over it does not change.
type ownership struct {
	c     *Consumer
	id    source.Identity
	cur   *cursor // what this process owns; nil before the first take-over
	state *partitionState
	brake *brake

	idInTopic bool // ids count within the topic (K8)

	// redoUntil is the offset below which messages may have been handled before: in a history that
	// the database has lost, or before an operator set the position back (O6).
	redoUntil int64
}

// engine runs the transactions of one owned partition. Two goroutines have one each: the worker,
// which reads the log, and the retrier, which reads parked messages. The plan's fence makes each of
// their messages take effect once.
type engine struct {
	ownership

	goroutine      *handlerGoroutine
	exclusive      bool   // the current attempt is the only one of this process
	claimFirstLeft int    // transactions for which the claim goes first, after duplicates were found
	deadlocked     func() // is called when a transaction was undone to end a deadlock; may be nil
	blocked        blockedKeys
}

// caution is what a transaction asks before its handlers run, at the cost of a round trip each. If
// it does not ask, the server raises unless all keys are fresh, and no ordering key is blocked.
type caution struct{ claim, order bool }

// brake is the brake of one partition. The partition's worker and retrier share it.
type brake struct {
	*brakes.Window
	every time.Duration
	halt  atomic.Pointer[HaltError]
}

func newBrake(cfg Brake) *brake {
	return &brake{Window: brakes.Settings(cfg).New(), every: cfg.ProbeInterval}
}

// blockedKeys are ordering keys that were blocked when the database was last asked. It is a guess:
// the database decides.
type blockedKeys map[pgtype.UUID]struct{}

const maxBlockedKeys = 1024

// any reports whether one of the keys was blocked, or may have been: there were too many to note.
func (b blockedKeys) any(keys []pgtype.UUID) bool {
	if len(b) == 0 || len(b) >= maxBlockedKeys {
		return len(b) > 0
	}
	return slices.ContainsFunc(keys, func(k pgtype.UUID) bool { _, was := b[k]; return was })
}

func (b *blockedKeys) note(key pgtype.UUID, blocked bool) {
	switch {
	case !blocked:
		delete(*b, key)
	case *b == nil:
		*b = blockedKeys{key: {}}
	case len(*b) < maxBlockedKeys:
		(*b)[key] = struct{}{}
	}
}

// handlerGoroutine is the goroutine in which a partition's handlers run, one transaction after
// another.
type handlerGoroutine struct {
	work chan func()
	id   uint64
	gone chan struct{}
}

// startHandlerGoroutine starts the goroutine. The engine that has it ends it, with stopHandlers;
// one that is abandoned ends when its handler does.
func startHandlerGoroutine() *handlerGoroutine {
	h := &handlerGoroutine{work: make(chan func()), gone: make(chan struct{})}
	named := make(chan struct{})
	go func() {
		defer close(h.gone)
		h.id = guard.GoroutineID()
		close(named)
		for f := range h.work {
			f()
		}
	}()
	<-named
	return h
}

func (e *engine) haltErrorAt(pos int64, reason HaltReason, detail string, args ...any) *HaltError {
	h := &HaltError{Scope: e.c.cfg.Scope, Group: e.c.source.Group(), TopicPartition: e.id.TopicPartition, Position: pos,
		Reason: reason, Shard: e.c.shard}
	if e.cur != nil && e.cur.replayUntil != nil {
		detail += "; a replay is under way up to offset %d, which interrupted the work at offset %d"
		args = append(args, *e.cur.replayUntil, e.cur.replayResume)
		h.resume = &e.cur.replayResume
	}
	h.Detail = fmt.Sprintf(detail, args...)
	return h
}

// reportRetry reports that something is tried again, and returns the wait before that.
func (e *engine) reportRetry(r RetryEvent, b backoff.BackOff) time.Duration {
	r.Topic = e.id.Topic
	r.Partition = e.id.Partition
	r.Wait = primary.Wait(r.Err, waitAtLeast(r.Err, b.NextBackOff()))
	e.c.cfg.Logger.Warn("onlyonce: trying again", "scope", e.c.cfg.Scope, "topic", r.Topic, "partition", r.Partition,
		"offset", r.Offset, "messages", r.Messages, "attempt", r.Attempt, "wait", r.Wait, "error", r.Err)
	emit(e.c.cfg.Hooks.Retry, r)
	return r.Wait
}

// readOwnCursor reads the cursor. It returns errMoved if an operator has taken over the cursor to
// set its position, and ErrOwnershipLost if it has another owner.
func (e *engine) readOwnCursor(ctx context.Context) (*cursor, error) {
	cur, err := e.c.readCursor(ctx, e.id.Topic, e.id.Partition)
	switch {
	case err != nil:
		return nil, err
	case cur != nil && cur.epoch == e.cur.epoch && cur.nonce == e.cur.nonce:
		return cur, nil
	case cur != nil && (cur.run != e.cur.run || cur.retired):
		return nil, errMoved
	}
	return nil, fmt.Errorf("%w: cursor %d has another owner", source.ErrOwnershipLost, e.cur.id)
}

// acquireLock waits until the engine may begin an attempt, and returns the function that releases
// the lock. The caller owns it from then on: it must call release on each path, also if the attempt
// is not made, because all consumers of the process wait for it. While an attempt is alone, the
// engine knows that nothing else of the process is under way.
func (e *engine) acquireLock(ctx context.Context, alone bool) (release func(), err error) {
	release, err = attemptlock.Of(ctx).Acquire(ctx, alone, 2*e.c.cfg.longest())
	e.exclusive = alone && err == nil
	return release, err
}
