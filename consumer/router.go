package consumer

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/jsonpointer"
)

// Selector returns the type of a message, for a [Router].
type Selector func(*Message) (string, error)

// ByTopic is a Selector that returns the message's topic.
func ByTopic(m *Message) (string, error) { return m.Topic, nil }

// ByHeader returns a Selector that reads the type from the record header with the name, for example
// "event-type". Two such headers with different values are an error.
func ByHeader(name string) Selector {
	return func(m *Message) (string, error) { return headerOnce(m, name) }
}

// ByJSON returns a Selector that reads the type from a field of a JSON value: a string or an
// integer. pointer is a JSON Pointer (RFC 6901), for example "/type"; it panics if that is not
// valid.
func ByJSON(pointer string) Selector {
	tokens, err := jsonpointer.Parse(pointer)
	if err != nil {
		panic(fmt.Sprintf("consumer: ByJSON: pointer %q %v", pointer, err))
	}
	return func(m *Message) (string, error) { return jsonMember(m, pointer, tokens) }
}

// Router calls a handler for each type of message:
//
//	routes := consumer.Router{
//		By: consumer.ByHeader("event-type"),
//		Handlers: map[string]consumer.Handler{
//			"order.placed":   consumer.JSON(placed),
//			"order.canceled": consumer.JSON(canceled),
//		},
//	}
//	c, err := consumer.New(pool, source, routes.Handler(), cfg)
type Router struct {
	// By returns the type of a message. If it returns an error, the message counts as one of an
	// unknown type. Required.
	By Selector

	// Handlers are the handlers by type. At least one is required; none may be nil.
	Handlers map[string]Handler

	// Unknown handles messages of all other types. Use [Skip] to pass over them. Defaults to a
	// [Permanent] error: they are parked, and can be redriven once there is a handler.
	Unknown Handler
}

// Skip is a Handler that does nothing: the message counts as applied. See Router.Unknown.
func Skip(context.Context, Tx, *Message) error { return nil }

// Handler returns the router as a handler. It panics if a required field is not set, because that
// is a fault of the program. Later changes of the router's fields have no effect on it.
func (r Router) Handler() Handler {
	if r.By == nil {
		panic("consumer: Router.By: must not be nil")
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
			return Permanent(fmt.Errorf("the message's type: %w", err))
		}
		return Permanent(fmt.Errorf("the message's type %.100q has no handler in Router.Handlers", name))
	}
}
