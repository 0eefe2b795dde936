package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
)

// braking tries a message every few milliseconds while the queue stands still.
func braking(c *queue.Config) { c.Brake.ProbeInterval = 20 * time.Millisecond }

// standsStill waits until the brake holds a queue for a reason, and messages were tried since.
func (r *rig) standsStill(q *queue.Queue, reason string, tries *atomic.Int64) {
	r.t.Helper()
	r.until("the queue stands still", func() bool {
		err := q.Healthy()
		return err != nil && strings.Contains(err.Error(), reason) && strings.Contains(err.Error(), "nearly all")
	})
	was := tries.Load()
	r.until("messages are tried", func() bool { return tries.Load() > was+3 })
}

// Q7: a fault of the program refuses every message: 19 are parked, as by a consumer, and not the
// one that makes the queue stand still. Nothing is received meanwhile, and once the fault is mended
// the queue continues by itself, in the broker's order if that is asked for.
func TestQ7EverythingFails(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		for _, batch := range []int{7, 256} {
			t.Run(fmt.Sprint("ordered ", ordered, ", batch ", batch), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				var mended atomic.Bool
				var tries atomic.Int64
				r.broker.Publish(messages(0, 300)...)
				q, _ := r.receives(braking, func(c *queue.Config) {
					c.Ordered = ordered
					c.Batch = batch
					c.LeaseTTL = time.Second
					c.Identify = func(d *queue.Delivery) error {
						d.Key = []byte("one")
						tries.Add(1)
						if !mended.Load() {
							return errors.New("no field order_id")
						}
						return nil
					}
				})
				r.standsStill(q, "20 no-key", &tries)
				if n := r.count("onlyonce.parked"); n != 19 || r.broker.Left() != 281 {
					t.Errorf("%d are parked, and %d are left: want 19 and 281", n, r.broker.Left())
				}
				mended.Store(true)
				r.until("the others are stored", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
				if got := r.stored(); got.Fresh != 281 || got.Parked != 19 {
					t.Errorf("%+v", got)
				}
				if got := strings.Fields(r.order()); ordered && (got[0] != "m0019" || got[280] != "m0299") {
					t.Errorf("stored from %s to %s", got[0], got[280])
				}
			})
		}
	}
}

// Q7: a trigger of the user's refuses every message. Without Ordered one of them that the database
// takes has the queue continue, although those before it stay refused.
func TestQ7DatabaseRefusesEverything(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		r := newRig(t)
		r.refuses("P0001", "onlyonce.event_log")
		for n := range 30 {
			r.broker.Publish(message(fmt.Sprint("bad", n), "bad"))
		}
		r.broker.Publish(message("good"))
		q, _ := r.receives(braking, func(c *queue.Config) { c.Ordered = ordered })
		if ordered {
			r.until("the queue stands still", func() bool {
				err := q.Healthy()
				return err != nil && strings.Contains(err.Error(), "20 permanent")
			})
			if n := r.count("onlyonce.event_log"); n != 0 || r.count("onlyonce.parked") != 19 {
				t.Errorf("%d are stored, and %d are parked", n, r.count("onlyonce.parked"))
			}
			r.exec(`drop trigger refuse on onlyonce.event_log`)
		}
		r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
		want := queue.StoredEvent{Fresh: 1, Parked: 30}
		if ordered {
			want = queue.StoredEvent{Fresh: 12, Parked: 19}
		}
		if got := r.stored(); got != want {
			t.Errorf("ordered %t: %+v, want %+v", ordered, got, want)
		}
	}
}

// Q7: what does not brake: messages in the order of arrival of which too few fail, conflicts,
// copies, and a brake that is off.
func TestQ7DoesNotBrake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all  func() []queue.Delivery
		set  func(*queue.Config)
		want queue.StoredEvent
	}{
		"every other one has no id": {func() (all []queue.Delivery) {
			for n := range 100 {
				all = append(all, message(fmt.Sprint("m", n)), message("", "no id"))
			}
			return all
		}, func(c *queue.Config) { c.Batch = 7; c.Brake.ProbeInterval = time.Hour }, queue.StoredEvent{Fresh: 100, Parked: 100}},
		"copies do not count": {func() (all []queue.Delivery) {
			for range 100 {
				all = append(all, message("a"))
			}
			for range 18 {
				all = append(all, message("", "no id"))
			}
			return append(all, messages(0, 2)...)
		}, nil, queue.StoredEvent{Fresh: 3, Copies: 99, Parked: 18}},
		"conflicts": {func() (all []queue.Delivery) {
			for n := range 100 {
				all = append(all, message("a", fmt.Sprint(n)))
			}
			return all
		}, nil, queue.StoredEvent{Fresh: 1, Parked: 99}},
		"off": {func() (all []queue.Delivery) {
			for range 100 {
				all = append(all, message("", "no id"))
			}
			return all
		}, func(c *queue.Config) { c.Brake = consumer.Brake{Off: true} }, queue.StoredEvent{Parked: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.broker.Publish(c.all()...)
			set := c.set
			if set == nil {
				set = func(c *queue.Config) { c.Brake.ProbeInterval = time.Hour }
			}
			r.receives(set)
			r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
			if got := r.stored(); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// Q7: copies of stored messages leave the brake as it is.
func TestQ7CopiesDoNotRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(message("a"))
	_, stop := r.receives()
	r.until("it is stored", func() bool { return r.broker.Left() == 0 })
	stop()
	for range 20 {
		r.broker.Publish(message("", "no id"))
	}
	r.broker.Publish(message("a"))
	for range 30 {
		r.broker.Publish(message("", "no id"))
	}
	var tries atomic.Int64
	q, _ := r.receives(braking, func(c *queue.Config) {
		c.Identify = func(*queue.Delivery) error { tries.Add(1); return nil }
	})
	r.standsStill(q, "no-key", &tries)
	r.until("the copy is acknowledged", func() bool { return r.stored().Copies == 1 })
	was := tries.Load()
	r.until("messages are tried", func() bool { return tries.Load() > was+200 })
	if n := r.count("onlyonce.parked"); n != 19 || q.Healthy() == nil {
		t.Errorf("%d are parked, want 19; %v", n, q.Healthy())
	}
}

// Q7: copies within the transaction in which the brake is judged do not count as stored.
func TestQ7CopiesOfATransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(message("a"))
	for range 19 {
		r.broker.Publish(message("", "no id"))
		r.broker.Publish(message("a"), message("a"))
	}
	r.broker.Publish(message("", "no id"))
	var tries atomic.Int64
	q, _ := r.receives(braking, func(c *queue.Config) {
		c.Identify = func(*queue.Delivery) error { tries.Add(1); return nil }
	})
	r.standsStill(q, "no-key", &tries)
	if n := r.count("onlyonce.parked"); n != 18 {
		t.Errorf("%d are parked, want 18", n)
	}
}

// Q7: a receiver that stands still keeps its place, so that the next one does not park as many.
func TestQ7KeepsItsPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 100 {
		r.broker.Publish(message("", "no id"))
	}
	set := func(c *queue.Config) {
		c.Ordered = true
		c.LeaseTTL = time.Second
		c.Brake.ProbeInterval = time.Hour
	}
	q, _ := r.receives(set)
	r.until("the queue stands still", func() bool { err := q.Healthy(); return err != nil && strings.Contains(err.Error(), "nearly all") })
	var tries atomic.Int64
	r.receives(set, func(c *queue.Config) { c.Identify = func(*queue.Delivery) error { tries.Add(1); return nil } })
	renewed := `select until from onlyonce.leases where name = 'queue/q'`
	for range 6 {
		was := one[time.Time](r, renewed)
		r.until("the place is renewed", func() bool { return one[time.Time](r, renewed).After(was) })
	}
	if n := r.count("onlyonce.parked"); n != 19 || tries.Load() > 0 {
		t.Errorf("%d are parked, want 19; the other one has looked at %d", n, tries.Load())
	}
}
