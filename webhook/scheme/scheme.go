// Package scheme describes how a sender signs webhooks, for a webhook.Provider of your own. Package
// webhook and the packages below it have the schemes of many senders; webhook.HMAC declares one
// without code.
//
// A Scheme finds a request's signatures, the signed bytes, and the event's id and type. The
// webhook.Verifier does the rest: it compares, chooses the secrets, orders the checks and bounds
// them.
//
// Numbers in brackets, for example (W10), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package scheme

import (
	"context"
	"net/url"
	"time"
)

// Scheme describes a sender for a webhook.Verifier. Its functions only read a request. They must be
// safe for concurrent use.
type Scheme struct {
	// Name is part of the events' dedupe keys: if you change it, every event is a new one.
	// Required.
	Name string

	// Past and Future are how far the signed time may be from now, in each direction. 0 means that
	// the direction is not checked; both are 0 if the provider signs no time.
	Past, Future time.Duration

	// Answer is how long the sender waits for an answer (W12). 0 means unknown.
	Answer time.Duration

	// Redeliveries is how long after an event the sender may still deliver it again, after failures
	// or on request (W10). 0 means unknown.
	Redeliveries time.Duration

	// MaxBody is the longest body that the sender sends, in bytes, and the default of
	// webhook.Config.MaxBody if it is more than that one's own (W2). 0 means unknown.
	MaxBody int

	// IDSigned says that the signature covers the event's id.
	IDSigned bool

	// SignatureHeaders are the headers with signatures. An endpoint never keeps them: if no time is
	// signed, they stay valid forever.
	SignatureHeaders []string

	// KeepHeaders are the headers that webhook.Event.Header has besides Content-Type.
	KeepHeaders []string

	// Key parses a secret in the provider's own form. Its errors must not quote it. Required, or
	// Keys, for a sender that uses one secret with several algorithms: at most one key for each.
	Key  func(secret string) (Key, error)
	Keys func(secret string) ([]Key, error)

	// Read finds the signatures and the signed values. The Verifier calls it before any check, and
	// without the body. Required.
	Read func(Fields) (Signed, error)

	// ReadBody completes Read's result for a sender that does not sign the whole body: it sets
	// Signed.Messages or Signed.Signatures. The Verifier calls it before any check, so its cost
	// must be bounded by the body's length, and its input must not be trusted. Defaults to none:
	// Before, the whole body and After are signed.
	ReadBody func(Fields, []byte, *Signed) error

	// Handshake answers a sender's request that checks the endpoint before the first event; see
	// webhook.Verifier.Handshake. It gets the method and the query, at most 4096 bytes. is is false
	// for any other request, for example an event. If the answer repeats a part of the query, use
	// [Challenge]. Defaults to none.
	Handshake func(method string, query url.Values) (text string, is bool, err error)

	// Names is for a sender that delivers an event in the same bytes each time: another body under
	// a known id is then another event, whose first delivery a stranger has overtaken. If a sender
	// may render an event anew, Names must be nil.
	//
	// It says whether a body names itself: no other event has this body, because it contains the
	// id of what begins or ends once, or the time of the change. by is what names the event besides
	// its body, out of a short list, for example a topic: strangers can choose a header that is not
	// signed, and have each recorded body accepted under each value of the list. Names gets the
	// type and the body of an event that is verified, or that a backfill lists; it decides only
	// about events whose id is not signed, or that have a Content (W7). In doubt it must return
	// false: then two events of one body are both kept. Defaults to none: no body names itself.
	Names func(kind string, body []byte) (by string, named bool)

	// Repeats says that nothing of a body is proved, so that only the id finds copies (W7).
	Repeats bool

	// Certificates finds the keys of a sender that signs with certificates: those that may have
	// made the signatures at a time. If it is set, Key is not used, and there are no secrets.
	// Defaults to nil.
	Certificates interface {
		Keys(ctx context.Context, at time.Time, s Signed) ([]Key, error)
	}

	// Confirm carries out a probe's request besides an answer; see webhook.Verifier.Confirm.
	// Defaults to none.
	Confirm func(context.Context, *Event) error

	// Event sets ID and Type, and for a probe Probe and Challenge, from the headers and Event.Body.
	// It may replace Body by the part of it that is signed, so that nothing else reaches a handler.
	// The Verifier calls it after all other checks. Even then, do not trust headers that are not
	// signed. Required.
	Event func(Fields, *Event) error
}

// Signed is a request's own account of its signatures.
type Signed struct {
	// Before and After surround the body in the signed bytes. The fields in them must be delimited:
	// if two requests could have the same bytes, a signature of one would be valid for the other.
	Before, After string

	// Messages, if it is not nil, replaces Before, the body and After: at most 6 messages, and a
	// signature over one of them suffices. Each must cover every part of the body that is used.
	Messages [][]byte

	// Certificate is the address of the signatures' certificate, for Scheme.Certificates.
	Certificate *url.URL

	// Every requires every signature to be right, not only one.
	Every bool

	// Signatures are the signatures of versions that the scheme knows. The Verifier checks at most
	// 16, and one right signature suffices.
	Signatures []Signature

	// Time is the signed time. It is zero if the provider signs none.
	Time time.Time
}

// Signature is one of a request's signatures, decoded.
type Signature struct {
	Algorithm Algorithm
	Value     []byte
}

// Event is a scheme's reading of a verified request.
type Event struct {
	// Body is all of the request's body, and then what webhook.Event.Body is.
	Body []byte

	// ID and Type name the event; see webhook.Event.
	ID, Type string

	// Content takes the place of ID for a sender that gives its events none: it is what is signed,
	// in one writing. ID is then a hash of it, if the body names itself (Scheme.Names), and
	// otherwise a random one, as if the sender had made one for this delivery.
	Content []byte

	// Probe says that the sender only checks whether the endpoint answers. Challenge is the
	// required text of the answer.
	Probe     bool
	Challenge string
}
