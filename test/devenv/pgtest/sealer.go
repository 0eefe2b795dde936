package pgtest

import (
	"testing"

	"github.com/onlyonce/onlyonce/seal"
)

// Sealer returns a Sealer that seals with the key current and opens with the others too. A key
// begins with the byte of its id, and the rest are zeros.
func Sealer(t testing.TB, current uint32, others ...uint32) *seal.Sealer {
	t.Helper()
	keys := seal.Keys{Current: current, ByID: map[uint32]seal.Key{current: {byte(current)}}}
	for _, id := range others {
		keys.ByID[id] = seal.Key{byte(id)}
	}
	s, err := seal.New(keys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
