package idempotency

import (
	"errors"

	"github.com/onlyonce/onlyonce/internal/codec"
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

// sealPlace is where a value is stored, see codec.SealPlace: a record or an operation, the kind of
// the value, and the name of the step.
type sealPlace struct {
	id         [16]byte
	kind, name string
}

func (p sealPlace) hash() [16]byte { return codec.SealPlace(p.id, p.kind, p.name) }

// seal seals a value for a place, and reports whether it did: without a Sealer the value is stored
// as it is (H16).
func (l *Layer) seal(place sealPlace, value []byte) (stored []byte, sealed bool, err error) {
	if l.cfg.Sealer == nil {
		return value, false, nil
	}
	stored, err = l.cfg.Sealer.Seal(place.hash(), value)
	return stored, true, err
}

var (
	// errNoSealer is returned for a sealed value if there is no Sealer.
	errNoSealer = errors.New("idempotency: the stored value is sealed, but Config.Sealer is not set")
	// errUnsealed is returned for a value that is not sealed although the configuration requires
	// it.
	errUnsealed = errors.New("idempotency: the stored value is not sealed, but Config.RequireSealed is set")
)

// unseal returns the value that was stored in a place (H24).
func (l *Layer) unseal(place sealPlace, stored []byte, sealed bool) ([]byte, error) {
	switch {
	case !sealed && l.cfg.RequireSealed:
		return nil, errUnsealed
	case !sealed:
		return stored, nil
	case l.cfg.Sealer == nil:
		return nil, errNoSealer
	}
	return l.cfg.Sealer.Open(place.hash(), stored)
}
