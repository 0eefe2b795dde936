package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// NewV7 returns a new key, a UUIDv7. It starts with the time in milliseconds, so that keys which a
// server gets one after another are close together in its index. [Transport] uses it for operations
// without a key.
func NewV7() string { return uuid.Must(uuid.NewV7()).String() } // fails only if crypto/rand does, which never happens

// NewV4 returns a new key, a UUIDv4 of 122 random bits. It does not reveal when it was made.
func NewV4() string { return uuid.Must(uuid.NewRandom()).String() }

type contextKey struct{}

// WithKey sets the key of the operation that requests with this context belong to: 1 to 255 bytes
// of printable ASCII, without the quotes of its header.
//
// Use one context for one operation. If another request with it goes to the same route, it gets 422
// if its bytes differ; if they are equal, it counts as a copy, and gets the first one's answer.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// key returns an operation's key, and the header value for it. It takes the key from the request's
// own header, else from the context, else from the request that was redirected here, else it makes
// one. If header and context differ, or if the header has two lines, it returns an error (H3):
// whichever key was meant, the other one names another operation.
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

// carried returns the value of the key's header in a request, or "". Header maps may hold names in
// any case.
func (t *Transport) carried(req *http.Request) (string, error) {
	var lines []string
	for name, values := range req.Header {
		if http.CanonicalHeaderKey(name) == t.header {
			lines = append(lines, values...)
		}
	}
	switch {
	case len(lines) > 1:
		return "", fmt.Errorf("%w: header %s occurs %d times", ErrKey, t.header, len(lines))
	case len(lines) == 1 && lines[0] == "":
		return "", fmt.Errorf("%w: header %s is empty", ErrKey, t.header)
	case len(lines) == 1:
		return lines[0], nil
	}
	return "", nil
}
