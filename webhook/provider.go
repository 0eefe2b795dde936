package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"hash"
	"strings"
	"time"
)

// Provider is one way of signing webhooks: [Standard], [Stripe], [GitHub], [Shopify], [Slack], a declared [HMAC], or one
// of yours.
type Provider interface {
	// Scheme is called once, by New. It returns what is wrong with the provider's own configuration.
	Scheme() (*Scheme, error)
}

// Scheme is what a [Verifier] must know of a provider. Its functions read; what is compared, with which secrets, in which
// order and within which bounds is the Verifier's, so that no provider can get it wrong. They must be safe for concurrent use.
type Scheme struct {
	// Name stands in the events' dedupe keys: changing it makes every event a new one. Required.
	Name string

	// Past and Future are how far the signed time may be from now. 0: not checked; both are 0 where no time is signed.
	Past, Future time.Duration

	// Answer is how long the sender waits for an answer (W12). 0: not known, and taken for 5 seconds.
	Answer time.Duration

	// Redeliveries is for how long the sender may deliver an event again, after failures or when somebody asks it to (W10). 0: not known.
	Redeliveries time.Duration

	// IDSigned says that the signature covers Event.ID.
	IDSigned bool

	// SignatureHeaders are those that hold signatures. They are never kept: where no time is signed, they are good forever.
	SignatureHeaders []string

	// KeepHeaders are the headers that Event.Header has besides Content-Type.
	KeepHeaders []string

	// Key reads a secret, in the form in which the provider hands it out. Its errors must not quote it. Required.
	Key func(secret string) (Key, error)

	// Read finds the signatures and what they sign. Nothing has been verified when it is called, and it does not see the
	// body. Required.
	Read func(Fields) (Signed, error)

	// Event sets ID, Type, and where they apply Probe and Challenge, from the headers and Event.Body. It is called when the
	// request has been verified. Headers that are not signed are not to be trusted even then. Required.
	Event func(Fields, *Event) error
}

// Signed is what a request claims.
type Signed struct {
	// Before and After stand around the body in the bytes that are signed. The fields in them must be delimited: no two
	// requests may have the same bytes, or a signature of one could be used for the other.
	Before, After string

	// Signatures are those of versions that the scheme knows: at most 16 are taken, and one that is right suffices.
	Signatures []Signature

	// Time is the signed time. Zero: none.
	Time time.Time
}

// Signature is one of a request's signatures, decoded.
type Signature struct {
	Algorithm Algorithm
	Value     []byte
}

// Algorithm is how a signature is made.
type Algorithm int

// Algorithms.
const (
	HMACSHA256 Algorithm = iota
	HMACSHA512
	Ed25519
)

// size is how many bytes a signature has; 0 for none of the algorithms.
func (a Algorithm) size() int {
	switch a {
	case HMACSHA256:
		return sha256.Size
	case HMACSHA512:
		return sha512.Size
	case Ed25519:
		return ed25519.SignatureSize
	}
	return 0
}

// Key verifies signatures of one algorithm, and of no other: a public key, which everybody knows, is never taken for the
// secret of an HMAC. It prints as addresses.
type Key struct {
	algorithm Algorithm
	// Both are functions so that no verb of package fmt can print what is behind them.
	mac    func() hash.Hash
	public func() ed25519.PublicKey
}

// MACKey is a key for HMACSHA256 or HMACSHA512.
func MACKey(a Algorithm, secret []byte) (Key, error) {
	var h func() hash.Hash
	switch a {
	case HMACSHA256:
		h = sha256.New
	case HMACSHA512:
		h = sha512.New
	default:
		return Key{}, errors.New("is for an algorithm that is no HMAC")
	}
	if len(secret) == 0 {
		return Key{}, errors.New("must not be empty: everybody can sign with that")
	}
	secret = append([]byte(nil), secret...)
	return Key{algorithm: a, mac: func() hash.Hash { return hmac.New(h, secret) }}, nil
}

// PublicKey is an Ed25519 key of 32 bytes.
func PublicKey(public []byte) (Key, error) {
	if len(public) != ed25519.PublicKeySize {
		return Key{}, errors.New("is not an Ed25519 public key of 32 bytes")
	}
	key := ed25519.PublicKey(append([]byte(nil), public...))
	return Key{algorithm: Ed25519, public: func() ed25519.PublicKey { return key }}, nil
}

// rawKey is a Scheme.Key for providers that use the secret's characters as they are.
func rawKey(a Algorithm) func(string) (Key, error) {
	return func(secret string) (Key, error) {
		if strings.TrimSpace(secret) != secret {
			return Key{}, errors.New("begins or ends with white space (a line end?)")
		}
		return MACKey(a, []byte(secret))
	}
}
