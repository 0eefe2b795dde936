package webhook

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// Errors of inline handlers.
var (
	// ErrHandlerTimeout: the handler's context ended because three quarters of Config.Deadline had passed.
	ErrHandlerTimeout = errors.New("webhook: the handler took too long")
	// errLeftBehind: and it did not return even then. Its connection is cut, so that the server rolls back.
	errLeftBehind = errors.New("webhook: the handler does not return although its context has ended")
	errGoexit     = errors.New("webhook: the handler called runtime.Goexit")
)

// handle runs the handler in a goroutine of its own, so that one that calls Goexit ends nothing else, and one that does not return can be left
// behind with the sender answered in time. From then on only that goroutine uses tx.
func (a *attempt) handle(ctx context.Context, tx *guard.Tx) error {
	at, _ := ctx.Deadline()
	work, cancel := context.WithDeadlineCause(ctx, at.Add(-a.cfg.Deadline/4), ErrHandlerTimeout)
	defer cancel()
	done, lent := make(chan error, 1), tx.Handle
	go func() {
		err := errGoexit // unless it returns
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
			}
			tx.TakeBack() // it waits for goroutines of the handler that are in a call
			done <- err
		}()
		err = a.cfg.Handler(work, lent, a.message(a.item))
		if err != nil {
			_ = err.Error() // of a nil pointer, say, where a panic is still recovered
		}
	}()
	var err error
	select {
	case err = <-done:
	case <-work.Done():
		grace := time.NewTimer(a.cfg.Deadline / 8)
		defer grace.Stop()
		select {
		case err = <-done:
		case <-grace.C:
			return errLeftBehind
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", context.Cause(work), err)
		}
	}
	if err != nil {
		var failed *guard.Failure
		a.handler = !errors.As(err, &failed) || !tx.Lost()
	}
	return err
}
