package consumer_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// K1: tombstones are passed over: nothing is parked, and no ordering key waits for one.
func TestK1SkipsTombstones(t *testing.T) {
	for name, adjust := range map[string]func(*consumer.Config){
		"one at a time": func(*consumer.Config) {},
		"slots":         func(c *consumer.Config) { c.Concurrency = 4 },
		"ordering keys": func(c *consumer.Config) { c.OnFailure = consumer.ParkOrderingKey },
		"blocks":        func(c *consumer.Config) { c.OnFailure = consumer.BlockPartition },
		"claim first":   func(c *consumer.Config) { c.ClaimFirst = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.deletes(30)
			cfg := braking()
			cfg.Key = consumer.SkipTombstones(cfg.Key)
			adjust(&cfg)
			stop := r.start(queued, cfg)
			r.reaches(0, 60)
			stop()
			r.once(values...)
			skipped := 0
			for _, e := range r.events {
				skipped += e.Skipped
			}
			if n := r.count(`select count(*) from onlyonce.parked`); n != 0 || skipped != 30 || len(r.halts) > 0 {
				t.Errorf("%d parked, %d skipped, halts %v: want none, 30 and none", n, skipped, r.halts)
			}
		})
	}
}

// K1: tombstones that were parked before the program skipped them are settled by a redrive.
func TestK1SkipsParkedTombstones(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.deletes(5)
	stop := r.start(queued, testConfig())
	r.reaches(0, 10)
	stop()
	if n := r.count(`select count(*) from onlyonce.parked where reason = 'no-key' and state = 'waiting'`); n != 5 {
		t.Fatalf("%d tombstones are parked, want 5", n)
	}
	r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = now()`)
	cfg := testConfig()
	cfg.Key = consumer.SkipTombstones(cfg.Key)
	stop = r.start(queued, cfg)
	until(t, "the rows to be settled", func() bool { return r.count(`select count(*) from onlyonce.parked where settled_at is null`) == 0 })
	stop()
	r.once(values...)
}

// New finds the fault of a KeyFunc that SkipTombstones has got, and one of TimedKey in it.
func TestSkipTombstonesOfAnotherKey(t *testing.T) {
	for want, key := range map[string]consumer.KeyFunc{
		"SkipTombstones: key must not be nil":       consumer.SkipTombstones(nil),
		"HeaderKey: the header's name":              consumer.SkipTombstones(consumer.HeaderKey("")),
		"Config.TooOld: is not set, and Key is one": consumer.SkipTombstones(consumer.TimedIDKey(consumer.HeaderKey("id"))),
	} {
		_, err := consumer.New(nil, nil, consumer.HandlerFunc(queued), consumer.Config{Scope: "stock", Key: key})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
