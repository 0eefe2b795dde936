package idempotency

import (
	"encoding/binary"
	"sync/atomic"
)

// recentKeys remembers keys that have a record, as far as this process knows. Copies of those
// requests are answered with one query, and new requests claim their key without looking for a
// record first. It may forget any key, and it decides nothing: the claim itself looks for a record
// too.
type recentKeys struct {
	slots [1 << 15]atomic.Uint64
}

func (s *recentKeys) slot(id [16]byte) (*atomic.Uint64, uint64) {
	mark := binary.BigEndian.Uint64(id[8:]) // random in every id
	return &s.slots[mark%uint64(len(s.slots))], mark
}

func (s *recentKeys) add(id [16]byte) {
	slot, mark := s.slot(id)
	slot.Store(mark)
}

func (s *recentKeys) has(id [16]byte) bool {
	slot, mark := s.slot(id)
	return slot.Load() == mark
}
