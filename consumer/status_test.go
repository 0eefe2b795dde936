package consumer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// watched runs a consumer whose Status and pauses a test uses.
func (r *rig) watched(h consumer.Handler, cfg consumer.Config) (c *consumer.Consumer, stop func()) {
	r.t.Helper()
	cfg.Hooks = r.hooks(cfg.Hooks)
	c, err := consumer.New(r.pool, r.src, h, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return c, r.run(c)
}

// status waits until a partition stands as the condition says.
func (r *rig) status(c *consumer.Consumer, partition int, what string, cond func(consumer.PartitionStatus) bool) (got consumer.PartitionStatus) {
	r.t.Helper()
	until(r.t, what, func() bool {
		all, err := c.Status(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, s := range all {
			if s.Partition == int32(partition) {
				got = s
				return cond(s)
			}
		}
		return false
	})
	return got
}

func TestStatusTellsHowPartitionsStand(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	values := r.numbered(0, 10)
	r.log.Append(1, "no key")
	r.log.AppendMessage(1, &consumer.Message{Key: []byte("k"), Value: []byte("sick"), Headers: []consumer.Header{id("sick")}})
	r.log.AppendMessage(1, &consumer.Message{Key: []byte("k"), Value: []byte("behind"), Headers: []consumer.Header{id("behind")}})
	release := make(chan struct{})
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	defer free()
	cfg := testConfig()
	cfg.BatchSize, cfg.OnFailure = 3, consumer.ParkOrderingKey
	cfg.MaxAttempts, cfg.RetryMin, cfg.RetryMax = 5, time.Hour, time.Hour
	c, stop := r.watched(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Partition == 0 && m.Offset == 3 {
			<-release
		}
		if string(m.Value) == "sick" {
			return errBoom
		}
		return queued(ctx, tx, m)
	}, cfg)
	s := r.status(c, 0, "a batch in hand", func(s consumer.PartitionStatus) bool {
		return s.Position == 3 && s.InFlight == 3 && s.HighWatermark == 10
	})
	if s.Topic != "orders" || s.Lag != 7 || s.Epoch != 1 || s.Halted != nil || s.Paused {
		t.Errorf("%+v", s)
	}
	s = r.status(c, 1, "what is parked", func(s consumer.PartitionStatus) bool { return s.Waiting == 1 && s.ToRetry == 1 && s.Blocked == 1 })
	if s.Position != 3 || s.Lag != 0 {
		t.Errorf("%+v", s)
	}
	free()
	r.status(c, 0, "the end", func(s consumer.PartitionStatus) bool { return s.Position == 10 && s.Lag == 0 && s.InFlight == 0 })
	r.log.Skip(0, 2) // lag counts what is there, though there is nothing to handle
	r.status(c, 0, "two offsets more", func(s consumer.PartitionStatus) bool { return s.HighWatermark == 12 })
	stop()
	if all, err := c.Status(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v of a consumer that owns nothing", all, err)
	}
	r.once(values...)
}

// F8: behind an open transaction nothing is read, and Status says that the partition waits there, and since when.
func TestStatusTellsOfAnOpenTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	before := time.Now()
	values := r.numbered(0, 5)
	c, stop := r.watched(queued, testConfig())
	s := r.status(c, 0, "the end", func(s consumer.PartitionStatus) bool { return s.Position == 5 && s.HighWatermark == 5 })
	if s.LastStable != 5 || !s.WaitingSince.IsZero() || s.LastBatch.Before(before) {
		t.Errorf("at the log's end: %+v", s)
	}
	end := r.log.Begin(0)
	for _, v := range []string{"inside", "behind"} {
		r.log.Append(0, v, id(v))
		values = append(values, v)
	}
	s = r.status(c, 0, "a wait", func(s consumer.PartitionStatus) bool { return !s.WaitingSince.IsZero() && s.HighWatermark == 7 })
	if s.Position != 5 || s.LastStable != 5 || s.Lag != 2 || s.WaitingSince.Before(s.LastBatch) || s.Halted != nil {
		t.Errorf("behind an open transaction: %+v", s)
	}
	since := s.WaitingSince
	looks := 0
	r.status(c, 0, "some looks", func(s consumer.PartitionStatus) bool {
		if looks++; !s.WaitingSince.Equal(since) {
			t.Errorf("since %v, and then since %v", since, s.WaitingSince)
		}
		return looks > 20
	})
	end()
	s = r.status(c, 0, "the end", func(s consumer.PartitionStatus) bool { return s.Position == 7 && s.LastStable == 7 })
	if !s.WaitingSince.IsZero() || s.Lag != 0 || s.LastBatch.Before(since) {
		t.Errorf("at the end: %+v", s)
	}
	stop()
	r.once(values...)
}

// A halt stands in Status from its first to its last moment, with what it says of retention, and not only between two looks.
func TestStatusTellsOfHalts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Retention = time.Hour
	values := r.numbered(0, 10)
	var well atomic.Bool
	cfg := testConfig()
	cfg.OnFailure = consumer.BlockPartition
	c, stop := r.watched(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 4 && !well.Load() {
			return consumer.Permanent(errBoom)
		}
		return queued(ctx, tx, m)
	}, cfg)
	s := r.status(c, 0, "a halt", func(s consumer.PartitionStatus) bool { return s.Halted != nil })
	if h := s.Halted; h.Reason != consumer.HaltBlocked || h.Position != 4 || !h.RetainedUntil.Equal(time.UnixMilli(1_700_000_000_004).Add(time.Hour)) {
		t.Errorf("%v", h)
	}
	r.status(c, 0, "three looks", func(s consumer.PartitionStatus) bool {
		if s.Halted == nil {
			t.Error("a halted partition passed for running")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.halts) >= 3
	})
	well.Store(true)
	r.status(c, 0, "no halt", func(s consumer.PartitionStatus) bool { return s.Halted == nil && s.Position == 10 })
	r.log.DeleteBefore(0, 10)
	stop()
	r.once(values...)
	// One that is found in the log ends when the log can be read again, although nothing is handled.
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 5`)
	c, stop = r.watched(queued, cfg)
	r.status(c, 0, "a gap", func(s consumer.PartitionStatus) bool { return s.Halted != nil && s.Halted.Reason == consumer.HaltGap })
	r.exec(`update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid()`)
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 10`)
	r.status(c, 0, "no gap", func(s consumer.PartitionStatus) bool { return s.Halted == nil && s.Position == 10 })
	stop()
}

// While a partition is paused nothing of it is handled, in this process or the next; others go on; what was in hand is finished.
func TestPausedPartitionStandsStill(t *testing.T) {
	for name, topic := range map[string]string{"partition": "orders", "scope": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			r.numbered(0, 3)
			entered, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			paused, noticed := make(chan consumer.Paused, 100), make(chan struct{}, 100)
			cfg := testConfig()
			cfg.Hooks.Paused = func(p consumer.Paused) { paused <- p }
			cfg.Hooks.FetchEnd = func(_ context.Context, f consumer.FetchEnd) {
				if f.Partition == 0 && f.Err != nil {
					noticed <- struct{}{} // reading ends when the pause is noticed
				}
			}
			c, stop := r.watched(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				once.Do(func() { close(entered); <-release })
				return queued(ctx, tx, m)
			}, cfg)
			<-entered
			if err := c.Pause(t.Context(), topic, 0, ""); err == nil {
				t.Error("paused without a reason")
			}
			for range 2 { // again is no error
				if err := c.Pause(t.Context(), topic, 0, "maintenance"); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-noticed:
			case <-time.After(3 * time.Second): // it ended between two fetches, of which nobody hears; the pause is looked for each second
			}
			close(release)
			for p := range paused {
				if p.Partition == 0 {
					if p.Position != 3 { // the batch in hand was finished
						t.Errorf("paused at %d", p.Position)
					}
					break
				}
			}
			still := func(c *consumer.Consumer) {
				t.Helper()
				r.status(c, 0, "a pause", func(s consumer.PartitionStatus) bool { return s.Paused })
				next := r.position(0)
				r.log.Append(0, "later", id("later"))
				if topic != "" {
					end := r.log.Append(1, "goes on", id(time.Now().String())) + 1
					r.reaches(1, end) // time has passed
				}
				s := r.status(c, 0, "still a pause", func(s consumer.PartitionStatus) bool { return s.Paused })
				if s.Position != next || r.position(0) != next {
					t.Errorf("position %d, was %d", s.Position, next)
				}
			}
			still(c)
			stop()
			c, stop = r.watched(queued, cfg)
			still(c)
			if err := c.Resume(t.Context(), topic, 0); err != nil {
				t.Fatal(err)
			}
			r.reaches(0, 5)
			r.status(c, 0, "no pause", func(s consumer.PartitionStatus) bool { return !s.Paused })
			stop()
			if n := r.count(`select count(*) from effects where part = 0`); n != 4 {
				t.Errorf("%d effects, want 4", n)
			}
		})
	}
}

// Parked messages are not tried while their partition is paused, and are when it goes on. It is noticed although many are due.
func TestRetriesArePausedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	for _, v := range []string{"a", "b", "c"} {
		r.log.AppendMessage(0, &consumer.Message{Key: []byte(v), Value: []byte(v), Headers: []consumer.Header{id(v)}})
	}
	var well atomic.Bool
	var calls atomic.Int32
	cfg := testConfig()
	cfg.OnFailure, cfg.MaxAttempts = consumer.ParkOrderingKey, 1_000_000
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Partition == 0 && !well.Load() {
			calls.Add(1)
			return errBoom
		}
		return queued(ctx, tx, m)
	}
	c, stop := r.watched(handle, cfg)
	until(t, "tries from the database", func() bool { return calls.Load() > 20 })
	if err := c.Pause(t.Context(), "orders", 0, "maintenance"); err != nil {
		t.Fatal(err)
	}
	r.status(c, 0, "a pause", func(s consumer.PartitionStatus) bool { return s.Paused && !s.Retrying })
	before := calls.Load()
	for i := range 20 {
		r.reaches(1, r.log.Append(1, "goes on", id(string(rune('A'+i))))+1)
	}
	if n := calls.Load(); n != before {
		t.Errorf("%d tries of a partition that is paused", n-before)
	}
	well.Store(true)
	if err := c.Resume(t.Context(), "orders", 0); err != nil {
		t.Fatal(err)
	}
	until(t, "the effects", func() bool { return r.count(`select count(*) from effects where part = 0`) == 3 })
	stop()
}
