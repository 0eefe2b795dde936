package consumer

import (
	"encoding/binary"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// The memory of blocked keys is bounded. If it is full, every batch asks.
func TestBlockedKeys(t *testing.T) {
	t.Parallel()
	key := func(n uint32) (k pgtype.UUID) {
		binary.BigEndian.PutUint32(k.Bytes[:], n)
		return k
	}
	var b blockedKeys
	b.note(key(1), false)
	if b.any([]pgtype.UUID{key(1)}) {
		t.Error("a key that was never blocked")
	}
	b.note(key(1), true)
	b.note(key(2), true)
	if !b.any([]pgtype.UUID{key(7), key(1)}) || b.any([]pgtype.UUID{key(7)}) {
		t.Error("blocked keys are not found, or others are")
	}
	b.note(key(1), false)
	if b.any([]pgtype.UUID{key(1)}) || !b.any([]pgtype.UUID{key(2)}) {
		t.Error("a key is not forgotten when it is free again")
	}
	for n := range uint32(2 * maxBlockedKeys) {
		b.note(key(10+n), true)
	}
	if len(b) != maxBlockedKeys || !b.any([]pgtype.UUID{key(7)}) {
		t.Errorf("%d keys, and a batch with others does not ask", len(b))
	}
}
