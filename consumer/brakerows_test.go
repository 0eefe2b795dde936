package consumer_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// brakeRows: nearly all messages fail, until the cause is repaired. Then what was parked is
// redriven.
var brakeRows = []row{
	{"handler", "everything fails", func(f *faults) { f.everythingFails(f.start) }},
	{"handler", "everything fails: batch handler", func(f *faults) {
		f.everythingFails(func(h consumer.HandlerFunc) func() {
			return f.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				for _, m := range msgs {
					if err := h(ctx, consumer.TxFor(tx, m), m); err != nil {
						return err
					}
				}
				return nil
			}, f.cfg)
		})
	}},
	{"handler", "everything fails: ordering keys", func(f *faults) {
		f.everythingFails(f.start, func(f *faults) {
			f.cfg.OnFailure = consumer.ParkOrderingKey
			// Each message is a key of its own.
			f.cfg.OrderingKey = func(m *consumer.Message) []byte { return m.Value }
		})
	}},
}

func (f *faults) everythingFails(start func(consumer.HandlerFunc) func(), adjust ...func(*faults)) {
	f.t.Helper()
	f.begin(1, append(adjust, func(f *faults) {
		f.cfg.Brake.ProbeInterval = 20 * time.Millisecond
		f.mix.Unordered = true
	})...)
	for i := range 30 {
		f.mix.Add(0, "k0", "all-"+string(rune('A'+i)), "")
	}
	var mended atomic.Bool
	stop := start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !mended.Load() {
			return consumer.Permanent(errBoom)
		}
		return f.handle(ctx, tx, m)
	})
	if h := f.halted(); h.Reason != consumer.HaltEverythingFails {
		f.t.Errorf("halt: %v", h)
	}
	// Side by side, transactions that the brake has let through may still be under way, and each of
	// the others may have counted one that its transaction did not park.
	least := 19 - (max(f.cfg.Concurrency, 1) - 1)
	until(f.t, "19 messages to be parked, or nearly", func() bool { return f.count(`select count(*) from onlyonce.parked`) >= least })
	// A batch with a copy in it registers what it is about to apply, and until its handler has
	// failed that counts as if it were committed (D7): so other slots park some more than 19.
	most := 19
	if f.cfg.Concurrency > 1 {
		most *= 2
	}
	if n := f.count(`select count(*) from onlyonce.parked`); n > most {
		f.t.Errorf("%d messages are parked, want %d at most", n, most)
	}
	mended.Store(true)
	f.done()
	f.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp() where state = 'waiting'`)
	until(f.t, "what was parked to be tried again", func() bool {
		return f.count(`select count(*) from onlyonce.parked where state = 'retrying'`) == 0
	})
	f.finish(stop)
	f.parkedAs(nil)
}
