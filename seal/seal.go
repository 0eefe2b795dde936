// Package seal encrypts stored values: bodies of calls, of events and of parked messages, and
// answers to HTTP requests. It is a separate package because all of these use it.
//
// A sealed value is AES-256-GCM (NIST SP 800-38D) with a random nonce of 96 bits, bound to the key
// that it is stored under:
//
//	1 byte    version, 1
//	4 bytes   id of the encryption key, big-endian
//	12 bytes  nonce
//	n bytes   ciphertext
//	16 bytes  tag
//
// The first five bytes and the key that the value is stored under are authenticated together with
// it. A value that is moved to another row does not open.
//
// To rotate the encryption key, first add the new key in every process that opens values. Then make
// it current in the processes that seal. Remove the old key when no stored value is sealed with it
// any more. With random nonces one key is good for 2^32 values (SP 800-38D section 8.3): rotate
// long before that.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	formatVersion = 1
	headerSize    = 1 + 4
)

// Errors of [Sealer.Open].
var (
	// ErrKey means that this Sealer does not have the encryption key of the value.
	ErrKey = errors.New("seal: unknown encryption key")
	// ErrValue means that the value was changed, was sealed for another row, or is not a sealed
	// value.
	ErrValue = errors.New("seal: not a sealed value, or not one of this key")
)

// Key is a secret of 32 random bytes. Keep it where you keep other secrets. [ParseKey] reads one.
type Key [32]byte

// ParseKey reads a key from text, for example from an environment variable: 64 hex digits, as
// `openssl rand -hex 32` prints them, or 44 characters of base64, as `openssl rand -base64 32`
// does. White space around it is ignored. The error does not quote the text.
func ParseKey(text string) (key Key, err error) {
	text = strings.TrimSpace(text)
	raw, err := hex.DecodeString(text)
	if err != nil {
		raw, err = base64.StdEncoding.DecodeString(text)
	}
	if err != nil || len(raw) != len(key) {
		return key, errors.New("seal: a key must be 32 bytes, as 64 hex digits or 44 characters of base64")
	}
	copy(key[:], raw)
	return key, nil
}

// Keys are the keys by id, and the id of the current one, which seals new values. To rotate, first
// add the new key in every process, then make it current, and remove the old one when no stored
// value needs it.
type Keys struct {
	Current uint32
	ByID    map[uint32]Key
}

// Sealer seals with one key and opens with several. It is safe for concurrent use.
type Sealer struct {
	current uint32
	keys    map[uint32]cipher.AEAD
}

// New returns a Sealer that opens values sealed with any of the keys, and seals with the current
// one. It returns an error if a key is all zeros or if the current one is not among them.
func New(keys Keys) (*Sealer, error) {
	s := &Sealer{current: keys.Current, keys: make(map[uint32]cipher.AEAD, len(keys.ByID))}
	for id, k := range keys.ByID {
		if k == (Key{}) {
			return nil, fmt.Errorf("seal: key %d is all zeros", id)
		}
		block, err := aes.NewCipher(k[:])
		if err != nil {
			return nil, fmt.Errorf("seal: key %d: %w", id, err)
		}
		if s.keys[id], err = cipher.NewGCM(block); err != nil {
			return nil, fmt.Errorf("seal: key %d: %w", id, err)
		}
	}
	if s.keys[keys.Current] == nil {
		return nil, fmt.Errorf("seal: the current key, %d, is not among the keys", keys.Current)
	}
	return s, nil
}

// Seal encrypts a value and binds it to the key that it is stored under. The result is 33 bytes
// longer than the value.
func (s *Sealer) Seal(key [16]byte, value []byte) ([]byte, error) {
	aead := s.keys[s.current]
	out := make([]byte, headerSize+aead.NonceSize(), headerSize+aead.NonceSize()+len(value)+aead.Overhead())
	out[0] = formatVersion
	binary.BigEndian.PutUint32(out[1:], s.current)
	nonce := out[headerSize:]
	_, _ = rand.Read(nonce) // never fails
	return aead.Seal(out, nonce, value, associatedData(out, key)), nil
}

// Open decrypts a value that Seal returned for the same key. It returns [ErrKey] or [ErrValue], to
// be tested with errors.Is.
func (s *Sealer) Open(key [16]byte, sealed []byte) ([]byte, error) {
	if len(sealed) < headerSize || sealed[0] != formatVersion {
		return nil, ErrValue
	}
	id := binary.BigEndian.Uint32(sealed[1:])
	aead := s.keys[id]
	if aead == nil {
		return nil, fmt.Errorf("%w %d", ErrKey, id)
	}
	if len(sealed) < headerSize+aead.NonceSize()+aead.Overhead() {
		return nil, ErrValue
	}
	nonce := sealed[headerSize : headerSize+aead.NonceSize()]
	value, err := aead.Open([]byte{}, nonce, sealed[headerSize+aead.NonceSize():], associatedData(sealed, key))
	if err != nil {
		return nil, ErrValue
	}
	return value, nil
}

// associatedData returns what is authenticated besides the value.
func associatedData(sealed []byte, key [16]byte) []byte {
	return append(append(make([]byte, 0, headerSize+len(key)), sealed[:headerSize]...), key[:]...)
}
