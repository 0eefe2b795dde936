package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Decode returns a handler that decodes the message before it calls handle. codec makes a T of
// the message, for example [JSON]:
//
//	func hold(ctx context.Context, tx consumer.Tx, m *consumer.Message, o Order) error {
//		_, err := tx.Exec(ctx, `update stock set held = held + $1 where sku = $2`, o.Qty, o.SKU)
//		return err
//	}
//
//	c, err := consumer.New(pool, source, consumer.Decode(consumer.JSON, hold), cfg)
//
// An error of codec means that the message can never be decoded. Its error is [Permanent]: the
// message is parked at once, because a retry cannot help, and handle does not run. If codec cannot
// answer at the moment, for example because a schema registry is away, it returns [Unavailable]:
// the consumer then tries again, and parks nothing. codec must be safe for concurrent use, and must
// not quote the message in its errors, because they are stored and logged.
func Decode[T any](
	codec func(ctx context.Context, m *Message) (T, error),
	handle func(ctx context.Context, tx Tx, m *Message, value T) error,
) HandlerFunc {
	if codec == nil || handle == nil {
		return nil
	}
	return func(ctx context.Context, tx Tx, m *Message) error {
		value, err := codec(ctx, m)
		if err != nil {
			return undecodable(err)
		}
		return handle(ctx, tx, m, value)
	}
}

// Decoded is a message with its decoded value, for a handler of [DecodeBatch].
type Decoded[T any] struct {
	// Message is the message, with its Value as it was received.
	Message *Message
	// Value is the decoded value.
	Value T
}

// DecodeBatch is [Decode] for a handler of batches. If messages cannot be decoded, they fail as
// with [FailMessage], and handle is called with the others.
func DecodeBatch[T any](
	codec func(ctx context.Context, m *Message) (T, error),
	handle func(ctx context.Context, tx Tx, msgs []Decoded[T]) error,
) BatchHandlerFunc {
	if codec == nil || handle == nil {
		return nil
	}
	return func(ctx context.Context, tx Tx, msgs []*Message) error {
		all := make([]Decoded[T], len(msgs))
		var faults []error
		for i, m := range msgs {
			value, err := codec(ctx, m)
			if err != nil {
				faults = append(faults, FailMessage(m, undecodable(err)))
			}
			all[i] = Decoded[T]{m, value}
		}
		if err := errors.Join(faults...); err != nil {
			return err // the consumer calls again without them
		}
		return handle(ctx, tx, all)
	}
}

// undecodable returns the error of a message that its codec did not decode.
func undecodable(err error) error {
	err = fmt.Errorf("the message's value: %w", err)
	if isUnavailable(err) {
		return err
	}
	return Permanent(err)
}

// JSON is a codec for [Decode] and [DecodeBatch]: it decodes the message's value as JSON. A message
// without a value (a tombstone) and the JSON value null, which would decode to a zero T, are
// errors. So is an object that has members, but none of T's. Otherwise the rules of package
// encoding/json apply: for example, members that T does not have are ignored. Give T a method
// UnmarshalJSON to be stricter.
//
// The error names the field. It does not quote the value, unless a method UnmarshalJSON does.
func JSON[T any](_ context.Context, m *Message) (value T, err error) {
	value, err = decodeJSON[T](m)
	if err == nil && foundNothing(&value) && sharesNothing[T](m.Value) {
		err = fmt.Errorf("none of its members is one of %T", value)
	}
	return value, err
}

// decodeJSON is JSON without the check whether T has any of the members.
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
	return value, err
}

// foundNothing reports whether a decoded value is zero, or points to one that is.
func foundNothing[T any](value *T) bool {
	v := reflect.ValueOf(value).Elem()
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v.IsZero()
}

// sharesNothing reports whether JSON is an object with members, none of which T has, although T has
// fields (D10).
func sharesNothing[T any](text []byte) bool {
	if of := reflect.TypeFor[T](); of.Kind() == reflect.Struct && of.NumField() == 0 {
		return false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || len(members) == 0 {
		return false
	}
	for name := range members {
		one, err := json.Marshal(map[string]any{name: nil}) // null leaves each field as it is
		if err != nil {
			return false
		}
		var into T
		strict := json.NewDecoder(bytes.NewReader(one))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&into); err == nil || !strings.HasPrefix(err.Error(), "json: unknown field") {
			return false
		}
	}
	return true
}
