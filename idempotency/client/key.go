package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// NewV7 makes a key: a UUID that starts with the time in milliseconds, so that keys which a server gets one after another
// lie side by side in its index. It is what [Transport] makes for an operation that comes without a key.
func NewV7() string { return uuid.Must(uuid.NewV7()).String() } // fails only where crypto/rand does, which it never does

// NewV4 makes a key of 122 random bits: nobody can tell from it when it was made.
func NewV4() string { return uuid.Must(uuid.NewRandom()).String() }

type contextKey struct{}

// WithKey names the operation that requests with this context belong to. It is 1 to 255 bytes of printable ASCII, without the
// quotes of its header.
//
// Make the context for one operation. Another request under it to the same route gets 422 if its bytes differ; if they are
// the same, it is taken for a copy, and gets the answer of the first.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// key finds the key of an operation, and how it is written: the request's own header, else the context's, else that of the
// request which was redirected here, else a new one. Two that disagree are refused (H3), and so is a second field line:
// whichever of them was meant, the other would name another operation.
func (t *Transport) key(req *http.Request) (key, value string, err error) {
	own, err := t.carried(req)
	if err != nil {
		return "", "", err
	}
	named, has := req.Context().Value(contextKey{}).(string)
	if own != "" {
		key, err := protocol.Read(own)
		if err != nil {
			return "", "", fmt.Errorf("%w: header %s: %w", ErrKey, t.header, err)
		}
		if has && named != key {
			return "", "", fmt.Errorf("%w: header %s and the context name different keys", ErrKey, t.header)
		}
		return key, own, nil
	}
	if !has {
		if r := req.Response; r != nil && r.Request != nil { // http.Client follows a 307 or 308: the same operation
			if own, err := t.carried(r.Request); err == nil && own != "" {
				if key, err := protocol.Read(own); err == nil {
					return key, own, nil
				}
			}
		}
		named = NewV7()
	}
	if value, err = t.cfg.Form.write(named); err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrKey, err)
	}
	return named, value, nil
}

// carried returns the key's header as a request has it, or "". Header maps may hold names in any case.
func (t *Transport) carried(req *http.Request) (string, error) {
	var lines []string
	for name, values := range req.Header {
		if http.CanonicalHeaderKey(name) == t.header {
			lines = append(lines, values...)
		}
	}
	switch {
	case len(lines) > 1:
		return "", fmt.Errorf("%w: header %s stands there %d times", ErrKey, t.header, len(lines))
	case len(lines) == 1 && lines[0] == "":
		return "", fmt.Errorf("%w: header %s is empty", ErrKey, t.header)
	case len(lines) == 1:
		return lines[0], nil
	}
	return "", nil
}
