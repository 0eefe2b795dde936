package budget

import (
	"context"
	"testing"

	"pgregory.net/rapid"
)

// This test is inside the package because what a partition may fetch at a moment shows from outside
// only as time.

// F14: whatever partitions come, fetch, handle and go, and whatever the sizes of messages, what
// they hold is at most the budget and one message each; one that holds nothing may always fetch,
// and one that was divided in time may always have its part, however long others keep what they
// hold.
func TestF14BudgetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 100_000).Draw(t, "limit")
		b := &Budget{Limit: limit}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // reserve returns at once
		type partition struct {
			s    *Share
			over int64 // by how much one message of it may exceed what was reserved
		}
		var all []*partition
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			step := rapid.IntRange(0, 9).Draw(t, "step")
			if len(all) == 0 || step == 0 {
				all = append(all, &partition{s: b.AddShare()})
				continue
			}
			p := all[rapid.IntRange(0, len(all)-1).Draw(t, "partition")]
			switch {
			case step == 1:
				b.RemoveShare(p.s)
				all = deleteOne(all, p)
			case step < 7:
				before := p.s.held
				b.mu.Lock()
				room := b.room(p.s, rapid.Bool().Draw(t, "more"))
				b.mu.Unlock()
				if room == 0 {
					if before == 0 {
						t.Fatal("a partition that holds nothing may not fetch")
					}
					continue
				}
				if n, ok := b.Reserve(ctx, p.s, false); ok {
					room = n
				} else {
					b.Add(p.s, room) // it was lent
				}
				if before == 0 {
					p.over = 1 // room for one message, whether or not there is any
				}
				got := rapid.Int64Range(0, room).Draw(t, "bytes")
				if rapid.Bool().Draw(t, "one message") {
					got = rapid.Int64Range(1, 50_000).Draw(t, "size")
				}
				p.over = max(p.over, got)
				b.Add(p.s, got-room)
			default:
				b.Add(p.s, -rapid.Int64Range(0, p.s.held).Draw(t, "handled"))
			}
			var used, over, lent int64
			for _, p := range all {
				used = used + p.s.held
				lent = lent + b.excess(p.s)
				over += p.over
			}
			if used > limit+over || used != b.used || lent != b.lent {
				t.Fatalf("%d bytes are held, of %d, with %d for single messages (counted: %d, and %d lent for %d)",
					used, limit, over, b.used, b.lent, lent)
			}
		}
	})
}

func deleteOne[T comparable](all []T, one T) (left []T) {
	for _, x := range all {
		if x != one {
			left = append(left, x)
		}
	}
	return left
}

// F14: partitions that keep all that they can get leave the others their parts.
func TestF14StuckPartitionsLeaveTheOthersTheirParts(t *testing.T) {
	const limit, partitions = 1 << 20, 50
	b := &Budget{Limit: limit}
	var all []*Share
	for range partitions {
		all = append(all, b.AddShare())
	}
	for range 100 { // all but the last take what they can
		for _, s := range all[:partitions-1] {
			b.mu.Lock()
			n := b.room(s, true)
			b.mu.Unlock()
			b.Add(s, n)
		}
	}
	last := all[partitions-1]
	if n := b.room(last, true); n < limit/2/partitions {
		t.Errorf("the last one may fetch %d bytes, and its part is %d", n, limit/2/partitions)
	}
	if b.used > limit {
		t.Errorf("%d bytes are held, of %d", b.used, limit)
	}
}
