package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// changers change their message in ways that Handler forbids, and apply what is left of it.
var changers = map[string]consumer.HandlerFunc{
	"fields": func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		m.Value = m.Value[5:] // a schema registry's prefix
		err := effect(ctx, tx, m)
		m.Offset = 4711
		m.Partition = 7
		m.Key = nil
		m.Headers = nil
		return err
	},
	"bytes": func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		for i, c := range "XXXXX" {
			m.Value[i] ^= byte(c)
		}
		own := *m
		own.Value = m.Value[5:]
		err := effect(ctx, tx, &own)
		m.Headers[0].Value[0]++
		m.Headers[0].Name = "none"
		return err
	},
}

// D6: a handler that changes its message changes neither what another run of it sees, nor what is
// parked, nor what is compared with copies.
func TestD6HandlerThatChangesItsMessage(t *testing.T) {
	t.Parallel()
	for name, change := range changers {
		for _, policy := range []consumer.FailurePolicy{consumer.ParkMessage, consumer.ParkOrderingKey} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				both(t, "one", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
					r := newRig(t, 1)
					cfg := testConfig()
					cfg.OnFailure = policy
					var mended atomic.Bool
					stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
						sick := string(m.Value) == "12345sick"
						if err := change(ctx, tx, m); err != nil {
							return err
						}
						if sick && !mended.Load() {
							return errBoom
						}
						return nil
					}, cfg)
					r.log.Append(0, "12345first", id("a"))
					r.reaches(0, 1)
					r.log.Append(0, "12345second", id("b"))
					// A copy: the optimistic claim raises, and the handlers run again.
					r.log.Append(0, "12345first", id("a"))
					r.log.Append(0, "12345sick", id("c"))
					r.log.Append(0, "12345third", id("d"))
					r.reaches(0, 5)
					until(t, "the sick one to be left to an operator", func() bool {
						return r.count(`
select count(*)
  from onlyonce.parked where state = 'waiting' and body = '12345sick' and "offset" = 3 and header_values[1] = 'c'`) == 1
					})
					mended.Store(true)
					r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
					until(t, "the sick one to be applied", func() bool {
						return r.count(`select count(*) from onlyonce.parked where state = 'resolved'`) == 1
					})
					r.log.Append(0, "12345sick", id("c"))
					r.reaches(0, 6)
					stop()
					stop = start(r, change, cfg) // the anchor is the log's
					r.log.Append(0, "12345last", id("e"))
					r.reaches(0, 7)
					stop()
					r.once("first", "second", "third", "sick", "last")
					if n := r.count(`select count(*) from onlyonce.parked where reason = 'conflict'`); n > 0 || len(r.halts) > 0 {
						t.Errorf("%d conflicts, halts %v", n, r.halts)
					}
				})
			})
		}
	}
}

// D6: functions that find ids and ordering keys assign fields of the message. The handler gets the
// record as it was read, and the next owner finds it in the log.
func TestD6KeyThatChangesItsMessage(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2} {
		t.Run(fmt.Sprint("concurrency ", slots), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 5)
			cfg := testConfig()
			cfg.Concurrency = slots
			find := cfg.Key
			cfg.Key = func(m *consumer.Message) (string, error) {
				m.Value = append([]byte("changed "), m.Value...)
				m.Offset = 4711
				return find(m)
			}
			cfg.Tenant = func(m *consumer.Message) string { m.Time = time.Time{}; return "" }
			cfg.OrderingKey = func(m *consumer.Message) []byte { m.Value = nil; return m.Key }
			stop := r.start(effect, cfg)
			r.reaches(0, 5)
			stop()
			r.log.Append(0, "last", id("last"))
			stop = r.start(effect, cfg)
			r.reaches(0, 6)
			stop()
			r.once(append(values, "last")...)
		})
	}
}

// D6: functions other than the handler change bytes in place, as decryption does. No attempt works
// on, commits or parks what an earlier call has left, and the next owner finds the anchor.
func TestD6FunctionsThatChangeBytesInPlace(t *testing.T) {
	flip := func(m *consumer.Message) {
		for i := range m.Value {
			m.Value[i] ^= 0x20
		}
	}
	for name, change := range map[string]func(*consumer.Config){
		"Prepare": func(c *consumer.Config) {
			c.Prepare = func(ctx context.Context, msgs []*consumer.Message) (context.Context, error) {
				for _, m := range msgs {
					flip(m)
				}
				return ctx, nil
			}
		},
		"Key": func(c *consumer.Config) {
			find := c.Key
			c.Key = func(m *consumer.Message) (string, error) { flip(m); return find(m) }
		},
		"Tenant":      func(c *consumer.Config) { c.Tenant = func(m *consumer.Message) string { flip(m); return "" } },
		"OrderingKey": func(c *consumer.Config) { c.OrderingKey = func(m *consumer.Message) []byte { flip(m); return nil } },
		"OnParked": func(c *consumer.Config) {
			c.OnParked = func(_ context.Context, _ consumer.Tx, m *consumer.Message, _ consumer.ParkedEvent) error {
				flip(m)
				return nil
			}
		},
	} {
		for _, slots := range []int{1, 2} {
			t.Run(fmt.Sprint(name, "/", slots), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				r.log.Append(0, "hello", id("1"))
				r.log.Append(0, "world", id("2"))
				r.log.Append(0, "sick", id("3"))
				cfg := testConfig()
				cfg.Concurrency = slots
				cfg.OnFailure = consumer.ParkMessage
				if name == "OrderingKey" {
					cfg.OnFailure = consumer.ParkOrderingKey
				}
				change(&cfg)
				var fails atomic.Int32 // the second message fails for a reason of its own
				h := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					switch {
					case m.Offset == 1 && fails.Add(1) < 3:
						return errBoom
					case m.Offset == 2:
						return consumer.Permanent(errBoom)
					}
					return effect(ctx, tx, m)
				}
				stop := r.start(h, cfg)
				r.reaches(0, 3)
				until(t, "the sick one to be parked, and no other to wait", func() bool {
					return r.count(`select count(*) from onlyonce.parked where settled_at is null`) == 1
				})
				stop()
				r.log.Append(0, "again", id("4"))
				r.log.Append(0, "world", id("2"))
				stop = r.start(h, cfg)
				r.reaches(0, 5)
				stop()
				r.once("hello", "world", "again")
				n := r.count(`select count(*) from onlyonce.parked where body <> 'sick' and settled_at is null or reason = 'conflict'`)
				if n > 0 ||
					len(r.halts) > 0 {
					t.Errorf("%d rows of changed bytes, halts %v", n, r.halts)
				}
			})
		}
	}
}
