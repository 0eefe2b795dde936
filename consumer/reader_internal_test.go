package consumer

import (
	"strings"
	"testing"
)

// F10: what a fetch brings at or above the end of a replay does not enter. Everything else does.
func TestF10FetchEndsWithTheReplay(t *testing.T) {
	t.Parallel()
	until := int64(6)
	for _, c := range []struct {
		offsets  []int64
		next     int64
		admitted int
		wantNext int64
	}{
		{[]int64{3, 4}, 5, 2, 5},
		{[]int64{3, 5}, 6, 2, 6},
		{[]int64{3, 5, 6, 9}, 10, 2, 6},
		{[]int64{3}, 10, 1, 6},
		{[]int64{7, 8}, 9, 0, 6},
		{nil, 9, 0, 6},
		{nil, 4, 0, 4},
	} {
		owner := &Consumer{shared: &shared{}}
		r := &reader{
			cur:     &cursor{replayUntil: &until, replayNo: 4},
			mark:    func([]*Message) {},
			fetches: &prefetcher{budget: &owner.budget, share: owner.budget.AddShare()},
		}
		got := fetched{Next: c.next}
		for _, o := range c.offsets {
			got.Messages = append(got.Messages, &Message{Offset: o})
		}
		all := r.admit(got)
		if len(all.Messages) != c.admitted || all.Next != c.wantNext {
			t.Errorf("%v up to %d: %d messages up to %d, want %d up to %d",
				c.offsets, c.next, len(all.Messages), all.Next, c.admitted, c.wantNext)
		}
		for _, m := range all.Messages {
			if m.replay != 4 {
				t.Errorf("%v: offset %d is not of the replay", c.offsets, m.Offset)
			}
		}
		r.cur = &cursor{}
		if all = r.admit(got); len(all.Messages) != len(c.offsets) || all.Next != c.next {
			t.Errorf("%v: without a replay %d messages up to %d", c.offsets, len(all.Messages), all.Next)
		}
	}
}

// F10: a replay whose position is above where it interrupted the work does not end: what is between
// would be passed over.
func TestF10ReplayDoesNotEndAboveTheInterruptedPosition(t *testing.T) {
	t.Parallel()
	w := &worker{}
	w.cur = &cursor{replayNo: 4, replayResume: 5}
	w.pos = 6
	if err := w.endReplay(t.Context()); err == nil || !strings.Contains(err.Error(), "at offset 6, above offset 5") {
		t.Errorf("it ends with %v", err)
	}
}
