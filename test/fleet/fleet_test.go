//go:build unix

package fleet_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/fleet"
)

// task is what a worker of these tests does.
type task struct {
	Fail  bool  // end with an error, the first worker only
	Batch int64 // handle messages from this offset on, without end
}

func TestMain(m *testing.M) {
	if fleet.IsWorker() {
		var do task
		os.Exit(fleet.Serve(&do, do.run))
	}
	goleak.VerifyTestMain(m)
}

func (do *task) run(ctx context.Context, c *fleet.Child) error {
	hooks := c.Hooks(nil)
	hooks.Owned(consumer.OwnedEvent{TopicPartition: source.TopicPartition{Partition: 0}, Position: do.Batch})
	if do.Fail && c.Number == 1 {
		return errors.New("no server")
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for offset := do.Batch; ; offset++ {
		if err := c.Entered(&consumer.Message{Partition: 0, Offset: offset}); err != nil {
			return err
		}
		select {
		case <-tick.C: // a worker is nearly always in the middle of a batch
		case <-ctx.Done():
			return nil
		}
		c.Trap("batch", strconv.FormatInt(offset, 10))
		hooks.Batch(consumer.BatchResult{
			Batch:   consumer.Batch{TopicPartition: source.TopicPartition{Partition: 0}},
			Next:    offset + 1,
			Handled: 1,
		})
	}
}

func newFleet(t *testing.T, cfg fleet.Config) *fleet.Fleet {
	t.Helper()
	cfg.Name = "test"
	f, err := fleet.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Stop(20*time.Second), f.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := f.Start(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestShotHitsABatchAndIsToldOf(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Config{Template: task{Batch: 100}})
	random := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		down := <-f.Shoot(random, false).Hit
		if down.PID == 0 || down.InBatch && down.Offset < 100 {
			t.Errorf("%+v", down)
		}
		if f.Reached() < 100 {
			t.Errorf("reached %d", f.Reached())
		}
		if _, err := f.Start(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the last one owns the partition", func() bool { return f.Settled(3, 1) })
	delivered, refetched, err := f.Delivered()
	good := err == nil && delivered != 0 && refetched != 0 && refetched <= delivered
	if !good {
		t.Errorf("%d delivered, %d of them again: %v", delivered, refetched, err)
	}
	if f.Failure() != nil || f.StrayKills() != 0 {
		t.Errorf("%v, %d stray kills", f.Failure(), f.StrayKills())
	}
}

func TestFrozenWorkerStandsStill(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Config{})
	random := rand.New(rand.NewPCG(1, 1))
	eventually(t, "the worker works", func() bool { return f.Reached() > 0 })
	p := f.Any(random)
	if err := f.Freeze(p); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stands still", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
		return err == nil && strings.Contains(string(stat), ") T ") || errors.Is(err, os.ErrNotExist)
	})
	if f.Any(random) != nil {
		t.Error("a worker that stands still is chosen")
	}
	reached := f.Reached()
	if err := f.Thaw(p); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it goes on", func() bool { return f.Reached() > reached+3 })
}

// Traps end a worker or let it hang; a worker that comes later passes those that have worked.
func TestTraps(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Config{Traps: fleet.Traps{Seed: 1, Every: 8, Hang: time.Millisecond}})
	eventually(t, "some end a worker, and others let one hang", func() bool {
		return f.StrayKills() >= 3 && f.Trapped() >= f.StrayKills()+3
	})
	if f.Failure() != nil {
		t.Error(f.Failure())
	}
}

func TestWorkerThatGivesUp(t *testing.T) {
	t.Parallel()
	resilient := newFleet(t, fleet.Config{Template: task{Fail: true}, Resilient: true})
	eventually(t, "another works in its place", func() bool { return resilient.Restarts() == 1 && resilient.Reached() > 0 })
	if err := resilient.Failure(); err != nil {
		t.Error(err)
	}
	strict := newFleet(t, fleet.Config{Template: task{Fail: true}})
	eventually(t, "that is a failure", func() bool { return strict.Failure() != nil })
	if err := strict.Failure(); !strings.Contains(err.Error(), "no server") {
		t.Error(err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	pgtest.Until(t, time.Minute, what, is)
}
