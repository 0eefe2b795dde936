package scheme

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"hash"
	"strings"
)

// Algorithm is how a signature is made.
type Algorithm int

// Algorithms of signatures.
const (
	HMACSHA256 Algorithm = iota
	HMACSHA512
	Ed25519
	// HMACSHA1 is for senders without a newer algorithm, for example Twilio.
	HMACSHA1
	// RSASHA256 and RSASHA1 are RSA with PKCS #1 v1.5, by the key of a certificate.
	RSASHA256
	RSASHA1
)

// Size returns the length of a signature in bytes, or 0 for an unknown algorithm.
func (a Algorithm) Size() int {
	switch a {
	case HMACSHA256:
		return sha256.Size
	case HMACSHA512:
		return sha512.Size
	case Ed25519:
		return ed25519.SignatureSize
	case HMACSHA1:
		return sha1.Size
	}
	return 0
}

// Key verifies signatures of one algorithm only. So a public key, which is no secret, is never used
// as the secret of an HMAC. Printing it shows only addresses.
type Key struct {
	algorithm Algorithm
	// Both are functions, so that no verb of package fmt can print the secret in them.
	mac    func() hash.Hash
	public func() ed25519.PublicKey
	rsa    *rsa.PublicKey
}

// MACKey returns a key for HMACSHA256, HMACSHA512 or HMACSHA1.
func MACKey(a Algorithm, secret []byte) (Key, error) {
	var h func() hash.Hash
	switch a {
	case HMACSHA256:
		h = sha256.New
	case HMACSHA512:
		h = sha512.New
	case HMACSHA1:
		h = sha1.New
	default:
		return Key{}, errors.New("must be for HMACSHA256, HMACSHA512 or HMACSHA1")
	}
	if len(secret) == 0 {
		return Key{}, errors.New("must not be empty: anyone could sign with it")
	}
	secret = append([]byte(nil), secret...)
	return Key{algorithm: a, mac: func() hash.Hash { return hmac.New(h, secret) }}, nil
}

// PublicKey returns a key for Ed25519, from the 32 bytes of a public key.
func PublicKey(public []byte) (Key, error) {
	if len(public) != ed25519.PublicKeySize {
		return Key{}, errors.New("is not an Ed25519 public key of 32 bytes")
	}
	key := ed25519.PublicKey(append([]byte(nil), public...))
	return Key{algorithm: Ed25519, public: func() ed25519.PublicKey { return key }}, nil
}

// RSAKey returns a key for RSASHA256 or RSASHA1, from a certificate's public key.
func RSAKey(a Algorithm, public *rsa.PublicKey) Key { return Key{algorithm: a, rsa: public} }

// Algorithm returns the algorithm of the key's signatures.
func (k Key) Algorithm() Algorithm { return k.algorithm }

// IsZero reports whether the key is the zero value, which verifies no signature.
func (k Key) IsZero() bool { return k.mac == nil && k.public == nil && k.rsa == nil }

// Checker returns a function that reports, as 1 or 0, whether a signature is this key's over a
// message, which is given in pieces. It compares a MAC in constant time (W4), and returns 0 for a
// value of the wrong length.
func (k Key) Checker(pieces [][]byte) func(signature []byte) int {
	if k.algorithm == Ed25519 { // reads the message twice, and needs it in one piece
		message := bytes.Join(pieces, nil)
		return func(signature []byte) int { return oneIf(ed25519.Verify(k.public(), message, signature)) }
	}
	if k.rsa != nil {
		kind := crypto.SHA256
		if k.algorithm == RSASHA1 {
			kind = crypto.SHA1
		}
		h := kind.New()
		for _, p := range pieces {
			_, _ = h.Write(p)
		}
		sum := h.Sum(nil)
		return func(signature []byte) int { return oneIf(rsa.VerifyPKCS1v15(k.rsa, kind, sum, signature) == nil) }
	}
	mac := k.mac()
	for _, p := range pieces {
		_, _ = mac.Write(p)
	}
	want := mac.Sum(nil)
	return func(signature []byte) int { return subtle.ConstantTimeCompare(want, signature) }
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// RawKey returns a Scheme.Key for a provider that uses the secret's characters as they are.
func RawKey(a Algorithm) func(string) (Key, error) {
	return func(secret string) (Key, error) {
		if strings.TrimSpace(secret) != secret {
			return Key{}, errors.New("begins or ends with white space (a line end?)")
		}
		return MACKey(a, []byte(secret))
	}
}
