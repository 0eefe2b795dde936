package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many ask for the relay's health, the database is asked once a second.
func TestHealthAsksTheDatabaseOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var down atomic.Bool
		p := newPings(func(ctx context.Context) error {
			asked.Add(1)
			if down.Load() {
				<-ctx.Done()
				return errors.New("no answer")
			}
			return nil
		})
		ask := func() (failed int64) {
			var all sync.WaitGroup
			var n atomic.Int64
			for range 1000 {
				all.Go(func() {
					if p.answers() != nil {
						n.Add(1)
					}
				})
			}
			all.Wait()
			return n.Load()
		}
		if failed := ask(); failed != 0 || asked.Load() != 1 {
			t.Errorf("%d of 1000 failed, by %d questions", failed, asked.Load())
		}
		time.Sleep(pingEvery)
		down.Store(true)
		if failed := ask(); failed != 1000 || asked.Load() != 2 {
			t.Errorf("%d of 1000 failed, by %d questions", failed, asked.Load())
		}
		time.Sleep(pingEvery)
		down.Store(false)
		if failed := ask(); failed != 0 || asked.Load() != 3 {
			t.Errorf("%d of 1000 failed, by %d questions", failed, asked.Load())
		}
	})
}
