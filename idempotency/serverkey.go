package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/jsonpointer"
)

// keyRule says where a request's key stands (H3) and how it is written (H4).
type keyRule struct {
	headers []string // canonical; the first is the primary one
	pointer string   // into a JSON body (RFC 6901); "": none
	strict  bool     // headers hold a String Item and nothing else
	min     int      // fewest bytes of a key; 0 is 1
}

// find looks at every source, and not at the first that has a key (H3). A client, or a proxy, that puts one key into the header and
// another into its older name has two operations in mind, or one that was given a new key half-way: whichever of them was
// taken, a retry that carries the other would be applied a second time. For the same reason a second field line is refused even
// where it says the same: a proxy joins lines with commas, and then they would be another key.
//
// An error is the request's fault; its text is for whoever made it, and quotes nothing of what came.
func (k keyRule) find(h http.Header, body []byte) (key string, found bool, err error) {
	var from string // the source that has it
	add := func(source, value string) error {
		if len(value) < k.min {
			return fmt.Errorf("%s: the key has %d bytes, must have %d to %d", source, len(value), k.min, protocol.MaxKey)
		}
		if found && value != key {
			return fmt.Errorf("%s and %s name different keys", from, source)
		}
		if !found {
			key, from, found = value, source, true
		}
		return nil
	}
	for _, name := range k.headers {
		value, has, err := k.header(h, name)
		if err == nil && has {
			err = add("header "+name, value)
		}
		if err != nil {
			return "", false, err
		}
	}
	if k.pointer != "" {
		value, has, err := pointed(body, k.pointer)
		if err == nil && has {
			err = add("body member "+k.pointer, value)
		}
		if err != nil {
			return "", false, err
		}
	}
	return key, found, nil
}

// header reads one of the headers. Header maps that were not filled by net/http may hold names in any case.
func (k keyRule) header(h http.Header, name string) (key string, has bool, err error) {
	var lines []string
	for n, values := range h {
		if http.CanonicalHeaderKey(n) == name {
			lines = append(lines, values...)
		}
	}
	switch len(lines) {
	case 0:
		return "", false, nil
	case 1:
	default:
		return "", false, fmt.Errorf("header %s stands there %d times, must stand there once", name, len(lines))
	}
	read := protocol.Read
	if k.strict {
		read = readItem
	}
	if key, err = read(lines[0]); err != nil {
		return "", false, fmt.Errorf("header %s: the key %w", name, err)
	}
	return key, true, nil
}

// readItem is the strict syntax of H4.
func readItem(value string) (string, error) {
	key, ok := protocol.StringItem(strings.TrimLeft(value, " "))
	if !ok {
		return "", errors.New("is no String of RFC 9651 in double quotes")
	}
	return key, protocol.Check(key)
}

// pointed finds a key in a body: the string that the pointer leads to, as it is decoded. A body that is not JSON has none, and so has
// one without the member. One that has the member twice has two keys: parsers differ on which of them counts, so
// that the handler's could see another one than is claimed here.
func pointed(body []byte, pointer string) (key string, found bool, err error) {
	tokens, err := jsonpointer.Parse(pointer)
	if err != nil {
		return "", false, err // New has checked it
	}
	if !json.Valid(body) {
		return "", false, nil
	}
	raw := json.RawMessage(body)
	for _, token := range tokens {
		if raw, err = step(raw, token); raw == nil || err != nil {
			if err != nil {
				err = fmt.Errorf("body member %s: %w", pointer, err)
			}
			return "", false, err
		}
	}
	if raw = bytes.TrimSpace(raw); raw[0] != '"' {
		return "", false, fmt.Errorf("body member %s must be a string", pointer)
	}
	if err := json.Unmarshal(raw, &key); err != nil {
		return "", false, fmt.Errorf("body member %s must be a string", pointer)
	}
	if err := protocol.Check(key); err != nil {
		return "", false, fmt.Errorf("body member %s: the key %w", pointer, err)
	}
	return key, true, nil
}

// step goes one token down in valid JSON, and returns nil where there is nothing of that name.
func step(raw json.RawMessage, token string) (next json.RawMessage, err error) {
	in := json.NewDecoder(bytes.NewReader(raw))
	open, err := in.Token()
	if err != nil {
		return nil, err
	}
	index, isIndex := jsonpointer.Index(token)
	for i := 0; in.More(); i++ {
		var here bool
		switch open {
		case json.Delim('{'):
			name, err := in.Token()
			if err != nil {
				return nil, err
			}
			here = name == token
		case json.Delim('['):
			here = isIndex && i == index
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return nil, err
		}
		if here && next != nil {
			return nil, errors.New("a member on the way there stands there twice")
		}
		if here {
			next = value
		}
	}
	return next, nil
}
