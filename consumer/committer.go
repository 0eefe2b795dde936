package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// commitEvery is how often offsets are committed to Kafka at most. Kafka's copy of the position is
// for lag tools and group membership, so it may be late.
const commitEvery = 100 * time.Millisecond

// committer writes positions to Kafka after the database, in this generation only. Only the latest
// one counts.
type committer struct {
	w    *worker    // its partition and its hooks, which do not change
	lost chan error // receives the error if this process is no longer the owner

	offset atomic.Int64

	kicked chan struct{}
	quit   chan struct{}
	done   chan struct{}
	bound  time.Duration
}

func startCommitter(w *worker) *committer {
	c := &committer{w: w, lost: make(chan error, 1),
		kicked: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), bound: w.c.cfg.DrainTimeout}
	c.offset.Store(w.pos)
	go c.run(w.pos)
	return c
}

// kick announces that the position has moved.
func (c *committer) kick(offset int64) {
	c.offset.Store(offset)
	c.again()
}

func (c *committer) again() {
	select {
	case c.kicked <- struct{}{}:
	default:
	}
}

func (c *committer) run(committed int64) {
	defer close(c.done)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for last := false; !last; {
		select {
		case <-c.kicked:
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
		ctx, cancel := context.WithTimeout(context.Background(), c.bound)
		err := c.commit(ctx, offset)
		cancel()
		switch {
		case err == nil:
			committed = offset
		case errors.Is(err, ErrOwnershipLost):
			c.lost <- err
			return
		case !last:
			c.again() // a hint that is late
		}
	}
}

func (c *committer) commit(ctx context.Context, offset int64) error {
	o := OffsetCommit{Topic: c.w.id.Topic, Partition: c.w.id.Partition, Offset: offset}
	hooks := &c.w.c.cfg.Hooks
	if hooks.OffsetStart != nil {
		ctx = hooks.OffsetStart(ctx, o)
	}
	err := fault.Point(fault.OffsetSending)
	if err == nil {
		err = c.w.p.Commit(ctx, offset, c.w.metadata(offset))
	}
	if err == nil {
		err = fault.Point(fault.OffsetSent)
	}
	if hooks.OffsetEnd != nil {
		hooks.OffsetEnd(ctx, o, err)
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
