package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/claimed"
)

// braking tries a message every few milliseconds while a partition stands still.
func braking() consumer.Config {
	cfg := testConfig()
	cfg.Brake.ProbeInterval = 20 * time.Millisecond
	return cfg
}

// stopped waits for the brake's halt and checks its fields.
func (r *rig) stopped(reason string) *consumer.HaltError {
	r.t.Helper()
	h := r.halted()
	redrive := "onlyonce parked redrive -scope stock -topic orders -partition 0 -kind message -parked-for " + reason
	if h.Reason != consumer.HaltEverythingFails ||
		!strings.Contains(h.Error(), redrive) ||
		!strings.Contains(h.Command(), fmt.Sprintf("adopt -scope stock -topic orders -partition 0 -at %d", h.Position)) {
		r.t.Errorf("halt: %v, want one that prints %q", h, redrive)
	}
	// While a message is tried the partition is not halted.
	until(r.t, "Healthy to return the halt", func() bool { return errors.As(r.consumer.Healthy(), new(*consumer.HaltError)) })
	until(r.t, "Status to show the halt", func() bool {
		all, err := r.consumer.Status(r.t.Context())
		return err == nil && len(all) == 1 && all[0].Halted != nil && all[0].Halted.Reason == consumer.HaltEverythingFails
	})
	return h
}

// triedOn waits until a message was tried several times while the partition stands still.
func (r *rig) triedOn() {
	r.t.Helper()
	until(r.t, "three more tries", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.halts) >= 4 })
}

// D7: a handler that fails for every message halts its partition: 19 messages are parked, but not
// the one that triggers the halt. The partition continues by itself.
func TestD7EverythingFails(t *testing.T) {
	for reason, wrap := range map[string]func(error) error{
		"exhausted": func(err error) error { return err },
		"permanent": consumer.Permanent,
	} {
		both(t, reason, func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
			r := newRig(t, 1)
			values := r.numbered(0, 200)
			var mended atomic.Bool
			stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if !mended.Load() {
					return wrap(errBoom)
				}
				return queued(ctx, tx, m)
			}, braking())
			h := r.stopped(reason)
			r.triedOn()
			if n := r.count(`select count(*) from onlyonce.parked`); h.Position != 19 || r.position(0) != 19 || n != 19 {
				t.Errorf("halted at %d, position %d, %d parked: want 19", h.Position, r.position(0), n)
			}
			mended.Store(true)
			r.reaches(0, 200)
			until(t, "Healthy to be nil again", func() bool { return r.consumer.Healthy() == nil })
			stop()
			r.once(values[19:]...)
			if !slices.ContainsFunc(r.events, func(e consumer.BatchResult) bool { return e.From >= 19 && e.Messages > 1 }) {
				t.Error("the brake was released, and messages are still tried one at a time")
			}
		})
	}
}

// D7: a typo in the header's name. The messages that have no id are parked in the batch's
// transaction, without a run of the handler.
func TestD7NoMessageHasAnID(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 20)
	stop := r.start(queued, braking())
	r.reaches(0, 20)
	stop()
	for i := range 200 {
		v := fmt.Sprint("late-", i)
		r.log.Append(0, v, id(v))
		values = append(values, v)
	}
	var mended atomic.Bool
	cfg := braking()
	cfg.BatchSize = 100
	cfg.Key = func(m *consumer.Message) (string, error) {
		if mended.Load() {
			return consumer.HeaderKey("message-id")(m)
		}
		return consumer.HeaderKey("mesage-id")(m)
	}
	stop = r.start(queued, cfg)
	h := r.stopped("no-key")
	r.triedOn()
	n := r.count(`select count(*) from onlyonce.parked`)
	good := h.Position == 39 &&
		r.position(0) == 39 &&
		n == 19 &&
		strings.Contains(h.Detail, `"mesage-id" is missing`)
	if !good {
		t.Errorf("halted at %d, position %d, %d parked: %v", h.Position, r.position(0), n, h)
	}
	mended.Store(true)
	r.reaches(0, 220)
	stop()
	r.once(append(values[:20:20], values[39:]...)...)
}

// D7: ordering keys: a message counts when its attempts from the database are used up. The one that
// makes the partition stop stays in the state retrying.
func TestD7EverythingFailsUnderOrderingKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 60)
	var mended atomic.Bool
	cfg := braking()
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.OrderingKey = func(m *consumer.Message) []byte { return m.Value }
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !mended.Load() {
			return errBoom
		}
		return queued(ctx, tx, m)
	}, cfg)
	r.stopped("exhausted")
	r.triedOn()
	if n := r.count(`select count(*) from onlyonce.parked where state = 'waiting'`); n != 19 {
		t.Errorf("%d messages are left to an operator, want 19", n)
	}
	mended.Store(true)
	until(t, "all others to be applied", func() bool { return r.count(`select count(*) from effects`) == 60-19 })
	until(t, "Healthy to be nil again", func() bool { return r.consumer.Healthy() == nil })
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp() where state = 'waiting'`)
	until(t, "what was parked to be applied", func() bool { return r.count(`select count(*) from effects`) == 60 })
	stop()
	r.once(values...)
}

// D7: bad messages among good ones never halt a partition, however long that lasts. The brake can
// be switched off, and its thresholds are those of the config.
func TestD7Thresholds(t *testing.T) {
	for name, c := range map[string]struct {
		adjust func(*consumer.Config)
		bad    func(i int64) bool
		stops  bool
	}{
		"a trickle":      {func(*consumer.Config) {}, func(i int64) bool { return i%10 == 3 }, false},
		"below 90 %":     {func(*consumer.Config) {}, func(i int64) bool { return i%8 != 0 }, false},
		"19 and no more": {func(*consumer.Config) {}, func(i int64) bool { return i < 19 }, false},
		"late":           {func(*consumer.Config) {}, func(i int64) bool { return i >= 100 }, true},
		"off":            {func(c *consumer.Config) { c.Brake.Off = true }, func(int64) bool { return true }, false},
		"below 50 %":     {func(c *consumer.Config) { c.Brake.Percent = 50 }, func(i int64) bool { return i%8 != 0 }, true},
		"window of 5":    {func(c *consumer.Config) { c.Brake.Window = 5 }, func(i int64) bool { return i >= 100 && i < 105 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.numbered(0, 200)
			cfg := braking()
			c.adjust(&cfg)
			var mended atomic.Bool
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if c.bad(m.Offset) && !mended.Load() {
					return consumer.Permanent(errBoom)
				}
				return queued(ctx, tx, m)
			}, cfg)
			if c.stops {
				r.stopped("permanent")
				mended.Store(true)
			}
			r.reaches(0, 200)
			stop()
			if halts := len(r.halts) > 0; halts != c.stops {
				t.Errorf("halts: %v", r.halts)
			}
		})
	}
}

// deletes appends n messages, each followed by a tombstone without an id, as a database's change
// log has them.
func (r *rig) deletes(n int) (values []string) {
	for i := range n {
		v := fmt.Sprint("delete-", i)
		row := fmt.Appendf(nil, "row-%d", i%3)
		r.log.AppendMessage(0, &consumer.Message{Key: row, Value: []byte(v), Headers: []consumer.Header{id(v)}})
		r.log.AppendMessage(0, &consumer.Message{Key: row})
		values = append(values, v)
	}
	return values
}

// D7: every second record has no id, in batches of 100. Half of the messages fail in any stretch of
// the log, and the partition goes on.
func TestD7CountsInTheOrderOfTheLog(t *testing.T) {
	for name, concurrency := range map[string]int{"one at a time": 1, "slots": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.deletes(150)
			cfg := braking()
			cfg.BatchSize = 100
			cfg.Concurrency = concurrency
			stop := r.start(queued, cfg)
			until(t, "all records to be passed", func() bool { return r.position(0) == 300 || len(r.haltsSoFar()) > 0 })
			stop()
			if n := r.count(`select count(*) from onlyonce.parked where reason = 'no-key'`); n != 150 || len(r.halts) > 0 {
				t.Errorf("%d parked, halts %v: want 150 and none", n, r.halts)
			}
			r.once(values...)
		})
	}
}

// D7: a bad message in each of many batches that run side by side halts nothing: the brake counts
// what the same batches are about to apply, too.
func TestD7BadMessagesSideBySide(t *testing.T) {
	t.Parallel()
	const batches, size = 32, 50
	r := newRig(t, 1)
	wide := r.pool.Config()
	wide.MaxConns = batches + 4
	pool, err := pgxpool.NewWithConfig(t.Context(), wide)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for i := range batches * size {
		v := fmt.Sprint("m", i)
		if i%size == 0 {
			r.log.Append(0, v)
		} else {
			r.log.Append(0, v, id(v))
		}
	}
	cfg := braking()
	cfg.Concurrency = batches
	cfg.BatchSize = size
	cfg.Window = batches * size
	var arrived atomic.Int32
	all := make(chan struct{})
	stop := r.startOn(r.src, pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset%size == 1 { // its batch has set one aside: it waits for the others
			if arrived.Add(1) == batches {
				close(all)
			}
			select {
			case <-all:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return queued(ctx, tx, m)
	}, cfg)
	r.reaches(0, batches*size)
	stop()
	if n := r.count(`select count(*) from onlyonce.parked where reason = 'no-key'`); len(r.halts) > 0 || n != batches {
		t.Errorf("%d parked, want %d; halts: %v", n, batches, r.halts)
	}
}

// D7: an operator can make the partition continue at once, by adopting its position, or by a pause
// and its end.
func TestD7OperatorReleasesTheBrake(t *testing.T) {
	for name, act := range map[string]func(r *rig){
		"adopt": func(r *rig) {
			r.exec(`with c as (update onlyonce.cursors set run = run + 1, run_start = 19 returning id), a as (delete from onlyonce.attempts)
				update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`)
		},
		"pause": func(r *rig) {
			if err := r.consumer.Pause(r.t.Context(), "orders", 0, "test"); err != nil {
				r.t.Fatal(err)
			}
			until(r.t, "the pause", func() bool {
				all, err := r.consumer.Status(r.t.Context())
				return err == nil && len(all) == 1 && all[0].Paused
			})
			if err := r.consumer.Resume(r.t.Context(), "orders", 0); err != nil {
				r.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.numbered(0, 30)
			cfg := braking()
			cfg.Brake.ProbeInterval = time.Hour
			stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error { return consumer.Permanent(errBoom) }, cfg)
			r.stopped("permanent")
			act(r)
			r.reaches(0, 30) // 11 more are parked: too few to stop again
			stop()
			if n := r.count(`select count(*) from onlyonce.parked`); n != 30 {
				t.Errorf("%d parked", n)
			}
		})
	}
}

// D7: events, whose ids are no message's.
func TestD7EverythingFailsWithEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for i := range 40 {
		m := &consumer.Message{Value: []byte(fmt.Sprint("e", i))}
		claimed.Set(m, "", fmt.Sprint("e", i))
		r.log.AppendMessage(0, m)
	}
	cfg := braking()
	cfg.Key = nil
	var mended atomic.Bool
	stop := r.startOn(events{r.src}, r.pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !mended.Load() {
			return consumer.Permanent(errBoom)
		}
		return queued(ctx, tx, m)
	}, cfg)
	if h := r.halted(); h.Reason != consumer.HaltEverythingFails || !strings.Contains(h.Error(), "-kind event") {
		t.Errorf("halt: %v", h)
	}
	mended.Store(true)
	r.reaches(0, 40)
	stop()
	if n := r.count(`select count(*) from effects`); n != 21 {
		t.Errorf("%d effects", n)
	}
}
