package client

import (
	"errors"
	"fmt"
	"net/http"
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

// TransportError is the error of a [Transport] that does not know what became of the operation: its
// last attempt got no answer, or an earlier one got none and the last one was refused. The
// operation may or may not have been applied: retry under Key, with the same bytes, for as long as
// the server remembers keys. A new key, for example the next Intent.Version, may apply it twice.
type TransportError struct {
	// Key is the operation's key, as [WithKey] takes it.
	Key string
	// Attempts is how many attempts were made.
	Attempts int
	// Err is the error of the last attempt, or the context's.
	Err error
	// Response is the answer to the last attempt, if that was refused after an attempt without an
	// answer: for example a gateway's 401. It says that the last attempt was not applied. At most
	// 64 KiB of its body are kept, in memory, so it need not be closed. Nil if there was no answer.
	Response *http.Response
}

// errRefusedLater is TransportError.Err if there is a Response.
var errRefusedLater = errors.New("an earlier attempt got no answer, and may have been applied")

func (e *TransportError) Error() string {
	if e.Response != nil {
		return fmt.Sprintf("idempotency/client: status %d under key %q, attempt %d: %v",
			e.Response.StatusCode, e.Key, e.Attempts, e.Err)
	}
	return fmt.Sprintf("idempotency/client: no answer under key %q, attempt %d: %v", e.Key, e.Attempts, e.Err)
}

func (e *TransportError) Unwrap() error { return e.Err }

// Timeout reports whether time ran out; http.Client asks errors for it.
func (e *TransportError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}
