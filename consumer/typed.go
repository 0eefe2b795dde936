package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// JSON returns a [Handler] that decodes the message's value into a T before it calls handle:
//
//	func hold(ctx context.Context, tx consumer.Tx, m *consumer.Message, o Order) error {
//		_, err := tx.Exec(ctx, `update stock set held = held + $1 where sku = $2`, o.Qty, o.SKU)
//		return err
//	}
//
//	c, err := consumer.New(pool, source, consumer.JSON(hold), cfg)
//
// A value that cannot be decoded is a [Permanent] error, which names the field: the message is
// parked at once, because a retry cannot help. So is a message without a value (a tombstone) and
// the JSON value null, which would decode to a zero T. The rules of package encoding/json apply:
// for example, members that T does not have are ignored. Give T a method UnmarshalJSON to be
// stricter.
//
// The error does not quote the value, unless a method UnmarshalJSON does.
func JSON[T any](handle func(ctx context.Context, tx Tx, m *Message, value T) error) Handler {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, tx Tx, m *Message) error {
		value, err := decodeJSON[T](m)
		if err != nil {
			return err
		}
		return handle(ctx, tx, m, value)
	}
}

// Decoded is a message with its decoded value, for a handler of [JSONBatch].
type Decoded[T any] struct {
	// Message is the message, with its Value as it was received.
	Message *Message
	// Value is the decoded value.
	Value T
}

// JSONBatch is [JSON] for a handler of batches. If values cannot be decoded, their messages fail as
// with [FailMessage], and handle is called with the others.
func JSONBatch[T any](handle func(ctx context.Context, tx Tx, msgs []Decoded[T]) error) BatchHandler {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, tx Tx, msgs []*Message) error {
		all := make([]Decoded[T], len(msgs))
		var faults []error
		for i, m := range msgs {
			value, err := decodeJSON[T](m)
			if err != nil {
				faults = append(faults, FailMessage(m, err))
			}
			all[i] = Decoded[T]{m, value}
		}
		if err := errors.Join(faults...); err != nil {
			return err // the consumer calls again without them
		}
		return handle(ctx, tx, all)
	}
}

// decodeJSON returns the message's value as a T, or a permanent error that does not quote it.
func decodeJSON[T any](m *Message) (value T, err error) {
	switch trimmed := bytes.TrimSpace(m.Value); {
	case len(trimmed) == 0:
		err = errors.New("it is empty")
	case string(trimmed) == "null":
		err = errors.New("it is null")
	default:
		err = json.Unmarshal(m.Value, &value)
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return value, nil
	case errors.As(err, &syntax):
		err = fmt.Errorf("not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		is, _, _ := strings.Cut(kind.Value, " ") // without the digits of a number
		field := "it"
		if kind.Field != "" {
			field = fmt.Sprintf("field %q", kind.Field)
		}
		err = fmt.Errorf("%s is a JSON %s, which does not fit %s", field, is, kind.Type)
	}
	return value, Permanent(fmt.Errorf("the message's value: %w", err))
}
