package webhook

import (
	"time"
)

// Provider is one way of signing webhooks: [Standard], [Stripe], [GitHub], [Shopify], [Slack], a
// declared [HMAC], or one of yours.
type Provider interface {
	// Scheme is called once, by New. It returns the faults of the provider's own configuration.
	Scheme() (*Scheme, error)
}

// Scheme is what a [Verifier] must know about a provider. Its functions only read a request. The
// Verifier compares, chooses the secrets, orders the checks and bounds them, so that no provider
// can get that wrong. The functions must be safe for concurrent use.
type Scheme struct {
	// Name is part of the events' dedupe keys: if you change it, every event is a new one.
	// Required.
	Name string

	// Past and Future are how far the signed time may be from now, in each direction. 0 means that
	// the direction is not checked; both are 0 if the provider signs no time.
	Past, Future time.Duration

	// Answer is how long the sender waits for an answer (W12). Defaults to 5 s, for a sender that
	// does not say.
	Answer time.Duration

	// Redeliveries is how long after an event the sender may still deliver it again, after failures
	// or on request (W10). 0 means that it is not known.
	Redeliveries time.Duration

	// IDSigned says that the signature covers Event.ID.
	IDSigned bool

	// SignatureHeaders are the headers that hold signatures. They are never kept: if no time is
	// signed, they stay valid forever.
	SignatureHeaders []string

	// KeepHeaders are the headers that Event.Header has besides Content-Type.
	KeepHeaders []string

	// Key parses a secret, in the form in which the provider hands it out. Its errors must not
	// quote it. Required.
	Key func(secret string) (Key, error)

	// Read finds the signatures and what they sign. It is called before anything is verified, and
	// does not see the body. Required.
	Read func(Fields) (Signed, error)

	// Event sets ID and Type, and for a probe Probe and Challenge, from the headers and Event.Body.
	// It is called after the request was verified. Do not trust headers that are not signed even
	// then. Required.
	Event func(Fields, *Event) error
}

// Signed is what a request claims about its signatures.
type Signed struct {
	// Before and After surround the body in the bytes that are signed. The fields in them must be
	// delimited: if two requests could have the same bytes, a signature of one could be used for
	// the other.
	Before, After string

	// Signatures are the signatures of versions that the scheme knows. At most 16 are taken, and
	// one right signature suffices.
	Signatures []Signature

	// Time is the signed time. It is zero if the provider signs none.
	Time time.Time
}

// Signature is one of a request's signatures, decoded.
type Signature struct {
	Algorithm Algorithm
	Value     []byte
}
