// Package scheme has what a sender's way of signing webhooks needs, for a webhook.Provider of your
// own. Package webhook and the packages below it have those of many senders; webhook.HMAC declares
// one without code.
//
// A Scheme reads a request and says what in it is a signature, what was signed, and which event it
// is. The webhook.Verifier does all else: it compares, chooses the secrets, orders the checks and
// bounds them.
//
// Numbers in brackets, for example (W10), name rules of docs/guarantees.md: what each prevents, and
// the tests that fail without it.
package scheme

import (
	"context"
	"net/url"
	"time"
)

// Scheme is what a webhook.Verifier must know about a sender. Its functions only read a request.
// They must be safe for concurrent use.
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

	// IDSigned says that the signature covers the event's id.
	IDSigned bool

	// SignatureHeaders are the headers that hold signatures. They are never kept: if no time is
	// signed, they stay valid forever.
	SignatureHeaders []string

	// KeepHeaders are the headers that webhook.Event.Header has besides Content-Type.
	KeepHeaders []string

	// Key parses a secret, in the form in which the provider hands it out. Its errors must not
	// quote it. Required.
	Key func(secret string) (Key, error)

	// Read finds the signatures and what they sign. It is called before anything is verified, and
	// does not see the body. Required.
	Read func(Fields) (Signed, error)

	// ReadBody completes what Read has found, for a sender that signs something else of the body
	// than all of it: it sets Signed.Messages or Signed.Signatures. It is called before anything is
	// verified, so that what it costs must be bounded by the body's length, and what it reads must
	// not be trusted. Defaults to none: Before, the whole body and After are signed.
	ReadBody func(Fields, []byte, *Signed) error

	// Handshake answers a request by which the sender checks the endpoint before it sends events;
	// see webhook.Verifier.Handshake. It gets the method and the query, at most 4096 bytes. is is
	// false for a request that is no handshake, for example an event. If the answer repeats a part
	// of the query, use [Challenge]. Defaults to none.
	Handshake func(method string, query url.Values) (text string, is bool, err error)

	// Distinct says that two events never have the same body, because it says what happened and
	// when. Repeats says that they may, at any time, so that only the id finds copies. If neither
	// is set, a body that comes again soon is likely a copy.
	Distinct, Repeats bool

	// Certificates, if it is not nil, finds the keys of a sender that signs with certificates:
	// those that may have made the signatures at a time. Then Key is not used, and there are no
	// secrets.
	Certificates interface {
		Keys(ctx context.Context, at time.Time, s Signed) ([]Key, error)
	}

	// Confirm does what a probe asks for besides an answer; see webhook.Verifier.Confirm. Defaults
	// to nothing.
	Confirm func(context.Context, *Event) error

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

	// Messages, if it is not nil, is what is signed in place of Before, the body and After: at most
	// 4 messages, of which one suffices. Each must name everything of the body that is used.
	Messages [][]byte

	// Certificate is the address of the signatures' certificate, for Scheme.Certificates.
	Certificate *url.URL

	// Every says that every signature must be right, and not only one.
	Every bool

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

// Event is what a scheme reads of a verified request.
type Event struct {
	// Body is all of the request's body.
	Body []byte

	// ID and Type name the event; see webhook.Event.
	ID, Type string

	// Probe says that the sender only checks whether the endpoint answers. Challenge is the text
	// that the answer must hold.
	Probe     bool
	Challenge string
}
