package client

import (
	"errors"
	"fmt"
)

var (
	// ErrConfig is wrapped by every error of [NewTransport].
	ErrConfig = errors.New("idempotency/client")
	// ErrKey is wrapped by every error about a key that cannot be sent, and about an [Intent] that
	// yields no key. No request was made.
	ErrKey = errors.New("idempotency/client: bad key")
	// ErrBody is wrapped by every error about a body that cannot be sent more than once, or whose
	// length differs from the announced one. No request was made.
	ErrBody = errors.New("idempotency/client: bad body")
)

// TransportError is the error of a [Transport] whose last attempt got no answer. The operation may
// or may not have been applied: retry under Key, with the same bytes, for as long as the server
// remembers keys.
type TransportError struct {
	// Key is the operation's key, as [WithKey] takes it.
	Key string
	// Attempts is how many attempts were made.
	Attempts int
	// Err is the error of the last attempt, or the context's.
	Err error
}

func (e *TransportError) Error() string {
	return fmt.Sprintf("idempotency/client: no answer under key %q, attempt %d: %v", e.Key, e.Attempts, e.Err)
}

func (e *TransportError) Unwrap() error { return e.Err }

// Timeout reports whether time ran out; http.Client asks errors for it.
func (e *TransportError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}
