package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
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
)

// size returns the length of a signature in bytes, or 0 for an unknown algorithm.
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

// Key verifies signatures of one algorithm only. So a public key, which is no secret, is never used
// as the secret of an HMAC. If it is printed, only addresses appear.
type Key struct {
	algorithm Algorithm
	// Both are functions, so that no verb of package fmt can print the secret in them.
	mac    func() hash.Hash
	public func() ed25519.PublicKey
}

// MACKey returns a key for HMACSHA256 or HMACSHA512.
func MACKey(a Algorithm, secret []byte) (Key, error) {
	var h func() hash.Hash
	switch a {
	case HMACSHA256:
		h = sha256.New
	case HMACSHA512:
		h = sha512.New
	default:
		return Key{}, errors.New("must be for HMACSHA256 or HMACSHA512")
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

// rawKey returns a Scheme.Key for providers that use the secret's characters as they are.
func rawKey(a Algorithm) func(string) (Key, error) {
	return func(secret string) (Key, error) {
		if strings.TrimSpace(secret) != secret {
			return Key{}, errors.New("begins or ends with white space (a line end?)")
		}
		return MACKey(a, []byte(secret))
	}
}
