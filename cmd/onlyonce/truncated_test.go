package main

import (
	"slices"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// rewritten simulates an unclean election: the log is cut off at an offset, and other records are
// written instead.
func (s *shop) rewritten(from int64, values ...string) {
	s.log.Truncate(0, from)
	s.keyed("anew", values...)
}

// truncated runs a consumer until it halts, and fails the test unless the reason is that the log
// was truncated.
func (s *shop) truncated(position int64) (stop func()) {
	s.t.Helper()
	halts := make(chan *consumer.HaltError, 1000)
	stop = s.start(effect, func(c *consumer.Config) { c.Hooks.Halted = func(h *consumer.HaltError) { halts <- h } })
	if h := next(s.t, halts); h.Reason != consumer.HaltTruncated || h.Position != position {
		s.t.Errorf("halt: %v", h)
	}
	return stop
}

// F5: what proves that the log below the position is the same outlives a replay, which leaves the
// position and comes back to it.
func TestF5ReplayKeepsWhatProvesTheLog(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.keyed("a", "v0", "v1", "v2", "v3", "v4")
	s.log.Skip(0, 5) // an aborted transaction: only the leader epoch shows whether it is gone
	stop := s.start(effect, nil)
	s.reaches(10)
	stop()
	s.run(replayArgs("-from", "0", "-to", "3", "-yes")...).want(t, statusGood)
	s.rewritten(5, "n5", "n6", "n7", "n8", "n9", "n10")
	stop = s.truncated(10)
	s.times(map[int64]int{0: 2, 1: 2, 2: 2, 3: 1, 4: 1})

	// If an operator sets the position, there is nothing to compare it with.
	s.run("cursor", "adopt", "-scope", "stock", "-topic", "orders", "-partition", "0", "-at", "7", "-reason", "INC-8", "-yes").want(
		t,
		statusGood,
	)
	s.reaches(11)
	stop()
	s.times(map[int64]int{0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 7: 1, 8: 1, 9: 1, 10: 1})
}

// F5, F13: the proof comes along when a partition moves to another database.
func TestF5MoveKeepsWhatProvesTheLog(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	s.log.Elect(1)
	for _, v := range []string{"v0", "v1"} {
		s.append(1, v)
	}
	s.log.Skip(1, 3)
	_, stop := s.start("a", effect, nil)
	s.a.until(`select coalesce(bool_and(next_offset = 5), false) from onlyonce.positions where partition = 1`)
	stop()
	s.a.run(moveArgs("retire", "-postgres", s.a.url)...).want(t, statusGood)
	s.a.run(moveArgs("adopt", "-postgres", s.b.url, "-from", s.a.url)...).want(t, statusGood)
	s.log.Truncate(1, 2)
	for _, v := range []string{"n2", "n3", "n4", "n5"} {
		s.append(1, v)
	}
	halts, stop := s.start("b", effect, nil)
	if h := next(t, halts); h.Reason != consumer.HaltTruncated || h.Position != 5 {
		t.Errorf("halt: %v", h)
	}
	stop()
	if n := one[int](s.b, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects of what was written anew", n)
	}
	if got := one[[]int32](
		s.b,
		`select array_agg(leader_epoch) from onlyonce.positions where partition = 1`,
	); !slices.Equal(got, []int32{1}) {
		t.Errorf("leader epochs %v", got)
	}
}
