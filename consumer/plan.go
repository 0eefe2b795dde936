package consumer

import "github.com/jackc/pgx/v5/pgtype"

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
