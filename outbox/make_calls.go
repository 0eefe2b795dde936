package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
	"github.com/onlyonce/onlyonce/seal"
)

// laneCalls makes the calls of a lane, in goroutines of their own. It belongs to the goroutine of
// the lane's owner.
type laneCalls struct {
	lane *heldLane
	// ctx is the context of calls. The end of the drain cuts it off while the lease is still held.
	ctx      context.Context
	cancel   context.CancelFunc
	underWay int            // started, and neither taken in nor given up
	begun    []*callAttempt // those and some others, in the order in which they are overdue
	returned returnedCalls
}

func newLaneCalls(lane *heldLane) *laneCalls {
	c := &laneCalls{lane: lane, returned: returnedCalls{signal: make(chan struct{}, 1)}}
	c.ctx, c.cancel = context.WithCancel(lane.ctx)
	return c
}

// start makes calls, each of which has its ticket. Each of them comes back once, by returned.add,
// whatever becomes of it. New calls are made together if the sink is a Batcher. Each other call is
// made in a goroutine of its own. A parked call is always made alone, so that if it brings the sink
// down again, it affects no other call.
func (c *laneCalls) start(calls ...*callAttempt) {
	var together []*callAttempt
	overdueAt := time.Now().Add(c.lane.sink.limits.Timeout + c.lane.sink.returnGrace)
	if len(c.begun) > 2*c.underWay+64 { // behind one that takes long there may be many with their bodies
		c.begun = slices.DeleteFunc(c.begun, (*callAttempt).over)
	}
	for _, a := range calls {
		a.lane = c.lane
		a.bound = a
		a.overdueAt = overdueAt
		c.begun = append(c.begun, a)
		c.underWay++
		if c.lane.sink.batcher != nil && a.parked == 0 {
			together = append(together, a)
		} else {
			go c.makeCall(a)
		}
	}
	if len(together) > 0 {
		go c.makeBatch(together)
	}
}

// take returns the calls that have returned since it was called last. The caller ends their
// tickets.
func (c *laneCalls) take() []*callAttempt {
	calls := c.returned.takeAll()
	for _, a := range calls {
		a.tookIn = true
		if !a.gaveUp.Load() { // else it was taken off when it was given up
			c.underWay--
		}
	}
	return calls
}

// cutOff ends the contexts of all calls.
func (c *laneCalls) cutOff() {
	c.cancel()
	overdueAt := time.Now().Add(c.lane.sink.returnGrace)
	for _, a := range c.begun {
		if overdueAt.Before(a.overdueAt) {
			a.overdueAt = overdueAt
		}
	}
}

// due is when the next call is given up unless it returns.
func (c *laneCalls) due(time.Time) time.Time {
	for len(c.begun) > 0 && c.begun[0].over() {
		c.begun = c.begun[1:]
	}
	if len(c.begun) == 0 {
		return never
	}
	return c.begun[0].overdueAt
}

// giveUp gives up the calls that are overdue: no sink is trusted to return. Their slots go to other
// calls. Their rows stay under way in this relay, so that it does not make them again beside an
// attempt that may still be going on, and a result that comes after all is settled (O18).
func (c *laneCalls) giveUp() error {
	now := time.Now()
	for _, a := range c.begun {
		if a.over() || now.Before(a.overdueAt) {
			continue
		}
		where := c.lane.sink.whereIs(a)
		if !c.lane.sink.stuck.giveUp(a, where) {
			continue
		}
		c.underWay--
		a.ticket.Abandon()
		c.lane.sink.cfg.Logger.Error("onlyonce: a call has not come back although its context has ended; "+
			"its slot is given to others",
			"sink", c.lane.sink.name, "lane", c.lane.number, "key", a.Key, "row", a.ID, "where", where)
	}
	return nil
}

// await waits until every call has returned or was given up, and ends their tickets. Their results
// are dropped: the lease is over, and the rows are sent again under the same keys. What was given
// up and returns later ends its ticket itself.
func (c *laneCalls) await() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for c.underWay > 0 {
		timer.Reset(time.Until(c.due(time.Now())))
		select {
		case <-c.returned.signal:
			c.endTickets(c.take())
		case <-timer.C:
			_ = c.giveUp()
		}
	}
	c.endTickets(c.returned.close())
}

// endTickets ends the tickets of calls that have returned to a lane that is over.
func (c *laneCalls) endTickets(calls []*callAttempt) {
	c.lane.sink.gate.Done(ticketsOf(calls)...)
}

func ticketsOf(calls []*callAttempt) []*gate.Ticket {
	all := make([]*gate.Ticket, len(calls))
	for i, a := range calls {
		all[i] = a.ticket
	}
	return all
}

// returnedCalls holds calls of a lane that have returned, until the lane's goroutine takes them in.
type returnedCalls struct {
	mu     sync.Mutex
	calls  []*callAttempt
	closed bool          // the lane is over: nobody takes in any more
	signal chan struct{} // holds a token while there are any
}

// add is how calls come back to their lane: each that was started, once, also one that was refused
// before the sink got it. It never waits. If the lane is over, it ends the calls' tickets.
func (r *returnedCalls) add(calls ...*callAttempt) {
	if len(calls) == 0 {
		return
	}
	sink := calls[0].lane.sink
	tickets := ticketsOf(calls) // once the lane has the calls, it takes them away
	sink.gate.Returned(tickets...)
	sink.remote.returned(calls...)
	sink.stuck.noteReturned(calls...)
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.calls = append(r.calls, calls...)
	}
	r.mu.Unlock()
	if closed {
		sink.gate.Done(tickets...)
		return
	}
	pace.Signal(r.signal)
}

// close returns the calls that are there. The lane takes in no others.
func (r *returnedCalls) close() []*callAttempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *returnedCalls) takeAll() []*callAttempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// goroutineEnded is the reason if a sink ends the goroutine that it is called in.
const goroutineEnded = "the sink ended its goroutine"

// panicked is the result of a call that panics: a panic must not end all other calls. The row keeps
// only the type, because the value may be a payload.
func panicked(v any) Result {
	return Failure(fmt.Sprintf("it panicked (%T)", v), fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
}

// makeCall makes one attempt, or completes or reconciles a call. No transaction is open (T10),
// except a completion's own.
func (c *laneCalls) makeCall(a *callAttempt) {
	defer c.returned.add(a) // deferred, because a sink may end its goroutine
	a.result = Failure(goroutineEnded, nil)
	defer func() {
		if v := recover(); v != nil { // a failpoint's, or a Sealer's
			a.result = panicked(v)
		}
	}()
	ctx, cancel := context.WithTimeout(c.ctx, c.lane.sink.limits.Timeout)
	defer cancel()
	switch {
	case a.completing():
		c.observe(ctx, a, c.complete)
	case a.reconciling:
		c.observe(ctx, a, c.reconcile)
	case c.prepareCall(a):
		c.lane.sink.remote.began(a)
		c.observe(ctx, a, c.send)
	}
}

// observe runs an attempt between its hooks, also if it panics or ends its goroutine.
func (c *laneCalls) observe(ctx context.Context, a *callAttempt, attempt func(context.Context, *callAttempt)) {
	hooks := &c.lane.sink.cfg.Hooks
	ctx = a.began(ctx, hooks)
	defer func() {
		if v := recover(); v != nil {
			a.result = panicked(v)
		}
		a.ended(ctx, hooks)
	}()
	attempt(ctx, a)
}

// prepareCall prepares an attempt, and reports whether the sink is to make it. If not, a.result has
// the reason, and the caller hands the call back like one that has returned.
func (c *laneCalls) prepareCall(a *callAttempt) bool {
	if err := a.mayStart(); err != nil {
		a.result = Failure(err.Error(), err)
		return false
	}
	if !c.openBody(a) {
		return false
	}
	a.mayHaveLeft = true
	if err := fault.Point(fault.RelayCalling); err != nil {
		a.result = Failure(err.Error(), err)
		return false
	}
	return true
}

// recordResult records the sink's result of an attempt.
func (c *laneCalls) recordResult(a *callAttempt, r Result) {
	a.result = r
	if err := fault.Point(fault.RelayCalled); err != nil {
		a.result = Failure(err.Error(), err)
	}
	c.lane.sink.remote.answered(a, a.result)
	a.result = c.lane.sink.refusals.judge(a.Tenant, a.result)
	switch r := a.result; {
	case slices.Contains([]AttemptOutcome{Delivered, Rejected, Never, Unsafe}, r.Outcome):
		c.lane.sink.gate.Answered(a.Tenant)
	case r.Outcome.answer().Again && r.RetryScope != RetryCall && max(r.RetryAfter, r.HoldFor) > 0:
		c.lane.sink.holdCalls(a.Tenant, r)
	}
}

// send makes one attempt at a call.
func (c *laneCalls) send(ctx context.Context, a *callAttempt) {
	c.recordResult(a, c.lane.sink.sink.Send(ctx, &a.Attempt))
}

// gatherReturned is for how long the first call of a SendBatch that comes back waits for others.
// The lane takes them in together then, and the calls that follow in their slots are sent together
// too.
const gatherReturned = time.Millisecond

// sentBatch is the calls of one SendBatch. It hands each back to the lane once, whether the call
// was refused before the sink got it, the sink said how it ended, or the sink said nothing. A
// second result for a call, or one that comes after SendBatch has returned, is ignored.
type sentBatch struct {
	lane     *laneCalls
	calls    []*callAttempt
	contexts []context.Context // of the attempts, if there are hooks
	ended    []atomic.Bool     // which calls have an end

	mu     sync.Mutex
	owed   int            // how many have not come back
	back   []*callAttempt // that have, and wait for others
	gather *time.Timer    // ends that wait
}

func newSentBatch(lane *laneCalls, calls []*callAttempt) *sentBatch {
	return &sentBatch{
		lane:  lane,
		calls: calls,
		ended: make([]atomic.Bool, len(calls)),
		owed:  len(calls),
		back:  make([]*callAttempt, 0, len(calls)),
	}
}

// end ends a call, unless it has ended, and hands it back. note notes what became of it.
func (b *sentBatch) end(i int, note func(*callAttempt)) {
	if b.ended[i].Swap(true) {
		return
	}
	defer b.handBack(b.calls[i]) // deferred, because a hook may panic
	note(b.calls[i])
}

// handBack hands a call back: with others that come back at once, and the last at once.
func (b *sentBatch) handBack(a *callAttempt) {
	b.mu.Lock()
	b.back = append(b.back, a)
	b.owed--
	last := b.owed == 0
	if !last && b.gather == nil {
		b.gather = time.AfterFunc(gatherReturned, b.flush)
	}
	b.mu.Unlock()
	if last {
		b.flush()
	}
}

// flush gives the lane the calls that wait.
func (b *sentBatch) flush() {
	b.mu.Lock()
	back := b.back
	b.back = nil
	if b.gather != nil {
		b.gather.Stop()
		b.gather = nil
	}
	b.mu.Unlock()
	b.lane.returned.add(back...)
}

// makeBatch makes one attempt at each of several calls, by one SendBatch.
func (c *laneCalls) makeBatch(calls []*callAttempt) {
	b := newSentBatch(c, calls)
	rest := Failure(goroutineEnded, nil)
	defer func() {
		if v := recover(); v != nil {
			rest = panicked(v)
		}
		for i := range calls {
			b.answered(i, rest)
		}
	}()
	var sent []int
	for i, a := range calls {
		if c.prepareCall(a) {
			sent = append(sent, i)
		} else {
			b.end(i, func(*callAttempt) {}) // its result has the reason
		}
	}
	if len(sent) > 0 {
		c.sendTogether(b, sent)
	}
	rest = Failure("the sink did not say how the call ended", nil)
}

// answered ends a call as the sink says.
func (b *sentBatch) answered(i int, r Result) {
	b.end(i, func(a *callAttempt) {
		b.lane.recordResult(a, r)
		if b.contexts != nil && b.contexts[i] != nil {
			a.ended(b.contexts[i], &b.lane.lane.sink.cfg.Hooks)
		}
	})
}

// sendTogether makes one attempt at each of the calls of a batch that are prepared.
func (c *laneCalls) sendTogether(b *sentBatch, sent []int) {
	ctx, cancel := context.WithTimeout(c.ctx, c.lane.sink.limits.Timeout)
	defer cancel()
	hooks := &c.lane.sink.cfg.Hooks
	if hooks.AttemptStart != nil || hooks.AttemptEnd != nil {
		b.contexts = make([]context.Context, len(b.calls))
	}
	all := make([]*Attempt, len(sent))
	began := make([]*callAttempt, len(sent))
	for n, i := range sent {
		a := b.calls[i]
		all[n] = &a.Attempt
		began[n] = a
		a.together = len(sent)
		if b.contexts != nil {
			b.contexts[i] = a.began(ctx, hooks)
		}
	}
	c.lane.sink.remote.began(began...)
	c.lane.sink.batcher.SendBatch(ctx, all, func(n int, r Result) { b.answered(sent[n], r) })
}

// openBody decrypts a body that is sealed, under the key that it was sealed under (O13). If it
// cannot be opened, a.result has the reason, no call is made and no attempt counts. A body that
// will never open waits for an operator. After any other error another try may help, for example
// once the key is deployed.
func (c *laneCalls) openBody(a *callAttempt) bool {
	if !a.sealed {
		return true
	}
	body := []byte(nil)
	err := errors.New("RelayConfig.Sealer is not set, and the call was sealed")
	if c.lane.sink.cfg.Sealer != nil {
		body, err = c.lane.sink.cfg.Sealer.Open(a.firstKey, a.Body)
	}
	if err == nil {
		a.Body = body
		a.sealed = false
		return true
	}
	a.unopened = true
	reason := "the body cannot be opened: " + err.Error()
	a.result = Failure(reason, err)
	if errors.Is(err, seal.ErrValue) {
		a.result = Failure(reason, Permanent(err))
	}
	return false
}

// completeSQL is the fence of a completion; see the function's comment in the migration. It settles
// the call's row, so that the completion's writes commit once, together with that. If another call
// has the row's id by now (see settleSQL), it asks for row 0, which does not exist: OO001 (O3).
var completeSQL = newStatement(`
select onlyonce.settle(
  cursor_id => @lease,
  epoch => @epoch,
  nonce => @nonce::uuid,
  parked_id => coalesce((select p.id from onlyonce.parked p where p.id = @parked and p.key = @key::uuid), 0),
  attempts => @attempt,
  key => null,
  fingerprint => null,
  lock_timeout => @timeout,
  statement_timeout => @timeout,
  idle_timeout => @timeout
)`)

// complete passes an answer to RelayConfig.Complete, in a transaction that settles the call.
func (c *laneCalls) complete(ctx context.Context, a *callAttempt) {
	if c.lane.sink.cfg.Complete == nil {
		a.result = Failure("RelayConfig.Complete is not set, and the call asks for it (Call.Capture)", nil)
		return
	}
	if !c.openBody(a) {
		return
	}
	// The transaction holds up a take-over of the lane (onlyonce.hold_long), so it is bounded. It
	// does not hold up renewals (T14).
	ctx, cancel := context.WithTimeout(ctx, c.lane.sink.dbTimeout)
	defer cancel()
	select {
	case c.lane.sink.completing <- struct{}{}: // leaves some connections to renew leases and to move cursors
		defer func() { <-c.lane.sink.completing }()
	case <-ctx.Done():
		a.result = Failure("RelayConfig.Complete was not called: other completions held the connections "+
			"that it may use", ctx.Err())
		return
	}
	conn, err := c.lane.sink.pool.Acquire(ctx)
	if err != nil {
		a.result = Failure("RelayConfig.Complete was not called: the pool gave no connection", err)
		return
	}
	defer conn.Release()
	tx := guard.Begin(conn.Conn())
	defer tx.Rollback(c.lane.sink.dbTimeout)
	tx.Engine("fence", completeSQL.sql, completeSQL.args(pgx.NamedArgs{
		"lease":   c.lane.lease.ID,
		"epoch":   c.lane.lease.Epoch,
		"nonce":   c.lane.lease.Nonce,
		"parked":  a.parked,
		"key":     codec.UUID(a.key),
		"attempt": a.Number,
		"timeout": guard.Millis(c.lane.sink.dbTimeout),
	})...)
	tx.Report = func(err error) {
		c.lane.sink.cfg.Logger.Error("onlyonce: RelayConfig.Complete queued a statement after it had "+
			"returned; it was not sent", "sink", a.Sink, "error", err)
	}
	// If the database loses this transaction, calls that it enqueues may have been made since the
	// call was first made, and not before. If the call's key is older than its row, its message was
	// handled again, and the call may have been completed before, with the same calls (O1, O6).
	handle := tx.Lend(&origin.Origin{
		Tenant:  a.Tenant,
		Scope:   a.Scope,
		ID:      "completion of " + a.Key,
		Time:    a.readAt.Add(-a.age),
		Redo:    a.age > a.waited,
		Trace:   a.Trace,
		TraceOf: c.lane.sink.cfg.Trace,
	})
	err = c.lane.sink.cfg.Complete(ctx, handle, &a.Attempt, a.answer)
	tx.TakeBack()
	if failed := tx.Failure(); failed != nil && (err == nil || !errors.Is(err, failed)) {
		err = errors.Join(failed, err)
	}
	if err == nil {
		err = tx.Commit(c.lane.sink.dbTimeout)
	}
	if err == nil {
		a.result = Result{Outcome: Delivered}
		return
	}
	a.result = Failure("completion: "+err.Error(), fmt.Errorf("outbox: completing call %s: %w", a.Key, err))
}

// reconcile asks RelayConfig.Reconcile whether a call whose key the remote may have forgotten was
// applied.
func (c *laneCalls) reconcile(ctx context.Context, a *callAttempt) {
	a.decision = notKnown
	if !c.openBody(a) {
		return
	}
	applied, err := c.lane.sink.cfg.Reconcile(ctx, &a.Attempt)
	switch {
	case err != nil:
		a.result = Failure("RelayConfig.Reconcile: "+err.Error(), err)
	case applied:
		a.decision = wasApplied
	default:
		a.decision = wasNotApplied
	}
}
