package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// NewV7 returns a new key, a UUIDv7. It starts with the time in milliseconds, so successive keys
// are close together in a server's index. [Transport] uses it for operations without a key.
func NewV7() string { return uuid.Must(uuid.NewV7()).String() } // fails only if crypto/rand does, which never happens

type contextKey struct{}

// WithKey sets the key of the operation for requests with this context: 1 to 255 bytes of printable
// ASCII, without the quotes of its header.
//
// Use one context for one operation. Another request with it to the same route gets 422 if its
// bytes differ. If they are equal, it counts as a copy, and gets the first one's answer.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// operationKey returns an operation's key, and the header value for it. It takes the key from the
// request's own header, else from the context, else from the request that was redirected here, else
// it makes one. If header and context differ, or if the header has two lines, it returns an error
// (H3): whichever key was meant, the other one names another operation.
func (t *Transport) operationKey(req *http.Request) (key, value string, err error) {
	fromHeader, err := t.headerKey(req)
	if err != nil {
		return "", "", err
	}
	chosen, has := req.Context().Value(contextKey{}).(string)
	if fromHeader != "" {
		key, err := protocol.ParseKey(fromHeader)
		if err != nil {
			return "", "", fmt.Errorf("%w: header %s: %w", ErrKey, t.header, err)
		}
		if has && chosen != key {
			return "", "", fmt.Errorf("%w: header %s and the context name different keys", ErrKey, t.header)
		}
		return key, fromHeader, nil
	}
	if !has {
		if r := req.Response; r != nil && r.Request != nil { // http.Client follows a 307 or 308: the same operation
			if fromHeader, err := t.headerKey(r.Request); err == nil && fromHeader != "" {
				if key, err := protocol.ParseKey(fromHeader); err == nil {
					return key, fromHeader, nil
				}
			}
		}
		chosen = NewV7()
	}
	if value, err = t.cfg.Form.format(chosen); err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrKey, err)
	}
	return chosen, value, nil
}

// headerKey returns the value of the key's header in a request, or "". Header maps may hold names
// in any case.
func (t *Transport) headerKey(req *http.Request) (string, error) {
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
