package consumer

import (
	"context"
	"errors"
	"fmt"
)

// Router calls a handler for each type of message:
//
//	routes := consumer.Router{
//		By: consumer.HeaderKey("event-type"),
//		Handlers: map[string]consumer.Handler{
//			"order.placed":   consumer.Decode(consumer.JSON, placed),
//			"order.canceled": consumer.Decode(consumer.JSON, canceled),
//		},
//	}
//	c, err := consumer.New(pool, source, routes.Handler(), cfg)
type Router struct {
	// By returns the type of a message: [HeaderKey], [JSONKey], or a function of yours, for example
	// of the topic. If it returns an error, the message counts as one of an
	// unknown type. Required.
	By KeyFunc

	// Handlers are the handlers by type. At least one is required, and each must be non-nil.
	Handlers map[string]Handler

	// Unknown handles messages of all other types. Use [Skip] to pass over them. Defaults to a
	// [Permanent] error: they are parked, and can be redriven once there is a handler.
	Unknown Handler
}

// Skip is a Handler without effects: the message counts as applied. See Router.Unknown.
func Skip(context.Context, Tx, *Message) error { return nil }

// Handler returns the router as a handler. It panics if a required field is not set, because that
// is a fault of the program. Later changes of the router's fields have no effect on it.
func (r Router) Handler() Handler {
	if r.By == nil {
		panic("consumer: Router.By: must not be nil")
	}
	if err := keyFuncFault(r.By); err != nil {
		panic(fmt.Sprintf("consumer: Router.By: %v", err))
	}
	if len(r.Handlers) == 0 {
		panic("consumer: Router.Handlers: must not be empty")
	}
	handlers := make(map[string]Handler, len(r.Handlers))
	for name, h := range r.Handlers {
		if h == nil {
			panic(fmt.Sprintf("consumer: Router.Handlers[%q]: must not be nil", name))
		}
		handlers[name] = h
	}
	return func(ctx context.Context, tx Tx, m *Message) error {
		name, err := r.By(m)
		switch h := handlers[name]; {
		case err == nil && h != nil:
			return h(ctx, tx, m)
		case r.Unknown != nil:
			return r.Unknown(ctx, tx, m)
		case err != nil:
			if wrapped, is := err.(interface{ Unwrap() []error }); is && errors.Is(err, ErrNoKey) { //nolint:errorlint // of noKey
				err = wrapped.Unwrap()[1] // what is missing is no id here
			}
			return Permanent(fmt.Errorf("the message's type: %w", err))
		}
		return Permanent(fmt.Errorf("the message's type %.100q has no handler in Router.Handlers", name))
	}
}
