package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// preparedContext is the context of handlers after Config.Prepare. It ends with the attempt, and
// has the values of the context that Prepare returned, which may have ended with Prepare.
type preparedContext struct {
	context.Context
	values context.Context
}

func (c preparedContext) Value(key any) any { return c.values.Value(key) }

// prepare calls Config.Prepare for the messages of a plan, before its transaction, and returns the
// context for the handlers. Errors count as the handler's (T10). If Prepare hangs, its goroutine is
// left to it, and the engine's next attempt begins another one.
func (e *engine) prepare(work context.Context, p *plan) (context.Context, error) {
	cfg := &e.c.cfg
	h := &handlerRun{done: make(chan struct{}), failedIndex: -1}
	for i, v := range e.findIDs(p.msgs) {
		if v == nil {
			own := e.c.forProgram(p.msgs[i])
			h.msgs = append(h.msgs, &own)
			h.index = append(h.index, i)
		}
	}
	if len(h.msgs) == 0 {
		return work, nil
	}
	ctx, cancel := context.WithTimeoutCause(work, cfg.BatchTimeout,
		fmt.Errorf("%w: Config.Prepare ran for Config.BatchTimeout, %v", ErrHandlerTimeout, cfg.BatchTimeout))
	defer cancel()
	if e.goroutine == nil {
		e.goroutine = startHandlerGoroutine()
	}
	prepared := work
	e.goroutine.work <- func() {
		defer close(h.done)
		h.err = errGoexit // unless it returns
		h.err = recoverPanic(func() (err error) {
			prepared, err = cfg.Prepare(ctx, slices.Clone(h.msgs)) // a slice of its own, as a batch handler's
			return err
		})
	}
	select {
	case <-h.done:
	case <-ctx.Done():
		grace := time.NewTimer(cfg.HangTimeout)
		defer grace.Stop()
		select {
		case <-h.done:
		case <-grace.C:
			h.hung = true
			h.stack = stackOf(e.goroutine.id)
			h.timeoutErr = context.Cause(ctx)
			close(e.goroutine.work) // it ends when Prepare does
			e.goroutine = nil
			return work, e.reportHung(work, h, false)
		}
	}
	if errors.Is(h.err, errGoexit) {
		<-e.goroutine.gone
		e.goroutine = nil
	}
	if i := firstFailed(h.err, h.msgs); i >= 0 {
		h.failedIndex = h.index[i]
	}
	switch {
	case h.err == nil && prepared == nil:
		return work, nil
	case h.err == nil:
		return preparedContext{work, prepared}, nil
	case work.Err() != nil:
		return work, context.Cause(work)
	case ctx.Err() != nil:
		return work, &handlerFailure{index: h.failedIndex, err: context.Cause(ctx)}
	case isUnavailable(h.err):
		return work, &hindrance{h.err, h.failedIndex}
	}
	return work, &handlerFailure{index: h.failedIndex, err: h.err}
}
