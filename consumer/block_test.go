package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

func blocking() consumer.Config {
	cfg := testConfig()
	cfg.OnFailure = consumer.BlockPartition
	return cfg
}

// offsetsInOrder fails the test unless the effects of each partition came in the order of their
// offsets.
func (r *rig) offsetsInOrder() {
	r.t.Helper()
	n := r.count(`select count(*) from (select off < lag(off) over (partition by part order by n) as wrong from effects) e where wrong`)
	if n != 0 {
		r.t.Errorf("%d effects are out of order", n)
	}
}

// D3: under BlockPartition no message is passed over, however often it fails. Other partitions
// continue meanwhile.
func TestD3BlockedPartitionWaitsForItsMessage(t *testing.T) {
	both(t, "fails", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 2)
		values := r.numbered(0, 30)
		values = append(values, r.numbered(1, 30)...)
		var well atomic.Bool
		var attempt atomic.Int32
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if m.Partition == 0 && m.Offset == 7 && !well.Load() {
				attempt.Store(int32(m.Attempt))
				return errBoom
			}
			return queued(ctx, tx, m)
		}, blocking())
		r.reaches(1, 30)
		until(t, "more attempts than MaxAttempts", func() bool { return attempt.Load() > 8 })
		if n := r.position(0); n != 7 {
			t.Errorf("position %d", n)
		}
		well.Store(true)
		r.reaches(0, 30)
		stop()
		r.once(values...)
		r.offsetsInOrder()
		if len(r.reasons()) > 0 || len(r.halts) > 0 {
			t.Errorf("parked: %v, halts: %v", r.reasons(), r.halts)
		}
		if n := r.count(`select coalesce(max(attempts), 0) from onlyonce.attempts`); n > 1 {
			t.Errorf("%d attempts are counted, though each had an answer", n)
		}
	})
}

// D3: if another attempt cannot help, the partition halts. It continues by itself once that is
// resolved.
func TestD3BlockedPartitionHalts(t *testing.T) {
	for name, bad := range map[string][]consumer.Header{"permanent": {id("p0-7")}, "no-key": nil, "conflict": {id("p0-2")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			values := r.numbered(0, 7)
			r.log.Append(0, "bad", bad...)
			r.log.Append(0, "behind", id("behind"))
			values = append(values, r.numbered(1, 30)...)
			var well atomic.Bool
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if name == "permanent" && string(m.Value) == "bad" && !well.Load() {
					return consumer.Permanent(errBoom)
				}
				return queued(ctx, tx, m)
			}, blocking())
			h := r.halted()
			r.reaches(1, 30)
			good := h.Reason == consumer.HaltBlocked &&
				h.Position == 7 &&
				strings.Contains(h.Detail, name) &&
				strings.HasPrefix(h.Command(), "onlyonce cursor adopt -scope stock -topic orders -partition 0 -at OFFSET")
			if !good {
				t.Errorf("halt: %v", h)
			}
			until(t, "it looks again", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.halts) > 1 })
			if n := r.position(0); n != 7 {
				t.Errorf("position %d", n)
			}
			r.once(values...)
			if name == "permanent" { // for example, a new version of the handler
				well.Store(true)
				values = append(values, "bad")
			} else { // an operator passes over it, as `onlyonce cursor adopt -at 8` does
				r.exec(`update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid() where name = 'cursor/stock/orders/0'`)
				r.exec(`update onlyonce.cursors set run = run + 1, run_start = 8 where partition = 0`)
				r.exec(`delete from onlyonce.attempts`)
			}
			r.reaches(0, 9)
			stop()
			r.once(append(values, "behind")...)
			if n := r.count(`select count(*) from onlyonce.parked`); n != 0 || len(r.reasons()) > 0 {
				t.Errorf("%d parked", n)
			}
		})
	}
}

// F9: a message that kills its process halts its partition instead of killing each successor.
func TestF9MessageThatKillsTheProcessBlocks(t *testing.T) {
	t.Parallel()
	r, values := crashed(t, "poison that blocks")
	for range testConfig().MaxAttempts {
		runChild(t, "poison that blocks", r.pool.Config().ConnString())
	}
	for range 2 { // and the one after it, too
		r.halts = nil
		stop := r.start(queued, blocking())
		h := r.halted()
		if h.Reason != consumer.HaltBlocked || h.Position != 14 || !strings.Contains(h.Detail, "crashed") {
			t.Errorf("halt: %v", h)
		}
		until(t, "it looks again", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.halts) > 1 })
		stop()
		r.once(values[:14]...)
	}
	// As `adopt -at 14` does: try it again.
	r.exec(`delete from onlyonce.attempts`)
	stop := r.start(queued, blocking())
	r.reaches(0, 30)
	stop()
	r.once(values...)
	r.offsetsInOrder()
}

// An error that asks for a later try gets one, not before.
func TestRetryAfterIsWaitedFor(t *testing.T) {
	const after = 40 * time.Millisecond // eight times what the policy would wait
	for _, policy := range []consumer.FailurePolicy{consumer.ParkMessage, consumer.ParkOrderingKey, consumer.BlockPartition} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.log.AppendMessage(0, &consumer.Message{Key: []byte("k"), Value: []byte("v"), Headers: []consumer.Header{id("v")}})
			cfg := testConfig()
			cfg.OnFailure = policy
			cfg.MaxAttempts = 10
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if m.Attempt < 4 {
					return fmt.Errorf("the remote: %w", consumer.RetryAfter(errBoom, after))
				}
				return queued(ctx, tx, m)
			}, cfg)
			until(t, "the effect", func() bool { return r.count(`select count(*) from effects`) == 1 })
			stop()
			r.mu.Lock()
			defer r.mu.Unlock()
			waits := 0
			for _, e := range r.tries {
				if e.Attempt == 0 {
					continue
				}
				waits++
				if e.Wait < after || e.Parked != (policy == consumer.ParkOrderingKey) {
					t.Errorf("tried again: %+v", e)
				}
			}
			want := 3
			if policy == consumer.ParkOrderingKey {
				want = 2 // the first failure parks it
			}
			if waits != want {
				t.Errorf("%d waits, want %d", waits, want)
			}
		})
	}
	if err := consumer.RetryAfter(nil, time.Second); err != nil {
		t.Error(err)
	}
}
