package idempotency

import (
	"errors"
)

// The kinds of sealed values (H24), see codec.SealPlace: the answer of a record and the results of
// its steps, the input and the result of an operation, and a record's entry in the cache.
const (
	sealedAnswer = "answer"
	sealedStep   = "step"
	sealedInput  = "input"
	sealedResult = "result"
	sealedEntry  = "entry"
)

// seal seals a value for a place, and reports whether it did: without a Sealer the value is stored
// as it is (H16).
func (l *Layer) seal(place [16]byte, value []byte) (stored []byte, sealed bool, err error) {
	if l.cfg.Sealer == nil {
		return value, false, nil
	}
	stored, err = l.cfg.Sealer.Seal(place, value)
	return stored, true, err
}

var (
	// errNoSealer is returned for a sealed value if there is no Sealer.
	errNoSealer = errors.New("idempotency: the stored value is sealed, but Config.Sealer is not set")
	// errUnsealed is returned for a value that is not sealed although the configuration requires
	// it.
	errUnsealed = errors.New("idempotency: the stored value is not sealed, but Config.RequireSealed is set")
)

// unseal returns the value that was stored in a place.
func (l *Layer) unseal(place [16]byte, stored []byte, sealed bool) ([]byte, error) {
	switch {
	case !sealed && l.cfg.RequireSealed:
		return nil, errUnsealed
	case !sealed:
		return stored, nil
	case l.cfg.Sealer == nil:
		return nil, errNoSealer
	}
	return l.cfg.Sealer.Open(place, stored)
}
