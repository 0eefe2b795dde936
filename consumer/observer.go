package consumer

import (
	"slices"
	"time"
)

// observer is the scheduler's clock for messages that hold up the position although later ones are
// done (C6).
type observer struct {
	s    *slots
	at   time.Time // when it last looked
	full int64     // offset of the last message that a full window was reported for; -1: none
}

// fullAfter is how long a message holds up the position before a full window is reported.
const fullAfter = time.Second

func (o *observer) due(time.Time) time.Time { return o.at.Add(o.s.w.c.pace.Sweep) }

// observe records which message holds up the position, and reports it once if the window is full.
func (o *observer) observe() error {
	o.at = time.Now()
	w := o.s.w
	e := o.s.window.Blocker()
	if e == nil {
		w.state.blockedBy.Store(nil)
		return nil
	}
	b := &BlockedBy{Offset: e.Offset, Key: keyHash(e.Key), Since: o.at, Done: len(o.s.window.DoneAbove())}
	if before := w.state.blockedBy.Load(); before != nil && before.Offset == b.Offset {
		b.Since = before.Since
	}
	w.state.blockedBy.Store(b)
	if o.s.window.Len() < w.c.cfg.Window || o.full == b.Offset || time.Since(b.Since) < fullAfter {
		return nil
	}
	o.full = b.Offset
	w.c.cfg.Logger.Warn("onlyonce: partition waits for one message: it has read Config.Window messages above it",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition,
		"offset", b.Offset, "ordering_key", b.Key, "since", b.Since, "done", b.Done)
	emit(w.c.cfg.Hooks.WindowFull, WindowFullEvent{TopicPartition: w.id.TopicPartition, Blocked: b})
	return nil
}

// deadlocks are the latest transactions of the slots that were undone to end a deadlock. Handlers
// that lock the same rows in another order end each other's transactions. Fewer at once do that
// less often.
type deadlocks []time.Time

const (
	deadlockLimit  = 5
	deadlockWindow = time.Minute
)

// limit notes a deadlock, and returns how many slots may be busy: half of now after deadlockLimit
// deadlocks within deadlockWindow. All may be when the partition is taken over, or its work begins
// anew (C6).
func (d *deadlocks) limit(w *worker, now int, at time.Time) int {
	*d = append(slices.DeleteFunc(*d, func(one time.Time) bool { return at.Sub(one) > deadlockWindow }), at)
	if len(*d) < deadlockLimit || now == 1 {
		return now
	}
	*d = nil
	w.c.cfg.Logger.Warn("onlyonce: handlers of one partition deadlock with each other: fewer run at once; "+
		"set Config.OrderingKey to what they update, or lower Config.Concurrency",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "at_once", now/2)
	return now / 2
}
