package consumer

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/jsonpointer"
)

// KeyFunc finds the id of a message. An error, or an empty id, parks the message with reason no-key.
//
// There is none for the record key on purpose: it names an entity, so that a second, different message about the same
// entity would pass for a copy of the first and be lost.
type KeyFunc func(*Message) (string, error)

// ErrNoKey says that a message carries no id where its KeyFunc looks.
var ErrNoKey = errors.New("message has no id")

// HeaderKey takes the id from the record header of that name. Two such headers with different values are an error.
func HeaderKey(name string) KeyFunc {
	return func(m *Message) (string, error) {
		if name == "" {
			return "", fmt.Errorf("%w: Config.Key: HeaderKey: the header's name must not be empty", ErrConfig)
		}
		return headerOnce(m, name)
	}
}

// CloudEventKey takes the id from a CloudEvents message in binary mode: source and id together (headers ce_source and
// ce_id), which is what CloudEvents 1.0 makes unique.
func CloudEventKey() KeyFunc {
	return func(m *Message) (string, error) {
		source, err := headerOnce(m, "ce_source")
		if err != nil {
			return "", err
		}
		id, err := headerOnce(m, "ce_id")
		if err != nil {
			return "", err
		}
		return strconv.Itoa(len(source)) + ":" + source + id, nil // the length keeps ("a","bc") apart from ("ab","c")
	}
}

// JSONKey takes the id from a field of a JSON value, named by a JSON Pointer (RFC 6901), such as "/event_id". The field
// must be a string or an integer, and name the message. A field that names an entity, such as "/order/id", makes the entity's second message a copy of the
// first, unless there is one message for each entity; and see [Config.Copies] for several topics.
func JSONKey(pointer string) KeyFunc {
	tokens, syntax := jsonpointer.Parse(pointer)
	return func(m *Message) (string, error) {
		if syntax != nil {
			return "", fmt.Errorf("%w: Config.Key: JSONKey: pointer %q %w", ErrConfig, pointer, syntax)
		}
		raw := json.RawMessage(m.Value)
		for _, t := range tokens {
			next, err := child(raw, t)
			if err != nil {
				return "", fmt.Errorf("%w: %s: %w", ErrNoKey, pointer, err)
			}
			raw = next
		}
		return scalar(raw, pointer)
	}
}

// PayloadKey takes a hash of the record's key and value for the id, for messages that carry none: SHA-256, in hex, over "onlyonce/payload/1" and both, each preceded by its length
// as a big-endian uint32. A record without a value has no id.
//
// Choose it only where two messages of the same bytes cannot both be meant. A payment of the same amount to the same account, ordered twice on
// purpose, is a copy to it, and is skipped; and a producer that renders a message anew (a time of sending, another order of fields) has
// sent another message.
func PayloadKey() KeyFunc {
	return func(m *Message) (string, error) {
		if m.Value == nil {
			return "", fmt.Errorf("%w: PayloadKey: the record has no value", ErrNoKey)
		}
		sum := codec.Hash("onlyonce/payload/1", string(m.Key), string(m.Value))
		return hex.EncodeToString(sum[:]), nil
	}
}

// eventKey is the KeyFunc of an EventSource.
func eventKey(m *Message) (string, error) { return m.EventID, nil }

func headerOnce(m *Message, name string) (string, error) {
	id, found := "", false
	for _, h := range m.Headers {
		if h.Name != name {
			continue
		}
		if found && id != string(h.Value) {
			return "", fmt.Errorf("%w: header %q stands twice with different values", ErrNoKey, name)
		}
		id, found = string(h.Value), true
	}
	if id == "" {
		return "", fmt.Errorf("%w: header %q is missing or empty", ErrNoKey, name)
	}
	return id, nil
}

// child returns the member or element that one reference token names.
func child(raw json.RawMessage, token string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err == nil {
		if v, ok := object[token]; ok {
			return v, nil
		}
		return nil, fmt.Errorf("no member %q", token)
	}
	var array []json.RawMessage
	if err := json.Unmarshal(raw, &array); err != nil {
		return nil, errors.New("value is not a JSON object or array")
	}
	i, ok := jsonpointer.Index(token)
	if !ok || i >= len(array) {
		return nil, fmt.Errorf("no element %q", token)
	}
	return array[i], nil
}

// scalar returns a string's value or an integer's digits.
func scalar(raw json.RawMessage, pointer string) (string, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err == nil {
		if s == "" {
			return "", fmt.Errorf("%w: %s is empty", ErrNoKey, pointer)
		}
		return s, nil
	}
	var n json.Number
	if err := json.Unmarshal(raw, &n); err == nil && n != "" && !strings.ContainsAny(n.String(), ".eE") {
		return n.String(), nil
	}
	return "", fmt.Errorf("%w: %s is not a string or an integer", ErrNoKey, pointer)
}
