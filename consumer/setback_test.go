package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
)

var onCall = ops.By{Actor: "ann", Reason: "INC-1"}

// setTo sets the position of partition 0 as `onlyonce cursor adopt -at` does.
func (r *rig) setTo(offset int64) {
	r.t.Helper()
	partition := int32(0)
	in := ops.AdoptInput{Scope: "stock", Topic: "orders", Partition: &partition, At: fmt.Sprint(offset)}
	if _, err := ops.AdoptCursor(r.t.Context(), r.pool, onCall, in); err != nil {
		r.t.Fatal(err)
	}
}

// onPositions is a consumer without ids.
func onPositions() consumer.Config {
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	return cfg
}

// K7: a position is set back over parked messages, by each door. They are passed over, wait as
// before, and are applied once when they are redriven.
func TestK7SetBackOverParkedMessages(t *testing.T) {
	doors := map[string]func(*rig){
		"adopt": func(r *rig) { r.setTo(1) },
		"replay": func(r *rig) {
			in := ops.ReplayInput{CursorName: ops.CursorName{Scope: "stock", Topic: "orders"}, From: 1}
			if _, err := ops.Replay(r.t.Context(), r.pool, onCall, in); err != nil {
				r.t.Fatal(err)
			}
		},
		"retired": func(r *rig) {
			in := ops.RetireInput{CursorName: ops.CursorName{Scope: "stock", Topic: "orders"}}
			if _, err := ops.RetireCursor(r.t.Context(), r.pool, onCall, in); err != nil {
				r.t.Fatal(err)
			}
			r.setTo(1)
		},
	}
	for door, setBack := range doors {
		for _, policy := range []consumer.FailurePolicy{consumer.ParkMessage, consumer.ParkOrderingKey} {
			t.Run(fmt.Sprintf("%s %v", door, policy), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				for i := range 4 {
					r.log.AppendMessage(0, &consumer.Message{Key: []byte("account"), Value: fmt.Append(nil, "m", i)})
				}
				cfg := onPositions()
				cfg.OnFailure = policy
				var healed atomic.Bool
				stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					if string(m.Value) == "m1" && !healed.Load() {
						return errBoom
					}
					return effect(ctx, tx, m)
				}, cfg)
				r.reaches(0, 4)
				until(t, "m1 to be left to an operator", func() bool {
					return r.count(`select count(*) from onlyonce.parked where state = 'waiting'`) == 1
				})
				rows := r.count(`select count(*) from onlyonce.parked`)
				stop()
				healed.Store(true)
				setBack(r)
				stop = r.start(effect, cfg)
				r.reaches(0, 4)
				if n := r.count(`select count(*) from effects where value = 'm1'`); n != 0 {
					t.Errorf("m1 was applied from the log, and is parked: %d effects", n)
				}
				if n := r.count(`select count(*) from onlyonce.parked`); n != rows {
					t.Errorf("%d rows are parked, want %d", n, rows)
				}
				r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()
					where state = 'waiting'`)
				until(t, "the rows to be settled", func() bool {
					return r.count(`select count(*) from onlyonce.parked where settled_at is null`) == 0
				})
				stop()
				if n := r.count(`select count(*) from effects where value = 'm1'`); n != 1 {
					t.Errorf("m1 has %d effects, want 1", n)
				}
			})
		}
	}
}

// K7: with ids. A conflict that is read again is not parked a second time.
func TestK7SetBackOverAConflict(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("1"))
	r.log.Append(0, "second", id("1"))
	stop := r.start(effect, testConfig())
	r.reaches(0, 2)
	stop()
	r.setTo(0)
	stop = r.start(effect, testConfig())
	r.reaches(0, 2)
	stop()
	if n := r.count(`select count(*) from onlyonce.parked`); n != 1 {
		t.Errorf("the conflict is parked %d times, want once", n)
	}
}

// K7: the log was written anew: a parked row of before is of another message than the one that has
// its offset now, which is applied.
func TestK7ParkedMessageOfAnotherLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "old-0")
	r.log.Append(0, "old-1")
	h := &failing{times: map[string]int{"old-1": -1}}
	stop := r.start(h.handle, onPositions())
	r.reaches(0, 2)
	stop()
	r.log.Truncate(0, 0)
	r.log.Append(0, "new-0")
	r.log.Append(0, "new-1")
	r.setTo(0)
	stop = r.start(effect, onPositions())
	r.reaches(0, 2)
	stop()
	r.once("old-0", "new-0", "new-1")
}

// K7: slots have parked a message above the position when that is set back.
func TestK7SetBackOverWhatIsParkedAboveThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := r.above(2, 6, 4)
	r.setTo(1)
	stop := r.start(effect, cfg)
	r.reaches(0, 6)
	stop()
	if n := r.count(`select count(*) from effects where off = 4`); n != 0 {
		t.Errorf("the parked message was applied from the log: %d effects", n)
	}
}

// above leaves a partition whose position is at the message that hangs, with done ones above it, of
// which some were parked.
func (r *rig) above(hangs int64, messages int, bad ...int64) consumer.Config {
	for i := range messages {
		r.log.AppendMessage(0, &consumer.Message{Key: []byte{byte('a' + i)}, Value: fmt.Append(nil, "old-", i)})
	}
	cfg := onPositions()
	cfg.Concurrency = 4
	cfg.BatchSize = 1
	cfg.DrainTimeout = 10 * time.Millisecond
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		if slices.Contains(bad, m.Offset) {
			return consumer.Permanent(errBoom)
		}
		return effect(ctx, tx, m)
	}, cfg)
	until(r.t, "all others to be done", func() bool {
		return r.count(`select (select count(*) from effects) + (select count(*) from onlyonce.parked)`) == messages-1
	})
	r.reaches(0, hangs)
	stop()
	return cfg
}

// writeAnew appends other messages after a log was cut off.
func (r *rig) writeAnew(messages int) {
	for i := range messages {
		r.log.AppendMessage(0, &consumer.Message{
			Key:   []byte{byte('p' + i)},
			Value: fmt.Append(nil, "new-", i),
			Time:  time.UnixMilli(1_800_000_000_000),
		})
	}
}

// C8: the log was cut off between the position and what is done above it. The halt is resolved as
// it says, at the position: what the log still has stays done, and its new messages are handled.
func TestC8AdoptedAtThePosition(t *testing.T) {
	for name, concurrency := range map[string]int{"slots": 4, "one at a time": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			cfg := r.above(2, 6)
			cfg.Concurrency = concurrency
			r.log.Truncate(0, 4)
			stop := r.start(effect, cfg)
			if h := r.halted(); h.Reason != consumer.HaltTruncated {
				t.Fatal(h)
			}
			r.setTo(2) // while the log still ends below what was done
			until(t, "the messages up to the log's end", func() bool {
				return r.count(`select count(*) from effects where value = 'old-2'`) == 1
			})
			r.writeAnew(6)
			r.reaches(0, 10)
			stop()
			r.once("old-0", "old-1", "old-2", "old-3", "old-4", "old-5", "new-0", "new-1", "new-2", "new-3", "new-4", "new-5")
		})
	}
}

// C8: the topic was deleted and created again while the position was at its first offset.
func TestC8AdoptedInANewTopic(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := r.above(0, 4)
	r.log.Recreate()
	r.writeAnew(3)
	stop := r.start(effect, cfg)
	if h := r.halted(); h.Reason != consumer.HaltNewTopic {
		t.Fatal(h)
	}
	r.setTo(0)
	r.reaches(0, 3)
	stop()
	r.once("old-1", "old-2", "old-3", "new-0", "new-1", "new-2")
	if n := r.count(`select count(*) from onlyonce.done where unproven`); n > 0 {
		t.Logf("rows of the old log that the new one has not reached: %d", n)
	}
}
