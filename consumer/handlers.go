package consumer

import (
	"context"
	"errors"
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
