package consumer

import (
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/window"
)

// slots runs several transactions of one partition side by side. It is the scheduler: the worker's
// goroutine, which alone knows the window, gives messages to slots and moves the position. Each
// slot is a goroutine with an applier of its own, and has at most one task.
//
// What the scheduler decides is a proposal: onlyonce.fence_slot and onlyonce.sweep raise if it is
// wrong. See the rules C1 to C7 in docs/rules.
type slots struct {
	w         *worker
	committer *committer
	window    *window.Window[*Message]
	all       []*slot
	idle      []*slot
	limit     int        // slots that may be busy
	events    chan event // from the partition's other goroutines

	doneOffsets []int64 // of window.Before as it was, in order; nil: not needed yet
	fetchErr    error   // of the fetch after the window
	identifying bool    // a fetch is in identifyCounted
	draining    bool    // nothing is read any more

	// What has times of its own: see schedule.
	readySince time.Time // when messages became ready that no slot has; zero: there are none
	sweeper    *sweeper
	pruner     *pruner
	observer   observer
	deadlocks  deadlocks

	below     int64 // nothing at or above it is given out
	switching bool  // when everything below it is done, the partition goes on without slots
	halt      *HaltError
	err       error // what ends the work at once
}

// event is something that another goroutine of the partition reports. The scheduler calls it, so
// that only its goroutine changes what it knows.
type event func() error

// slot runs one transaction after another beside the other slots.
type slot struct {
	applier
	retrier *retrier
	tasks   chan *task
	report  func(slotEvent) // to the scheduler
	gone    sync.WaitGroup  // the goroutine

	// The slot's task, nil if it has none: task belongs to the scheduler, current to the slot's
	// goroutine.
	task, current *task
}

type (
	entry = window.Entry[*Message]
	task  = window.Task[*Message]
)

// slotEvent is what a slot reports to the scheduler.
type slotEvent struct {
	slot       *slot
	offsets    []int64 // are done: their transaction has committed
	ended      bool    // the task has ended
	err        error   // with which it ended
	deadlocked bool    // the server has chosen its transaction to end a deadlock
}

// open returns the offset below which messages may be given to slots. A fetch may bring more than
// Config.Window, and the next owner handles no more than that alone (F9).
func (s *slots) open() int64 { return s.window.LimitTo(s.w.c.cfg.Window, s.below) }

// busy returns how many slots have a task.
func (s *slots) busy() int { return len(s.all) - len(s.idle) }

// wantsMore reports whether the window has room for the result of a fetch.
func (s *slots) wantsMore() bool {
	w := s.window
	return s.fetchErr == nil && w.Len() < s.w.c.cfg.Window && !s.w.cur.pastReplay(w.Next) && w.Next < s.below
}
