package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/hook"
)

// Handler applies messages: a [HandlerFunc], a [BatchHandlerFunc], a [Router], or a type of yours.
type Handler interface {
	// Handle applies one message. Its writes go through tx, and commit together with the record
	// that the message was processed. If it returns an error, the transaction rolls back, and the
	// consumer tries the message again. If the error is [Permanent] or the attempts are used up,
	// the message is parked. The context ends if the partition must be given up at once.
	//
	// It may run more than once for a message, but only one run's transaction commits. Effects
	// outside tx may therefore happen more than once, so enqueue calls through package outbox
	// instead of sending them. Changes that a run makes to m are not visible to the next one.
	Handle(ctx context.Context, tx Tx, m *Message) error
}

// BatchHandler is for a [Handler] that takes batches. A [Consumer] then calls HandleBatch for all
// messages, and never Handle: a message that is alone is a batch of one. Whatever has no batches
// calls Handle, for example a [Router] and a webhook.Endpoint in mode Inline.
type BatchHandler interface {
	Handler
	// HandleBatch applies a batch of messages in one transaction, for writes of whole sets (unnest,
	// COPY). The messages are in order of offset, and each is new: duplicates are removed before.
	// Otherwise the rules of Handle apply.
	//
	// If it returns an error, the whole batch rolls back. The consumer then divides it until the
	// failing message is alone; return [FailMessage] to name the message at once. Enqueue calls
	// through [TxFor], which names the message that a call is for.
	HandleBatch(ctx context.Context, tx Tx, msgs []*Message) error
}

// HandlerValidate is for a [Handler] that can be configured wrongly.
type HandlerValidate interface {
	// Validate returns all faults of the handler. [New] adds them to those of its configuration.
	Validate() error
}

// HandlerFunc is a function of one message as a [Handler].
type HandlerFunc func(ctx context.Context, tx Tx, m *Message) error

// Handle calls the function.
func (f HandlerFunc) Handle(ctx context.Context, tx Tx, m *Message) error { return f(ctx, tx, m) }

// Validate returns an error if the function is nil.
func (f HandlerFunc) Validate() error { return nilFunc(f == nil) }

// BatchHandlerFunc is a function of a batch as a [BatchHandler].
type BatchHandlerFunc func(ctx context.Context, tx Tx, msgs []*Message) error

// Handle calls the function with a batch of one message.
func (f BatchHandlerFunc) Handle(ctx context.Context, tx Tx, m *Message) error {
	return f(ctx, tx, []*Message{m})
}

// HandleBatch calls the function.
func (f BatchHandlerFunc) HandleBatch(ctx context.Context, tx Tx, msgs []*Message) error {
	return f(ctx, tx, msgs)
}

// Validate returns an error if the function is nil.
func (f BatchHandlerFunc) Validate() error { return nilFunc(f == nil) }

func nilFunc(is bool) error {
	if is {
		return errors.New("must not be nil")
	}
	return nil
}

var (
	_ HandlerValidate = HandlerFunc(nil)
	_ HandlerValidate = Router{}
	_ BatchHandler    = BatchHandlerFunc(nil)
)

// handlerRun is the handlers' part of one transaction. The handlers run in a goroutine of their
// own. If a handler calls Goexit, nothing else ends. If it does not return, it can be abandoned:
// from then on only that goroutine uses tx and these messages.
type handlerRun struct {
	msgs  []*Message // messages to handle
	index []int      // their indices in the attempt

	// Shared while the goroutine runs.
	current atomic.Int64 // index in msgs of the message that is being handled
	// currentSince is when its handler was called, in nanoseconds after the start of the
	// transaction's handlers.
	currentSince atomic.Int64
	abandoned    atomic.Bool // the goroutine is abandoned
	done         chan struct{}

	// Written by the goroutine before it closes done.
	failedIndex int // index in the attempt of the message whose handler failed, -1 if not known
	err         error
	handled     int

	// Written by the engine's goroutine, which waits.
	took       time.Duration
	timeoutErr error // which bound ended the handlers' context
	hookFailed bool  // OnBegin or OnParked has failed before the engine's bound ended
	hung       bool
	stack      string
}

// stopHandlers ends the goroutine, and returns when it has ended.
func (e *engine) stopHandlers() {
	if e.goroutine != nil {
		close(e.goroutine.work)
		<-e.goroutine.gone
		e.goroutine = nil
	}
}

// runHandlers calls the handler for the messages. It returns when the handler has returned or must
// be abandoned (D1).
func (e *engine) runHandlers(work context.Context, tx *guard.Tx, msgs []*Message, index []int) *handlerRun {
	cfg := &e.c.cfg
	h := &handlerRun{msgs: msgs, index: index, done: make(chan struct{}), failedIndex: -1}
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	start := time.Now()
	if e.goroutine == nil {
		e.goroutine = startHandlerGoroutine()
	}
	e.goroutine.work <- func() {
		defer close(h.done)
		// TakeBack waits for goroutines of the handler that are in a call. The engine, which waits
		// for this goroutine, bounds that.
		defer tx.TakeBack()
		h.err = errGoexit // unless it returns
		h.err = e.callHandlers(ctx, tx, h, start)
	}
	defer func() {
		h.took = time.Since(start)
		switch {
		case h.hung:
			close(e.goroutine.work) // it ends when the handler does
			e.goroutine = nil
		case errors.Is(h.err, errGoexit):
			<-e.goroutine.gone
			e.goroutine = nil
			if e.c.batch == nil {
				h.failedIndex = h.index[h.current.Load()]
			}
		}
	}()

	bound := time.NewTimer(min(cfg.HandlerTimeout, cfg.BatchTimeout))
	defer bound.Stop()
	for h.timeoutErr == nil && ctx.Err() == nil {
		select {
		case <-h.done:
			return h
		case <-work.Done():
		case <-bound.C:
			all := time.Since(start)
			one := all - time.Duration(h.currentSince.Load())
			switch {
			case all >= cfg.BatchTimeout:
				h.timeoutErr = fmt.Errorf("%w: the transaction's handlers ran for Config.BatchTimeout, %v",
					ErrHandlerTimeout, cfg.BatchTimeout)
			case e.c.batch == nil && one >= cfg.HandlerTimeout:
				h.timeoutErr = fmt.Errorf("%w: Config.HandlerTimeout is %v", ErrHandlerTimeout, cfg.HandlerTimeout)
			case e.c.batch == nil:
				bound.Reset(min(cfg.BatchTimeout-all, cfg.HandlerTimeout-one))
			default:
				bound.Reset(cfg.BatchTimeout - all)
			}
		}
	}
	cancel(h.timeoutErr)
	grace := time.NewTimer(cfg.HangTimeout)
	defer grace.Stop()
	select {
	case <-h.done:
		if h.err == nil && tx.Failure() == nil {
			h.timeoutErr = nil // done in time after all, as far as the database knows
		} else if h.failedIndex < 0 && e.c.batch == nil {
			h.failedIndex = h.index[h.current.Load()]
		}
	case <-grace.C:
		h.abandoned.Store(true)
		h.hung, h.stack = true, stackOf(e.goroutine.id)
	}
	return h
}

// callHandlers runs in the handlers' goroutine.
func (e *engine) callHandlers(ctx context.Context, tx *guard.Tx, h *handlerRun, start time.Time) (err error) {
	hooks := &e.c.cfg.Hooks
	ctx = begin(ctx, hooks.HandleBatchStart, h.msgs)
	if hooks.HandleBatchEnd != nil {
		err = errGoexit // unless it returns
		defer func() { hooks.HandleBatchEnd(ctx, h.msgs, err) }()
	}
	if e.c.batch != nil {
		// A slice of its own, from which it may delete.
		err := e.c.callThroughMiddleware(ctx, tx.Lend(nil), nil, slices.Clone(h.msgs))
		if err != nil {
			if i := firstFailed(err, h.msgs); i >= 0 {
				h.failedIndex = h.index[i]
			}
			return err
		}
		h.handled = len(h.msgs)
		return nil
	}
	for i, m := range h.msgs {
		if i > 0 && ctx.Err() != nil { // the one before was late; this one would have no time
			h.failedIndex = h.index[i]
			return context.Cause(ctx)
		}
		h.current.Store(int64(i))
		h.currentSince.Store(int64(time.Since(start)))
		origin := m.origin()
		err := e.callMessageHandler(ctx, tx.Lend(&origin), m)
		tx.TakeBack()
		if h.abandoned.Load() {
			return ErrHandlerHung
		}
		switch {
		case err != nil:
			h.failedIndex = h.index[i]
			return err
		case tx.Failure() != nil:
			// A statement of its or a neighbour's failed: the one who waits knows what to make of
			// it.
			return nil //nolint:nilerr
		}
		h.handled++
	}
	return nil
}

// callMessageHandler calls the message handler, with the middleware around it.
func (e *engine) callMessageHandler(ctx context.Context, tx *guard.Handle, m *Message) error {
	if err := fault.Point(fault.Handling); err != nil {
		return err
	}
	hooks := &e.c.cfg.Hooks
	ctx = begin(ctx, hooks.HandleStart, m)
	err := errGoexit // unless it returns
	if hooks.HandleEnd != nil {
		defer func() { hooks.HandleEnd(ctx, m, err) }()
	}
	if len(e.c.cfg.Middleware) == 0 {
		err = e.c.callDirectly(ctx, tx, m)
	} else {
		err = e.c.callThroughMiddleware(ctx, tx, m, nil)
	}
	if err != nil {
		return err
	}
	return fault.Point(fault.Handled)
}

// callDirectly calls the handler of messages. Without middleware it needs no closure.
func (c *Consumer) callDirectly(ctx context.Context, tx *guard.Handle, m *Message) (err error) {
	defer panicToError(&err)
	return probeError(c.handler.Handle(ctx, tx, m))
}

// Errors of middleware that would lose the message's effects or apply them twice.
var (
	errNextNotCalled   = errors.New("Config.Middleware returned nil and did not call next: the handler did not run")
	errNextCalledTwice = errors.New("Config.Middleware called next twice: the handler ran already")
)

// middlewareCall is one call of a handler through the middleware. It holds what the closures need,
// so that a message's call allocates only this, and one closure for each middleware.
type middlewareCall struct {
	c     *Consumer
	tx    *guard.Handle
	m     *Message // for the message handler; nil: call the batch handler
	one   [1]*Message
	msgs  []*Message // for the middleware, and for the batch handler
	calls int        // of the handler
}

// callThroughMiddleware calls the middleware, outermost first, and then the handler, which must run
// exactly once: the message handler with m, or the batch handler with msgs if m is nil.
func (c *Consumer) callThroughMiddleware(
	ctx context.Context,
	tx *guard.Handle,
	m *Message,
	msgs []*Message,
) (err error) {
	defer panicToError(&err)
	call := &middlewareCall{c: c, tx: tx, m: m, msgs: msgs}
	if m != nil {
		call.one[0] = m
		call.msgs = call.one[:]
	}
	err = probeError(call.from(ctx, 0))
	switch calls := call.calls; {
	case calls > 1:
		return errNextCalledTwice // even if the second call failed
	case calls == 0 && err == nil:
		return errNextNotCalled
	}
	return err
}

// from calls the middleware from the i-th on, or the handler if there is none.
func (call *middlewareCall) from(ctx context.Context, i int) error {
	if i < len(call.c.cfg.Middleware) {
		return call.c.cfg.Middleware[i](ctx, call.tx, call.msgs, func(ctx context.Context) error {
			return call.from(ctx, i+1)
		})
	}
	if call.calls++; call.calls > 1 {
		return errNextCalledTwice
	}
	if call.m != nil {
		return call.c.handler.Handle(ctx, call.tx, call.m)
	}
	return call.c.batch.HandleBatch(ctx, call.tx, call.msgs)
}

// callApart calls a function of the program in a goroutine of its own, and turns a panic, and the
// end of that goroutine, into an error. Without it the worker's goroutine would end, and the
// partition would get new ones without end (F9).
func callApart(fn func() error) error {
	return hook.Apart(func() error { return recoverPanic(fn) })
}

// recoverPanic turns a panic into an error.
func recoverPanic(fn func() error) (err error) {
	defer panicToError(&err)
	return probeError(fn())
}

// probeError calls the methods of an error that the engine will call, while a panic is still
// recovered. For example, they panic if the error holds a nil pointer.
func probeError(err error) error {
	if err != nil {
		_ = err.Error()
		var f *handlerFailure
		_ = errors.Is(err, errGoexit) || errors.As(err, &f)
	}
	return err
}

func panicToError(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
	}
}

// reportHung reports an abandoned function of the user's, and returns the error with which the
// attempt fails. ofOne: it had one message, the current one, and not all of them.
func (e *engine) reportHung(work context.Context, h *handlerRun, ofOne bool) error {
	at := int(h.current.Load()) // 0 unless ofOne
	m := h.msgs[at]
	e.c.countStuck(h, HungEvent{
		TopicPartition: source.TopicPartition{Topic: m.Topic, Partition: m.Partition},
		Offset:         m.Offset,
		Stack:          h.stack,
	})
	if work.Err() != nil {
		return context.Cause(work)
	}
	index := -1
	if ofOne {
		index = h.index[at]
	}
	return &handlerFailure{index: index, err: errors.Join(ErrHandlerHung, h.timeoutErr)}
}

// countStuck counts an abandoned handler for as long as it runs.
func (c *Consumer) countStuck(h *handlerRun, report HungEvent) {
	c.stuck.Add(1)
	go func() {
		<-h.done
		c.stuck.Add(-1)
	}()
	c.cfg.Logger.Error("onlyonce: handler hangs",
		"scope", c.cfg.Scope, "topic", report.Topic, "partition", report.Partition, "offset", report.Offset,
		"stack", report.Stack)
	emit(c.cfg.Hooks.Hung, report)
}

// stackOf returns the stack of one goroutine, "" if it cannot be found.
func stackOf(id uint64) string {
	const limit = 64 << 20 // enough for tens of thousands of goroutines
	for size := 1 << 20; ; size *= 4 {
		buf := make([]byte, size)
		n := runtime.Stack(buf, true)
		for _, one := range strings.Split(string(buf[:n]), "\n\n") {
			if strings.HasPrefix(one, "goroutine "+strconv.FormatUint(id, 10)+" ") {
				return one
			}
		}
		if n < size || size >= limit {
			return ""
		}
	}
}

// bytesChanged reports whether a function of the program has changed bytes of a plan's messages
// in place since they were read: Key, Prepare, a handler, or OnParked. The attempt is then undone,
// and the log is read again. From then on each of these functions gets its own copy of all bytes,
// which costs the memory of one more batch (D6).
func (e *engine) bytesChanged(p *plan) bool {
	if !slices.ContainsFunc(p.msgs, func(m *Message) bool { return m.hashContents() != m.contents }) {
		return false
	}
	if !e.c.copyBytes.Swap(true) {
		e.c.cfg.Logger.Error("onlyonce: a handler, or another function of the program, changes its "+
			"message's bytes in place; each gets copies of all bytes from now on",
			"scope", e.c.cfg.Scope, "topic", e.id.Topic, "partition", e.id.Partition)
	}
	return true
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
