package idempotency

import (
	"errors"
	"fmt"
)

var (
	// ErrConfig is wrapped by every error of NewTransport.
	ErrConfig = errors.New("idempotency: bad configuration")
	// ErrKey is wrapped by every error about a key that cannot be sent, or an [Intent] that none can be derived from. No
	// request was made.
	ErrKey = errors.New("idempotency: bad key")
	// ErrBody is wrapped by every error about a body that cannot be sent more than once, or not as the request
	// announces it.
	ErrBody = errors.New("idempotency: bad body")
)

// TransportError is what [Transport] returns when no attempt had an answer. Nobody knows then whether the operation was
// applied: ask again under Key, with the same bytes, for as long as the server remembers keys.
type TransportError struct {
	// Key is the operation's, as [WithKey] takes it.
	Key string
	// Attempts is how many were made.
	Attempts int
	// Err is why the last one had no answer, or the context's error.
	Err error
}

func (e *TransportError) Error() string {
	return fmt.Sprintf("idempotency: no answer under key %q, attempt %d: %v", e.Key, e.Attempts, e.Err)
}

func (e *TransportError) Unwrap() error { return e.Err }

// Timeout reports whether time ran out; http.Client asks errors for it.
func (e *TransportError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}
