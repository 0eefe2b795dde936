package consumer

import (
	"context"
	"sync"
)

// budget bounds what all partitions of a process hold unpacked: messages that were fetched and not
// yet handled, and what a current fetch may bring (F14). Half of it is divided evenly between the
// partitions that are read, so that none waits for another, however long the other keeps what it
// holds. The other half is lent to partitions with more in their logs. A partition that holds
// nothing may always fetch one message, whatever its size.
type budget struct {
	limit int64

	mu     sync.Mutex
	shares map[*share]struct{}
	used   int64 // what all shares hold
	lent   int64 // what they hold beyond their own parts
}

// share is what one partition holds of the budget. The budget's mutex protects it.
type share struct {
	held  int64
	freed chan struct{} // of size 1: receives when asking again may succeed
}

// minRoomPart is the part of the possible room for which a partition waits, so that it does not
// fetch message by message.
const minRoomPart = 4

// addShare adds a partition. The parts of the others become smaller.
func (b *budget) addShare() *share {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shares == nil {
		b.shares = make(map[*share]struct{})
	}
	s := &share{freed: make(chan struct{}, 1)}
	b.shares[s] = struct{}{}
	b.recountLent()
	return s
}

// removeShare gives back all that a partition holds.
func (b *budget) removeShare(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.shares, s)
	b.used -= s.held
	b.recountLent()
	b.wakeAll()
}

// recountLent counts anew what is lent, because the parts have changed.
func (b *budget) recountLent() {
	b.lent = 0
	for s := range b.shares {
		b.lent += b.excess(s)
	}
}

// quota is what belongs to each partition.
func (b *budget) quota() int64 { return b.limit / 2 / int64(max(len(b.shares), 1)) }

// excess is what a partition holds above its part.
func (b *budget) excess(s *share) int64 { return max(s.held-b.quota(), 0) }

// add changes what a partition holds.
func (b *budget) add(s *share, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setHeld(s, s.held+n)
}

func (b *budget) setHeld(s *share, held int64) {
	freed, lent := held < s.held, b.excess(s)
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
func (b *budget) wakeAll() {
	for s := range b.shares {
		s.wake()
	}
}

// wake never blocks, because its caller holds the budget's mutex. If the channel is full, the
// partition asks again anyway.
func (s *share) wake() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// reserve waits until a partition may fetch, and returns how many bytes; the caller gives back with
// add what the fetch did not bring. more means that the log is known to hold more; without more, a
// loan would only be kept idle. It returns false if ctx ends first.
func (b *budget) reserve(ctx context.Context, s *share, more bool) (int64, bool) {
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
func (b *budget) room(s *share, more bool) int64 {
	part, lendable := b.quota(), b.limit-b.limit/2
	own, loan := max(part-s.held, 0), int64(0)
	if more && b.lent < lendable {
		loan = min(lendable-b.lent, max(lendable/8, 1))
	}
	// Partitions that hold more than their part, because there were fewer before, have to handle it
	// first.
	switch n := min(own+loan, b.limit-b.used); {
	case s.held == 0:
		return max(n, 1)
	case n > part/minRoomPart:
		return n
	}
	return 0
}
