package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/names"
)

// commitEvery is how often offsets are committed to Kafka at most. Kafka's copy of the position is
// for lag tools and group membership, so it may be late.
const commitEvery = 100 * time.Millisecond

// committer writes positions to Kafka after the database, in this generation only. Only the latest
// one counts (F7).
type committer struct {
	p     partition
	id    source.Identity
	scope string
	lost  chan error // receives the error if this process is no longer the owner

	offset atomic.Int64

	wake    chan struct{}
	quit    chan struct{}
	done    chan struct{}
	timeout time.Duration
}

// startCommitter begins to commit positions. The caller ends that with stop.
func startCommitter(p partition, id source.Identity, cfg *Config, pos int64) *committer {
	c := &committer{p: p, id: id, scope: cfg.Scope, lost: make(chan error, 1),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), timeout: cfg.DrainTimeout}
	c.offset.Store(pos)
	go c.commitUntilStopped(pos)
	return c
}

// offer announces that the position has moved.
func (c *committer) offer(offset int64) {
	c.offset.Store(offset)
	c.wakeUp()
}

func (c *committer) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *committer) commitUntilStopped(committed int64) {
	defer close(c.done)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for last := false; !last; {
		select {
		case <-c.wake:
		case <-c.quit:
		}
		select {
		case <-pause.C:
		case <-c.quit:
		}
		pause.Reset(commitEvery)
		select {
		case <-c.quit: // even if select took another case: the last commit comes after it
			last = true
		default:
		}
		offset := c.offset.Load()
		if offset == committed {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
		err := c.commit(ctx, offset)
		cancel()
		switch {
		case err == nil:
			committed = offset
		case errors.Is(err, source.ErrOwnershipLost):
			c.lost <- err
			return
		case !last:
			c.wakeUp() // a hint that is late
		}
	}
}

func (c *committer) commit(ctx context.Context, offset int64) error {
	err := fault.Point(fault.OffsetSending)
	if err == nil {
		err = c.p.Commit(ctx, offset, names.Mark(c.scope, offset))
	}
	if err == nil {
		err = fault.Point(fault.OffsetSent)
	}
	return err
}

// stop commits the last position. It returns the error that ended the ownership, if there is one.
func (c *committer) stop() error {
	close(c.quit)
	<-c.done
	select {
	case err := <-c.lost:
		return err
	default:
		return nil
	}
}
