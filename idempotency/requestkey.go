package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/rfc"
)

// keyRule describes where a request's key may be (H3) and how it is written (H4).
type keyRule struct {
	headers []string // canonical; the first is the primary one
	pointer string   // a JSON Pointer into the body (RFC 6901); "" if none
}

// requestKey is the key that the sources which were read name.
type requestKey struct {
	key  string
	from string // the source that the key is from; "" if none has one
}

// add adds what one more source names. Every source of a key is read, not only the first that has
// one (H3): a request with one key in the header and another in an older header names two
// operations. Whichever key the layer took, a retry that carries only the other one would run
// again.
func (k *requestKey) add(source, value string) error {
	if k.from == "" {
		k.key = value
		k.from = source
	}
	if value != k.key {
		return fmt.Errorf("%s and %s name different keys", k.from, source)
	}
	return nil
}

// inHeaders reads the headers that may carry the key. A second line of one header is refused even
// if it is equal: a proxy may join the lines with a comma, which makes another key.
//
// The error is for the client, and quotes nothing of the request.
func (k keyRule) inHeaders(h http.Header) (named requestKey, err error) {
	for _, name := range k.headers {
		value, has, err := k.header(h, name)
		if err == nil && has {
			err = named.add("header "+name, value)
		}
		if err != nil {
			return requestKey{}, err
		}
	}
	return named, nil
}

// inBody reads the body's member too, if the route has one. The error is as that of inHeaders.
func (k keyRule) inBody(named requestKey, body []byte) (requestKey, error) {
	if k.pointer == "" {
		return named, nil
	}
	value, has, err := keyInBody(body, k.pointer)
	if err == nil && has {
		err = named.add("body member "+k.pointer, value)
	}
	return named, err
}

// header reads one of the headers. Header maps that were not filled by net/http may hold names in
// any case.
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
		return "", false, fmt.Errorf("header %s occurs %d times, must occur once", name, len(lines))
	}
	if key, err = protocol.ParseKey(lines[0]); err != nil {
		return "", false, fmt.Errorf("header %s: the key %w", name, err)
	}
	return key, true, nil
}

// keyInBody returns the key in a body: the string that the pointer leads to, decoded. A body that
// is not JSON, or has no such member, has no key. A body that has the member twice is refused:
// parsers differ in which of the two they take, so that the handler might see another key than the
// one that was claimed.
func keyInBody(body []byte, pointer string) (key string, found bool, err error) {
	tokens, err := rfc.ParsePointer(pointer)
	if err != nil {
		return "", false, err // cannot fail: Handle has checked it
	}
	if !json.Valid(body) {
		return "", false, nil
	}
	raw := json.RawMessage(body)
	for _, token := range tokens {
		if raw, err = pointerStep(raw, token); raw == nil || err != nil {
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
	if err := protocol.CheckKey(key); err != nil {
		return "", false, fmt.Errorf("body member %s: the key %w", pointer, err)
	}
	return key, true, nil
}

// pointerStep follows one token of the pointer in valid JSON. It returns nil if there is no such
// member.
func pointerStep(raw json.RawMessage, token string) (next json.RawMessage, err error) {
	in := json.NewDecoder(bytes.NewReader(raw))
	open, err := in.Token()
	if err != nil {
		return nil, err
	}
	index, isIndex := rfc.ParseIndex(token)
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
			return nil, errors.New("a member on the path occurs twice")
		}
		if here {
			next = value
		}
	}
	return next, nil
}
