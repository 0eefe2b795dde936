package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Router is a [Handler] that calls another one for each type of message:
//
//	routes := consumer.Router{
//		By: consumer.HeaderKey("event-type"),
//		Handlers: map[string]consumer.HandlerFunc{
//			"order.placed":   consumer.Decode(consumer.JSON, placed),
//			"order.canceled": consumer.Decode(consumer.JSON, canceled),
//		},
//	}
//	c, err := consumer.New(pool, source, routes, cfg)
//
// [New] reports a field that is missing. Do not change the map while messages are handled.
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

// Skip is a [HandlerFunc] without effects: the message counts as applied. See Router.Unknown.
func Skip(context.Context, Tx, *Message) error { return nil }

// Validate returns an error for each field that is missing or wrong.
func (r Router) Validate() error {
	l := fields.List{Struct: "Router"}
	if r.By == nil {
		l.Add("By", "must not be nil")
	} else if err := keyFuncFault(r.By); err != nil {
		l.Add("By", "%w", err)
	}
	if len(r.Handlers) == 0 {
		l.Add("Handlers", "must not be empty")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Handlers)) {
		l.Part(fmt.Sprintf("Handlers[%q]", name), r.Handlers[name])
	}
	if r.Unknown != nil {
		l.Part("Unknown", r.Unknown)
	}
	return l.Err()
}

// Handle calls the handler of the message's type.
func (r Router) Handle(ctx context.Context, tx Tx, m *Message) error {
	name, err := r.By(m)
	switch h := r.Handlers[name]; {
	case err == nil && h != nil:
		return h.Handle(ctx, tx, m)
	case r.Unknown != nil:
		return r.Unknown.Handle(ctx, tx, m)
	case err != nil:
		wrapped, is := err.(interface{ Unwrap() []error })
		if is && errors.Is(err, ErrNoKey) { //nolint:errorlint // of noKey
			err = wrapped.Unwrap()[1] // what is missing is no id here
		}
		return Permanent(fmt.Errorf("the message's type: %w", err))
	}
	return Permanent(fmt.Errorf("the message's type %.100q has no handler in Router.Handlers", name))
}
