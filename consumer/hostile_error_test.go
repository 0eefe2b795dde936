package consumer_test

import (
	"context"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// handlersError is an error type as many services have one: its methods do not expect to be called
// on nil.
type handlersError struct{ cause error }

func (e *handlersError) Error() string { return e.cause.Error() }
func (e *handlersError) Unwrap() error { return e.cause }

// A handler that returns a nil pointer as its error fails its message, and not the process.
func TestErrorThatPanicsIsAFailureOfItsMessage(t *testing.T) {
	t.Parallel()
	unlike(t, "exhausted", func(context.Context, consumer.Tx, *consumer.Message) error {
		var none *handlersError
		return none
	})
}
