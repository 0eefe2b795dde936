package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// CloudEventKey returns a KeyFunc for CloudEvents messages, in binary mode (headers ce_source and
// ce_id) and in structured mode (content-type application/cloudevents+json). The id is source and
// id together, the pair that CloudEvents 1.0 requires to be unique. It is the same in both modes. A
// batch of events in one record, and structured mode in another format, have no id.
func CloudEventKey() KeyFunc {
	return func(m *Message) (string, error) {
		structured, err := isStructured(m)
		attribute := func(name string) (string, error) {
			switch {
			case err != nil:
				return "", err
			case structured:
				return jsonMember(m, "/"+name, []string{name})
			}
			return headerOnce(m, "ce_"+name)
		}
		source, err := noKey(attribute("source"))
		if err != nil {
			return "", err
		}
		id, err := noKey(attribute("id"))
		if err != nil {
			return "", err
		}
		// The length distinguishes ("a","bc") from ("ab","c").
		return strconv.Itoa(len(source)) + ":" + source + id, nil
	}
}

// CloudEvent is a codec for [Decode] and [DecodeBatch]: it decodes the JSON data of a CloudEvents
// message, in binary and in structured mode, as [JSON] does.
func CloudEvent[T any](ctx context.Context, m *Message) (value T, err error) {
	structured, err := isStructured(m)
	if err != nil {
		return value, err
	}
	if !structured {
		return JSON[T](ctx, m)
	}
	event, err := JSON[struct {
		Data   json.RawMessage `json:"data"`
		Base64 []byte          `json:"data_base64"`
	}](ctx, m)
	if err != nil {
		return value, err
	}
	own := *m
	if own.Value = event.Data; event.Base64 != nil {
		own.Value = event.Base64
	}
	if value, err = JSON[T](ctx, &own); err != nil {
		err = fmt.Errorf("the event's data: %w", err)
	}
	return value, err
}

// isStructured reports whether the message's value is a whole event in JSON.
func isStructured(m *Message) (bool, error) {
	header, _ := m.Header("content-type")
	kind, _, _ := strings.Cut(string(header), ";")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); {
	case kind == "application/cloudevents+json":
		return true, nil
	case strings.HasPrefix(kind, "application/cloudevents"):
		return false, fmt.Errorf("content-type %.100q: structured events are read in JSON, one in a record", kind)
	}
	return false, nil
}
