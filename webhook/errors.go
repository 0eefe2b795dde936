package webhook

import (
	"errors"
	"net/http"
	"strings"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
)

// The checks of a Verifier. Each [Error] wraps one of them.
var (
	// ErrTooLarge: the body is longer than Config.MaxBody. 413.
	ErrTooLarge = errors.New("webhook: too large")
	// ErrMalformed: the request does not have the provider's form: a header is missing, occurs
	// twice or cannot be parsed, or the body lacks the id. 400.
	ErrMalformed = errors.New("webhook: malformed")
	// ErrSignature: no signature of the request was made with one of the configured secrets, or
	// those of its tenant. 401.
	ErrSignature = errors.New("webhook: bad signature")
	// ErrStale: the signature is right, but the signed time is too far from the clock. 401.
	ErrStale = errors.New("webhook: stale")
	// ErrUnavailable: the check needs what could not be had now: a document from the sender's host,
	// for example its certificate, or the tenant's secrets (TenantSecrets). 503.
	ErrUnavailable = errors.New("webhook: cannot be checked now")
)

// Errors of a request that an Endpoint refused for another reason than a Verifier's check.
var (
	// ErrPending: an earlier copy of the event was not committed within Config.DuplicateWait. 503
	// (W9).
	ErrPending = errors.New("webhook: the first copy of the event is not committed yet")
	// ErrStore: the event is not known to be stored: the database refused it, or COMMIT got no
	// answer. 503 (W11).
	ErrStore = errors.New("webhook: the event is not known to be stored")
	// ErrHandler: an inline handler failed, and the event was not stored. 500 (W8).
	ErrHandler = errors.New("webhook: the handler failed")
	// ErrTenant: Config.Tenant panicked or returned an invalid name, or a Backfill lists an event
	// without the tenant that TenantSecrets require. The event was not stored. 500.
	ErrTenant = errors.New("webhook: the event has no valid tenant")
	// ErrBusy: the endpoint already processes Config.MaxInFlight events, or holds Config.MaxBytes
	// of bodies. 503.
	ErrBusy = errors.New("webhook: too many requests at once (Config.MaxInFlight, Config.MaxBytes)")

	// ErrQuarantineFull: today's events that were set aside, because their id or body came before,
	// have reached Config.MaxQuarantineBytes; this one was not stored. 503.
	ErrQuarantineFull = errors.New("webhook: the events that were set aside today have reached " +
		"Config.MaxQuarantineBytes")

	errMethod         = errors.New("webhook: the method is not POST")
	errBodyUnreadable = errors.New("webhook: the body could not be read")
	errBodySlow       = errors.New("webhook: the body arrived too slowly")
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("webhook: invalid configuration")

// Error says which check refused a request. It is for logs and metrics; a sender gets only Status.
// Its text consists of names of headers and members, and constant words. It quotes neither the
// request nor a secret.
type Error struct {
	// Provider is the scheme's name.
	Provider string
	// Check is ErrTooLarge, ErrMalformed, ErrSignature, ErrStale or ErrUnavailable.
	Check error
	// Field is the header or the body's member that failed the check. It is empty if the check is
	// about the whole request.
	Field string
	// Reason distinguishes cases of one check.
	Reason string
	// Cause is the error of a provider's code if that is of another type. It is not part of the
	// text.
	Cause error
}

func (e *Error) Error() string {
	text := "webhook: " + e.Provider + ": " + strings.TrimPrefix(e.Check.Error(), "webhook: ")
	if e.Field != "" {
		text += ": " + e.Field
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// MarshalText returns the text, so a log or an answer in JSON holds the text in place of the
// fields.
func (e *Error) MarshalText() ([]byte, error) { return []byte(e.Error()), nil }

// Unwrap returns the check, and the cause if there is one.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Check}
	}
	return []error{e.Check, e.Cause}
}

// Status is the HTTP status to answer with (W6). A bad signature and a stale one get the same
// answer, so a sender cannot learn from it whether a recorded request was once valid. It is never
// 410, because senders disable an endpoint that answers 410.
func (e *Error) Status() int {
	switch {
	case errors.Is(e.Check, ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(e.Check, ErrSignature), errors.Is(e.Check, ErrStale):
		return http.StatusUnauthorized
	case errors.Is(e.Check, ErrUnavailable):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// checkOf is the check that refused.
func checkOf(r *received.Refusal) error {
	switch r.Check {
	case received.IsForged:
		return ErrSignature
	case received.IsUnavailable:
		return ErrUnavailable
	}
	return ErrMalformed
}

// refusal converts an error of a provider's code to an *Error of this provider.
func refusal(provider string, err error) error {
	if r, is := errors.AsType[*received.Refusal](err); is {
		return &Error{Provider: provider, Check: checkOf(r), Field: r.Field, Reason: r.Reason, Cause: r.Cause}
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Provider: provider, Check: ErrMalformed, Reason: "the provider's code refused it", Cause: err}
	}
	refused := *e
	refused.Provider = provider
	return &refused
}
