package webhook

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
)

// Errors of inline handlers.
var (
	// errHandlerHangs: the handler did not return even after its context had ended. Its connection
	// is cut, so that the server rolls back.
	errHandlerHangs = fields.Named("webhook: the handler did not return after its context had ended",
		errors.Join(ErrHandler, intake.ErrAbandoned))
	errGoexit = errors.New("webhook: the handler called runtime.Goexit")
)

// runHandler runs the handler in a goroutine of its own, so that a Goexit in it ends nothing else.
// If it does not return, the sender still gets an answer in time. From then on only that goroutine
// uses tx (W12).
func (w way) runHandler(ctx context.Context, tx *guard.Tx, i *incomingEvent) error {
	at, _ := ctx.Deadline()
	work, cancel := context.WithDeadlineCause(ctx, at.Add(-w.cfg.deadline/4), consumer.ErrHandlerTimeout)
	defer cancel()
	done := make(chan error, 1)
	lent := tx.Handle
	go func() {
		err := errGoexit // unless the handler returns
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
			}
			tx.TakeBack() // it waits for the handler's goroutines that are in a call
			done <- err
		}()
		err = w.cfg.Handler.Handle(work, lent, w.inlineMessage(i))
		if err != nil {
			_ = err.Error() // it may panic, for example for a nil pointer: here that is recovered
		}
	}()
	var err error
	select {
	case err = <-done:
	case <-work.Done():
		grace := time.NewTimer(w.cfg.deadline / 8)
		defer grace.Stop()
		select {
		case err = <-done:
		case <-grace.C:
			return errHandlerHangs
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", context.Cause(work), err)
		}
	}
	var failed *guard.Failure
	if err == nil || errors.As(err, &failed) && tx.Lost() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrHandler, err)
}
