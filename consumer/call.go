package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Errors of handlers that do not behave.
var (
	// ErrHandlerTimeout is the error of a handler whose context ended because Config.MessageTimeout
	// or Config.BatchTimeout had passed.
	ErrHandlerTimeout = errors.New("handler took too long")

	// ErrHandlerHung is the error of a handler that did not return within Config.HangTimeout after
	// the end of its context.
	ErrHandlerHung = errors.New("handler does not return although its context has ended")

	// ErrHandlerStuck is what Run and Healthy return while such a handler is still running.
	ErrHandlerStuck = errors.New("a handler is stuck")
	errGoexit       = errors.New("handler called runtime.Goexit (testing's FailNow does)")
)

// handling is the handlers' part of one transaction. The handlers run in a goroutine of their own.
// If a handler calls Goexit, nothing else ends. If it does not return, it can be abandoned: from
// then on only that goroutine uses tx and these messages.
type handling struct {
	msgs  []*Message // messages to handle
	index []int      // their indices in the attempt

	// Shared while the goroutine runs.
	at atomic.Int64 // index in msgs of the message that is being handled
	// since is when its handler was called, in nanoseconds after the start of the transaction's
	// handlers.
	since atomic.Int64
	left  atomic.Bool // the goroutine is abandoned
	done  chan struct{}

	// Written by the goroutine before it closes done.
	failedAt int // index in the attempt of the message whose handler failed, -1 if not known
	err      error
	handled  int

	// Written by the engine's goroutine, which waits.
	took    time.Duration
	overdue error // which bound ended the handlers' context
	changed bool  // a handler has changed its messages' bytes
	hung    bool
	stack   string
}

// hand is the goroutine in which a partition's handlers run, one transaction after another.
type hand struct {
	work chan func()
	id   uint64
	gone chan struct{}
}

func newHand() *hand {
	h := &hand{work: make(chan func()), gone: make(chan struct{})}
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

// rest ends the goroutine, and returns when it has ended.
func (e *engine) rest() {
	if e.hand != nil {
		close(e.hand.work)
		<-e.hand.gone
		e.hand = nil
	}
}

// run calls the handler for the messages. It returns when the handler has returned or must be
// abandoned.
func (e *engine) run(work context.Context, tx *guard.Tx, msgs []*Message, index []int) *handling {
	cfg := &e.c.cfg
	h := &handling{msgs: msgs, index: index, done: make(chan struct{}), failedAt: -1}
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	start := time.Now()
	if e.hand == nil {
		e.hand = newHand()
	}
	e.hand.work <- func() {
		defer close(h.done)
		// TakeBack waits for goroutines of the handler that are in a call. The engine, which waits
		// for this goroutine, bounds that.
		defer tx.TakeBack()
		h.err = errGoexit // unless it returns
		h.err = e.handleAll(ctx, tx, h, start)
	}
	defer func() {
		h.took = time.Since(start)
		switch {
		case h.hung:
			close(e.hand.work) // it ends when the handler does
			e.hand = nil
		case errors.Is(h.err, errGoexit):
			<-e.hand.gone
			e.hand = nil
			if e.c.batch == nil {
				h.failedAt = h.index[h.at.Load()]
			}
		}
	}()

	bound := time.NewTimer(min(cfg.MessageTimeout, cfg.BatchTimeout))
	defer bound.Stop()
	for h.overdue == nil && ctx.Err() == nil {
		select {
		case <-h.done:
			return h
		case <-work.Done():
		case <-bound.C:
			all := time.Since(start)
			one := all - time.Duration(h.since.Load())
			switch {
			case all >= cfg.BatchTimeout:
				h.overdue = fmt.Errorf("%w: the transaction's handlers ran for Config.BatchTimeout, %v", ErrHandlerTimeout, cfg.BatchTimeout)
			case e.c.batch == nil && one >= cfg.MessageTimeout:
				h.overdue = fmt.Errorf("%w: Config.MessageTimeout is %v", ErrHandlerTimeout, cfg.MessageTimeout)
			case e.c.batch == nil:
				bound.Reset(min(cfg.BatchTimeout-all, cfg.MessageTimeout-one))
			default:
				bound.Reset(cfg.BatchTimeout - all)
			}
		}
	}
	cancel(h.overdue)
	grace := time.NewTimer(cfg.HangTimeout)
	defer grace.Stop()
	select {
	case <-h.done:
		if h.err == nil && tx.Failure() == nil {
			h.overdue = nil // done in time after all, as far as the database knows
		} else if h.failedAt < 0 && e.c.batch == nil {
			h.failedAt = h.index[h.at.Load()]
		}
	case <-grace.C:
		h.left.Store(true)
		h.hung, h.stack = true, stackOf(e.hand.id)
	}
	return h
}

// handleAll runs in the handlers' goroutine.
func (e *engine) handleAll(ctx context.Context, tx *guard.Tx, h *handling, start time.Time) error {
	if e.c.batch != nil {
		lent := tx.Lend(nil)
		err := e.c.invoke(ctx, lent, h.msgs, func(ctx context.Context) error { return e.c.batch(ctx, lent, h.msgs) })
		if err != nil {
			if i := firstFailed(err, h.msgs); i >= 0 {
				h.failedAt = h.index[i]
			}
			return err
		}
		h.handled = len(h.msgs)
		return nil
	}
	for i, m := range h.msgs {
		if i > 0 && ctx.Err() != nil { // the one before was late; this one would have no time
			h.failedAt = h.index[i]
			return context.Cause(ctx)
		}
		h.at.Store(int64(i))
		h.since.Store(int64(time.Since(start)))
		origin := m.origin()
		err := e.handleOne(ctx, tx.Lend(&origin), m)
		tx.TakeBack()
		if h.left.Load() {
			return ErrHandlerHung
		}
		switch {
		case err != nil:
			h.failedAt = h.index[i]
			return err
		case tx.Failure() != nil:
			return nil //nolint:nilerr // a statement of its or a neighbour's failed: the one who waits knows what to make of it
		}
		h.handled++
	}
	return nil
}

// handleOne calls the message handler, with the middleware around it.
func (e *engine) handleOne(ctx context.Context, tx *guard.Handle, m *Message) error {
	if err := fault.Point(fault.Handling); err != nil {
		return err
	}
	hooks := &e.c.cfg.Hooks
	if hooks.HandleStart != nil {
		ctx = hooks.HandleStart(ctx, m)
	}
	err := errGoexit // unless it returns
	if hooks.HandleEnd != nil {
		defer func() { hooks.HandleEnd(ctx, m, err) }()
	}
	if len(e.c.cfg.Middleware) == 0 {
		err = e.c.call(ctx, tx, m)
	} else {
		one := [1]*Message{m}
		err = e.c.invoke(ctx, tx, one[:], func(ctx context.Context) error { return e.c.handler(ctx, tx, m) })
	}
	if err != nil {
		return err
	}
	return fault.Point(fault.Handled)
}

// call is invoke without middleware and without a closure.
func (c *Consumer) call(ctx context.Context, tx *guard.Handle, m *Message) (err error) {
	defer recovered(&err)
	return probed(c.handler(ctx, tx, m))
}

// Errors of middleware that would lose the message's effects or apply them twice.
var (
	errNotCalled   = errors.New("Config.Middleware returned nil and did not call next: the handler did not run")
	errCalledTwice = errors.New("Config.Middleware called next twice: the handler ran already")
)

// invoke calls the middleware, outermost first, and then the handler, which must run exactly once.
func (c *Consumer) invoke(ctx context.Context, tx Tx, msgs []*Message, last func(context.Context) error) (err error) {
	defer recovered(&err)
	calls := 0
	var at func(i int) func(context.Context) error
	at = func(i int) func(context.Context) error {
		if i == len(c.cfg.Middleware) {
			return func(ctx context.Context) error {
				if calls++; calls > 1 {
					return errCalledTwice
				}
				return last(ctx)
			}
		}
		return func(ctx context.Context) error { return c.cfg.Middleware[i](ctx, tx, msgs, at(i+1)) }
	}
	err = probed(at(0)(ctx))
	switch {
	case calls > 1:
		return errCalledTwice // even if the second call failed
	case calls == 0 && err == nil:
		return errNotCalled
	}
	return err
}

// protect turns a panic into an error.
func protect(fn func() error) (err error) {
	defer recovered(&err)
	return probed(fn())
}

// probed calls the methods of an error that the engine will call, while a panic is still recovered.
// For example, they panic if the error holds a nil pointer.
func probed(err error) error {
	if err != nil {
		_ = err.Error()
		var f *failure
		_ = errors.Is(err, errGoexit) || errors.As(err, &f)
	}
	return err
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
	}
}

// connection is a connection of the pool that may have to be left to a handler that does not
// return.
type connection struct {
	conn *pgxpool.Conn
	once sync.Once
}

func (s *connection) release() { s.once.Do(s.conn.Release) }

// abandon takes the connection out of the pool and cuts it.
func (s *connection) abandon(tx *guard.Tx) {
	s.once.Do(func() {
		s.conn.Hijack() // the pool may open another one
		tx.Abandon()
	})
}

// hung reports an abandoned handler, and returns the error with which the attempt fails.
func (e *engine) hung(work context.Context, h *handling) error {
	at := 0
	if e.c.batch == nil {
		at = int(h.at.Load())
	}
	m := h.msgs[at]
	e.c.leaveBehind(h, Hung{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Stack: h.stack})
	if work.Err() != nil {
		return context.Cause(work)
	}
	index := -1
	if e.c.batch == nil {
		index = h.index[at]
	}
	return &failure{index: index, err: errors.Join(ErrHandlerHung, h.overdue)}
}

// leaveBehind counts an abandoned handler for as long as it runs.
func (c *Consumer) leaveBehind(h *handling, report Hung) {
	c.stuck.Add(1)
	go func() {
		<-h.done
		c.stuck.Add(-1)
	}()
	c.cfg.Logger.Error("onlyonce: handler hangs", "scope", c.cfg.Scope, "topic", report.Topic, "partition", report.Partition,
		"offset", report.Offset, "stack", report.Stack)
	if c.cfg.Hooks.Hung != nil {
		c.cfg.Hooks.Hung(report)
	}
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
