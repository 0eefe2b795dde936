package idempotency

import (
	"encoding/binary"
	"sync/atomic"
)

// seen remembers keys under which this process knows a record, so that their copies are answered from it with one query, and new requests do
// not look for what is not there before they claim. It forgets what it likes, and decides nothing: the claim looks for a record itself.
type seen struct {
	slots [1 << 15]atomic.Uint64
}

func (s *seen) slot(id [16]byte) (*atomic.Uint64, uint64) {
	mark := binary.BigEndian.Uint64(id[8:]) // random in every id
	return &s.slots[mark%uint64(len(s.slots))], mark
}

func (s *seen) add(id [16]byte) {
	slot, mark := s.slot(id)
	slot.Store(mark)
}

func (s *seen) has(id [16]byte) bool {
	slot, mark := s.slot(id)
	return slot.Load() == mark
}
