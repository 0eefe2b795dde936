package webhook

import (
	"errors"
	"net/http"
)

// What a request is refused for; each [Error] wraps one of them.
var (
	// ErrTooLarge: the body is longer than VerifierConfig.MaxBody. 413.
	ErrTooLarge = errors.New("too large")
	// ErrMalformed: the request is not what the provider sends: a header is missing, stands twice or cannot be read, or
	// the body has no id where it must. 400.
	ErrMalformed = errors.New("malformed")
	// ErrSignature: no signature of the request is one of the configured secrets'. 401.
	ErrSignature = errors.New("bad signature")
	// ErrStale: the signature is right, and the time that it signs is not near enough. 401.
	ErrStale = errors.New("stale")
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("webhook: bad configuration")

// Error says which check refused a request. Its text holds names of headers and of members and constant words; nothing
// that was received, and nothing of a secret. It is for logs and metrics: a sender learns Status, and no more.
type Error struct {
	// Provider is the scheme's name.
	Provider string
	// Check is ErrTooLarge, ErrMalformed, ErrSignature or ErrStale.
	Check error
	// Field is the header, or the body's member, that the check is about. Empty: the request as a whole.
	Field string
	// Reason tells cases of one check apart.
	Reason string
	// Cause is the error of a provider's code that returned another type. It is not part of the text.
	Cause error
}

func (e *Error) Error() string {
	text := "webhook: " + e.Provider + ": " + e.Check.Error()
	if e.Field != "" {
		text += ": " + e.Field
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Unwrap returns the check, and the cause if there is one.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Check}
	}
	return []error{e.Check, e.Cause}
}

// Status is what to answer (W6). A bad signature and a stale one have one answer, so that nobody learns from it that a
// recorded request was once right. Never 410, at which senders disable the endpoint.
func (e *Error) Status() int {
	switch {
	case errors.Is(e.Check, ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(e.Check, ErrSignature), errors.Is(e.Check, ErrStale):
		return http.StatusUnauthorized
	}
	return http.StatusBadRequest
}

// Malformed is the error that a [Scheme] returns for a header or a member that is not as it must be. The reason is a
// constant: it may quote nothing of the request.
func Malformed(field, reason string) error {
	return &Error{Check: ErrMalformed, Field: field, Reason: reason}
}

// refusal makes what a provider's code returned an *Error of this provider.
func refusal(provider string, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Provider: provider, Check: ErrMalformed, Reason: "the provider's code refused it", Cause: err}
	}
	refused := *e
	refused.Provider = provider
	return &refused
}
