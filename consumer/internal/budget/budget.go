// Package budget bounds the memory of messages that a consumer fetches ahead.
package budget

import (
	"context"
	"sync"
)

// Budget bounds what all partitions of a process hold unpacked: messages that were fetched and not
// yet handled, and what a current fetch may bring (F14). Half of it is divided evenly between the
// partitions that are read, so that none waits for another, however long the other keeps what it
// holds. The other half is lent to partitions with more in their logs. A partition that holds
// nothing may always fetch one message, whatever its size.
type Budget struct {
	Limit int64 // bytes; set before use

	mu     sync.Mutex
	shares map[*Share]struct{}
	used   int64 // what all shares hold
	lent   int64 // what they hold beyond their own parts
}

// Share is what one partition holds of the budget. The budget's mutex protects it.
type Share struct {
	held  int64
	freed chan struct{} // of size 1: receives when asking again may succeed
}

// minRoomPart is the part of the possible room for which a partition waits, so that it does not
// fetch message by message.
const minRoomPart = 4

// AddShare adds a partition. The parts of the others become smaller, until the caller removes it.
func (b *Budget) AddShare() *Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shares == nil {
		b.shares = make(map[*Share]struct{})
	}
	s := &Share{freed: make(chan struct{}, 1)}
	b.shares[s] = struct{}{}
	b.recountLent()
	return s
}

// RemoveShare gives back all that a partition holds.
func (b *Budget) RemoveShare(s *Share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.shares, s)
	b.used -= s.held
	b.recountLent()
	b.wakeAll()
}

// recountLent counts anew what is lent, because the parts have changed.
func (b *Budget) recountLent() {
	b.lent = 0
	for s := range b.shares {
		b.lent += b.excess(s)
	}
}

// quota is what belongs to each partition.
func (b *Budget) quota() int64 { return b.Limit / 2 / int64(max(len(b.shares), 1)) }

// excess is what a partition holds above its part.
func (b *Budget) excess(s *Share) int64 { return max(s.held-b.quota(), 0) }

// Add changes what a partition holds.
func (b *Budget) Add(s *Share, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setHeld(s, s.held+n)
}

func (b *Budget) setHeld(s *Share, held int64) {
	freed := held < s.held
	lent := b.excess(s)
	b.used += held - s.held
	s.held = held
	returned := lent - b.excess(s)
	b.lent -= returned
	switch {
	case returned > 0:
		b.wakeAll()
	case freed:
		s.wake()
	}
}

// wakeAll makes all waiting partitions ask again.
func (b *Budget) wakeAll() {
	for s := range b.shares {
		s.wake()
	}
}

// wake never blocks, because its caller holds the budget's mutex. If the channel is full, the
// partition asks again anyway.
func (s *Share) wake() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// Reserve waits until a partition may fetch, and returns how many bytes; the caller gives back with
// Add what the fetch did not bring. more means that the log is known to hold more; without more, a
// loan would only be kept idle. It returns false if ctx ends first.
func (b *Budget) Reserve(ctx context.Context, s *Share, more bool) (int64, bool) {
	for {
		b.mu.Lock()
		if n := b.room(s, more); n > 0 {
			b.setHeld(s, s.held+n)
			b.mu.Unlock()
			return n, true
		}
		b.mu.Unlock()
		select {
		case <-s.freed:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// room returns how many bytes a partition may fetch now, 0 for none.
func (b *Budget) room(s *Share, more bool) int64 {
	part := b.quota()
	lendable := b.Limit - b.Limit/2
	own := max(part-s.held, 0)
	loan := int64(0)
	if more && b.lent < lendable {
		loan = min(lendable-b.lent, max(lendable/8, 1))
	}
	// Partitions that hold more than their part, because there were fewer before, have to handle it
	// first.
	switch n := min(own+loan, b.Limit-b.used); {
	case s.held == 0:
		return max(n, 1)
	case n > part/minRoomPart:
		return n
	}
	return 0
}
