package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// CloudEventKey returns a KeyFunc for CloudEvents messages, in binary mode (headers ce_source and
// ce_id) and in structured mode (content-type application/cloudevents+json, with the header's name
// in any case, or written contentType). The id is source and
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
// message, in binary and in structured mode, as [JSON] does. A whole event without that
// content-type is an error, and is not decoded as if it were the data.
func CloudEvent[T any](ctx context.Context, m *Message) (value T, err error) {
	structured, err := isStructured(m)
	if err != nil {
		return value, err
	}
	if !structured {
		if isUnmarked(m) {
			return value, errors.New("it is a whole event, and no header content-type says " +
				"application/cloudevents+json")
		}
		return JSON[T](ctx, m)
	}
	event, err := decodeJSON[struct {
		Data   json.RawMessage `json:"data"`
		Base64 []byte          `json:"data_base64"`
	}](m)
	if err != nil {
		return value, err
	}
	own := *m
	own.Value = event.Data
	if event.Base64 != nil {
		own.Value = event.Base64
	}
	if value, err = JSON[T](ctx, &own); err != nil {
		err = fmt.Errorf("the event's data: %w", err)
	}
	return value, err
}

// isStructured reports whether the message's value is a whole event in JSON. Brokers and producers
// write the header's name in different ways: as HTTP does in any case, or as one word (D10).
func isStructured(m *Message) (bool, error) {
	structured := false
	for i, h := range m.Headers {
		if name := strings.ToLower(h.Name); name != "content-type" && name != "contenttype" {
			continue
		}
		kind, _, _ := strings.Cut(string(h.Value), ";")
		kind = strings.ToLower(strings.TrimSpace(kind))
		switch {
		case kind == "application/cloudevents+json":
			structured = true
		case strings.HasPrefix(kind, "application/cloudevents"):
			return false, fmt.Errorf("content-type %.100q in header %d: structured events are read in JSON, "+
				"one in a record", kind, i)
		}
	}
	return structured, nil
}

// isUnmarked reports whether a value that no header declares to be a whole event is one. Beside the
// headers of an event in binary mode the value is the data, whatever it looks like.
func isUnmarked(m *Message) bool {
	for _, h := range m.Headers {
		if name := strings.ToLower(h.Name); strings.HasPrefix(name, "ce_") ||
			strings.HasPrefix(name, "ce-") ||
			strings.HasPrefix(name, "cloudevents") {
			return false
		}
	}
	var event struct {
		Specversion json.RawMessage `json:"specversion"`
		ID          json.RawMessage `json:"id"`
		Source      json.RawMessage `json:"source"`
		Type        json.RawMessage `json:"type"`
	}
	return json.Unmarshal(m.Value, &event) == nil &&
		event.Specversion != nil &&
		event.ID != nil &&
		event.Source != nil &&
		event.Type != nil
}
