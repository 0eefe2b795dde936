package consumer

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/internal/attemptlock"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// How a message is handled, in values:
//
//	plan     what one transaction is to do; nobody writes it after it is made
//	outcome  what became of it; each run of the transaction makes a new one
//	count    what is known of the attempts at a message that is alone, when one of them begins
//	verdict  what follows from policy, count and outcome.err: see judge
//
// A batch is a plan; if its outcome is an error, the batch is repeated or divided (handleBatch). A
// message that is alone is tried until it is settled (handleAlone, for rows retryNext), and a try
// is always the same four steps: it begins, the plan runs, judge judges, and the verdict is
// settled. To set a message aside is another plan, with the disposition in park.

// plan is what one transaction is to do. Nobody writes it after it is made. Its address is what the
// brake knows it by, so it is passed as a pointer.
type plan struct {
	msgs  []*Message
	alone bool         // one message by itself: only such a plan counts against a message
	park  *disposition // set: each message that the database does not object to is parked so, and no handler runs
	fence fence

	// alreadyParked means that the message is a parked row, so no disposition parks it again.
	alreadyParked bool
	// skipClaim leaves the claim out, because the fence makes it.
	skipClaim bool
}

// plan returns the plan for messages of the log, up to next.
func (ap *applier) plan(msgs []*Message, next int64) *plan {
	return &plan{msgs: msgs, fence: ap.fenceOf(msgs, next)}
}

// planAlone returns the plan for a message by itself. If park is set, that sets the message aside.
func (ap *applier) planAlone(m *Message, next int64, park *disposition) *plan {
	p := ap.plan([]*Message{m}, next)
	p.alone = true
	p.park = park
	return p
}

// batch describes the plan for hooks.
func (e *engine) batch(p *plan) Batch {
	from, _ := p.fence.span()
	return Batch{TopicPartition: e.id.TopicPartition, From: from, Messages: len(p.msgs), Alone: p.alone}
}

// outcome is what became of a plan. Each run of the transaction makes a new one; the last one
// counts.
type outcome struct {
	// err is nil if the plan is done. It is a *handlerFailure because of the handler, and otherwise
	// the error of a fault of the server, of the way to it, or of what else is away.
	err error

	result      BatchResult
	parked      []ParkedEvent
	reasons     []string      // of the messages that were applied or parked, in their order: "", or the reason
	blockedKeys []pgtype.UUID // ordering keys of messages that were parked because an earlier one is

	handlerCalled bool // a handler was called
	answerLost    bool // an earlier run has done it, so what it parked is not known: see fence.explain
}

// newOutcome returns the outcome of a run that begins.
func (e *engine) newOutcome(p *plan) outcome {
	_, next := p.fence.span()
	return outcome{result: BatchResult{Batch: e.batch(p), Next: next}}
}

// doneBefore returns the outcome of a plan that an earlier run has done. What that run did cannot
// be known; it may have parked messages.
func (e *engine) doneBefore(p *plan, o outcome) outcome {
	before := e.newOutcome(p)
	before.result.Fallback = o.result.Fallback
	before.result.Duration = o.result.Duration
	before.answerLost = true
	return before
}

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

// ownership is this process's state of a partition that it owns. The worker and its retrier, two
// goroutines, share it: after the take-over it does not change.
type ownership struct {
	c     *Consumer
	id    source.Identity
	cur   *cursor // what this process owns; nil before the first take-over
	state *partitionState
	brake *brake
	// Portions of the statements that delete old rows of progress and of done, and of the one that
	// notes keys of calls.
	progress, done, indexed *pace.Portion

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

// caution has the checks that a transaction makes before its handlers run, at the cost of a round
// trip each. If it does not ask, the server raises unless all keys are fresh, and no ordering key
// is blocked.
type caution struct{ claim, order bool }

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

// acquireLock waits until the engine may begin an attempt, and returns the function that releases
// the lock. The caller owns it from then on: it must call release on each path, also if the attempt
// is not made, because all consumers of the process wait for it. While an attempt is alone, the
// engine knows that nothing else of the process is under way.
func (e *engine) acquireLock(ctx context.Context, alone bool) (release func(), err error) {
	release, err = attemptlock.Of(ctx).Acquire(ctx, alone, 2*e.c.cfg.longest())
	e.exclusive = alone && err == nil
	return release, err
}
