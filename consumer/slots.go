package consumer

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/window"
	"github.com/onlyonce/onlyonce/internal/pace"
)

const (
	// sweepRows is how many messages are done before a sweep comes earlier than after pace.Sweep.
	sweepRows = 400

	// fullAfter is how long a message holds up the position before a full window is reported.
	fullAfter = time.Second
)

// slots runs several transactions of one partition side by side. It is the scheduler: the worker's
// goroutine, which alone knows the window, gives messages to slots and moves the position. Each
// slot is a goroutine with an applier of its own, and has at most one task.
//
// What the scheduler decides is a proposal: onlyonce.fence_slot and onlyonce.sweep raise if it is
// wrong. See the rules C1 to C7 in docs/guarantees.md.
type slots struct {
	w      *worker
	window *window.Window[*Message]
	all    []*slot
	idle   []*slot
	limit  int            // slots that may be busy
	events chan slotEvent // from slots

	fetchErr    error            // of the fetch after the window
	identifying bool             // a fetch is in identifyCounted
	identified  chan fetchResult // what comes out of it
	readySince  time.Time        // when messages became ready that no slot has; zero: there are none

	observer  *observer // nil: no share group delivers messages
	sweeper   *sweeper
	sweeping  bool
	sweptAt   time.Time
	pruning   bool
	prunedAt  time.Time     // or when the last sweep ended
	pruneWait time.Duration // from then until old rows are looked at although nothing was swept
	sweeps    int           // since the last step of pruning began
	toldOf    int64         // offset of the last message that a full window was reported for; -1: none
	finished  int           // messages that were finished since the last sweep began
	moved     time.Time     // since when the position could pass offsets that hold no message; zero: it cannot

	below     int64 // nothing at or above it is given out
	switching bool  // when everything below it is done, the partition goes on without slots
	halt      *HaltError
	err       error // what ends the work at once
	deadlocks []time.Time
}

// slot runs one transaction after another beside the other slots.
type slot struct {
	applier
	nr      int
	retrier *retrier
	tasks   chan *task
	events  chan<- slotEvent
	gone    sync.WaitGroup // the goroutine

	// The slot's task, nil if it has none: task belongs to the scheduler, work to the slot's
	// goroutine.
	task, work *task
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

// handleInSlots reads the log and handles it in slots, until ctx is done (nil) or an error ends the
// work.
func (w *worker) handleInSlots(until stop, committer *committer) error {
	if w.cur.pastReplay(w.pos) {
		return w.endReplay(until.working)
	}
	s := w.newSlots()
	running, end := context.WithCancel(until.taking)
	defer end()
	// If the work ends here, other slots have as long to finish as at a stop.
	slotWork, cancel := drainContext(running, w.c.cfg.DrainTimeout)
	defer cancel()
	var err error
	if of := (stop{running, slotWork}); w.brake.Stopped() {
		err = s.probe(of)
	} else {
		s.start(of, s.all)
		err = s.schedule(until.taking, committer)
	}
	end()
	s.drain()
	if err == nil {
		err = s.err
	}
	if last := s.sweepRest(committer); err == nil {
		err = last
	}
	w.acknowledged = s.window.DoneAbove()
	w.state.blockedBy.Store(nil)
	w.state.inFlight.Store(0)
	var halt *HaltError
	switch {
	case errors.As(err, &halt):
		halt.Position = w.pos
	case err == nil && w.cur.pastReplay(w.pos):
		err = w.endReplay(until.working)
	case err == nil && until.taking.Err() == nil:
		err = errMoved
	}
	return err
}

func (w *worker) newSlots() *slots {
	n := w.c.cfg.Concurrency
	s := &slots{w: w, window: window.New[*Message](w.pos, w.leaderEpoch, w.doneBefore), events: make(chan slotEvent), identified: make(chan fetchResult, 1), limit: n, below: math.MaxInt64, toldOf: -1,
		observer: newObserver(w), sweeper: newSweeper(w), sweptAt: time.Now(), prunedAt: time.Now(), pruneWait: pace.PruneIdle}
	for nr := range n {
		one := &slot{nr: nr, retrier: w.retrier, tasks: make(chan *task, 1), events: s.events}
		one.applier = applier{engine: engine{ownership: w.ownership}, fence: &slotFence{slot: one}, sideBySide: true}
		one.deadlocked = func() { s.events <- slotEvent{slot: one, deadlocked: true} }
		s.all, s.idle = append(s.all, one), append(s.idle, one)
	}
	if n == 1 && w.cur.doneUntil != nil && w.c.shares == nil {
		// Another version of the program ran several transactions at once. What it has left open is
		// finished first.
		s.below, s.switching = *w.cur.doneUntil, true
	}
	return s
}

// start starts slots.
func (s *slots) start(until stop, which []*slot) {
	for _, one := range which {
		one.gone.Go(func() {
			defer one.stopHandlers()
			for t := range one.tasks {
				one.work = t
				err := one.handleBatch(until, t.Messages, t.Messages[len(t.Messages)-1].Offset+1)
				one.events <- slotEvent{slot: one, ended: true, err: err}
			}
		})
	}
}

// schedule gives out messages and moves the position. It returns when ctx is done, when something
// ends the work, or when there is nothing left to do here.
func (s *slots) schedule(ctx context.Context, committer *committer) error {
	tick := time.NewTicker(pace.Sweep)
	defer tick.Stop()
	for ctx.Err() == nil && s.err == nil {
		looks, lookDue := s.observeIfDue(ctx)
		late := s.giveOut()
		s.sweepIfDue()
		s.pruneIfDue(ctx)
		if over, err := s.isOver(); over {
			return err
		}
		var results <-chan fetchResult
		if s.wantsMore() && !s.identifying {
			results = s.w.reader.fetches.results
		}
		var linger <-chan time.Time
		if late > 0 {
			linger = time.After(late)
		}
		select {
		case got := <-results:
			if err := s.fetched(ctx, got); err != nil {
				return err
			}
		case got := <-s.identified:
			if err := s.counted(got); err != nil {
				return err
			}
		case e := <-s.events:
			s.slotReported(e)
		case r := <-s.sweeper.done:
			if err := s.swept(r, committer); err != nil {
				return err
			}
		case got := <-looks:
			if err := s.observed(got); err != nil {
				return err
			}
		case <-lookDue:
		case <-linger:
		case <-tick.C:
			s.reportBlocked()
		case <-s.sweeper.steps:
			s.stepPruned()
		case err := <-committer.lost:
			return err
		case <-ctx.Done():
		}
	}
	return nil
}

// wantsMore reports whether the window has room for the result of a fetch.
func (s *slots) wantsMore() bool {
	w := s.window
	return s.fetchErr == nil && w.Len() < s.w.c.cfg.Window && !s.w.cur.pastReplay(w.Next) && w.Next < s.below
}

// isOver reports whether nothing is left to do here, and with which error the work then ends. It is
// over after a halt, if everything below the message that halts is done; at the end of a replay;
// and after an error of the fetch, as what was fetched is handled first.
func (s *slots) isOver() (over bool, err error) {
	if s.busy() > 0 || s.sweeping || s.window.Ready(s.open(), 1) > 0 {
		return false, nil
	}
	if next, _ := s.window.Frontier(); next > s.w.pos {
		return false, nil // it is swept first
	}
	switch {
	case s.halt != nil:
		return true, s.halt
	case s.switching && s.w.pos >= s.below, s.w.cur.pastReplay(s.w.pos):
		return true, nil
	case s.fetchErr != nil && (s.window.Waiting() == 0 || s.observer != nil):
		return true, s.w.fetchError(s.fetchErr)
	}
	return false, nil
}

// busy returns how many slots have a task.
func (s *slots) busy() int { return len(s.all) - len(s.idle) }

// giveOut gives the oldest ready messages to idle slots. If there are fewer than a full batch, it
// waits for more up to Config.Linger, and returns for how long.
func (s *slots) giveOut() (wait time.Duration) {
	cfg := &s.w.c.cfg
	for {
		free := min(len(s.idle), s.limit-s.busy())
		if free <= 0 {
			return 0
		}
		n := s.window.Ready(s.open(), cfg.BatchSize*free)
		if n == 0 {
			s.readySince = time.Time{}
			return 0
		}
		if s.readySince.IsZero() {
			s.readySince = time.Now()
		}
		if wait := cfg.Linger - time.Since(s.readySince); n < cfg.BatchSize && wait > 0 && s.wantsMore() {
			return wait
		}
		// Evenly, so that no slot waits while another has a full batch of slow messages.
		s.give(s.idle[0], s.window.Take(s.open(), min((n+free-1)/free, cfg.BatchSize), cfg.BatchBytes))
	}
}

func (s *slots) give(one *slot, t *task) {
	s.idle = slices.DeleteFunc(s.idle, func(other *slot) bool { return other == one })
	one.task = t
	s.w.state.inFlight.Add(int64(len(t.Entries)))
	one.tasks <- t
}

// slotReported records what a slot has done.
func (s *slots) slotReported(e slotEvent) {
	if e.deadlocked {
		s.deadlocked()
		return
	}
	done := s.window.Finish(e.slot.task, e.offsets)
	s.w.reader.release(done)
	s.w.state.inFlight.Add(-int64(len(done)))
	s.finished += len(done)
	if !e.ended {
		return
	}
	s.w.state.inFlight.Add(-int64(e.slot.task.Left))
	e.slot.task = nil
	s.idle = append(s.idle, e.slot)
	var halt *HaltError
	switch {
	case e.err == nil:
	case errors.As(e.err, &halt) && halt.Reason == HaltBlocked:
		// Everything below the message is handled first, so that the position is at it: the
		// operator who gives it up passes over no other.
		if s.halt == nil || halt.blockedAt < s.halt.blockedAt {
			s.halt = halt
		}
		s.below = min(s.below, halt.blockedAt)
	case s.err == nil:
		s.err = e.err
	}
}

// Handlers that lock the same rows in another order end each other's transactions. Fewer at once do
// that less often.
const (
	deadlockLimit  = 5
	deadlockWindow = time.Minute
)

// deadlocked halves the number of slots after deadlockLimit deadlocks within deadlockWindow. It is
// restored when the partition is taken over, or its work begins anew.
func (s *slots) deadlocked() {
	now := time.Now()
	s.deadlocks = append(slices.DeleteFunc(s.deadlocks, func(at time.Time) bool { return now.Sub(at) > deadlockWindow }), now)
	if len(s.deadlocks) < deadlockLimit || s.limit == 1 {
		return
	}
	s.deadlocks, s.limit = nil, s.limit/2
	s.w.c.cfg.Logger.Warn("onlyonce: handlers of one partition deadlock with each other: fewer run at once; set Config.OrderingKey to what they update, or lower Config.Concurrency",
		"scope", s.w.c.cfg.Scope, "topic", s.w.id.Topic, "partition", s.w.id.Partition, "at_once", s.limit)
}

// fetched adds the result of a fetch to the window. If a process may have died of one of its
// messages, their ids are found first, beside the scheduler, which does not wait for them.
func (s *slots) fetched(ctx context.Context, got fetchResult) error {
	if got.err != nil {
		s.fetchErr = got.err
		return nil //nolint:nilerr // what was fetched before is handled first: see isOver
	}
	s.w.reader.stampMessages(got.Messages)
	if !s.w.c.identifyMayKill() || !slices.ContainsFunc(got.Messages, func(m *Message) bool { return m.alone }) {
		return s.add(got)
	}
	s.identifying = true
	counter := applier{engine: engine{ownership: s.w.ownership}}
	go func() {
		got.err = counter.identifyCounted(ctx, got.Messages)
		s.identified <- got
	}()
	return nil
}

// counted adds the result of a fetch to the window after identifyCounted.
func (s *slots) counted(got fetchResult) error {
	if s.identifying = false; got.err != nil {
		return got.err
	}
	return s.add(got)
}

// add adds messages to the window. What is done already must be the same record as when it was done
// (F5).
func (s *slots) add(got fetchResult) error {
	w := s.window
	for _, m := range got.Messages {
		if s.w.cur.pastReplay(m.Offset) {
			break
		}
		s.w.c.identifyInOrder(m)
		hash, before := w.Before[m.Offset]
		read := anchorOf(m)
		if before && hash != storedHash(read.hash) {
			return s.w.haltError(HaltTruncated, "the record at offset %d is not the one that was handled there: the log was truncated and written anew", m.Offset)
		}
		if w.Add(&entry{Offset: m.Offset, Message: m, Size: len(m.Value), Epoch: m.LeaderEpoch, Hash: read.hash, Key: m.inOrder}) {
			s.finished++
			s.w.reader.release([]*Message{m})
		}
	}
	w.Next, w.Epoch = s.w.cur.capAtReplayEnd(got.Next), got.LeaderEpoch
	for offset := range w.Before {
		if offset >= w.Next {
			continue
		}
		if !s.w.id.Compacted {
			return s.w.haltError(HaltTruncated, "the record at offset %d, which was handled, is not there any more: the log was truncated and written anew", offset)
		}
		delete(w.Before, offset)
	}
	return nil
}

// reportBlocked records which message holds up the position although later ones are done.
func (s *slots) reportBlocked() {
	e := s.window.Blocker()
	if e == nil {
		s.w.state.blockedBy.Store(nil)
		return
	}
	b := &BlockedBy{Offset: e.Offset, Key: keyHash(e.Key), Since: time.Now(), Done: len(s.window.DoneAbove())}
	if before := s.w.state.blockedBy.Load(); before != nil && before.Offset == b.Offset {
		b.Since = before.Since
	}
	s.w.state.blockedBy.Store(b)
	if s.window.Len() < s.w.c.cfg.Window || s.toldOf == b.Offset || time.Since(b.Since) < fullAfter {
		return
	}
	s.toldOf = b.Offset
	cfg, id := &s.w.c.cfg, s.w.id
	cfg.Logger.Warn("onlyonce: partition waits for one message: it has read Config.Window messages above it", "scope", cfg.Scope,
		"topic", id.Topic, "partition", id.Partition, "offset", b.Offset, "ordering_key", b.Key, "since", b.Since, "done", b.Done)
	if cfg.Hooks.WindowFull != nil {
		cfg.Hooks.WindowFull(MessageEvent{Topic: id.Topic, Partition: id.Partition, Offset: b.Offset, Blocked: b})
	}
}

// drain waits for the tasks under way, and ends the slots.
func (s *slots) drain() {
	if s.observer != nil && s.observer.looking {
		<-s.observer.results
	}
	if s.identifying {
		<-s.identified
	}
	if s.pruning {
		<-s.sweeper.steps
	}
	for s.busy() > 0 {
		s.slotReported(<-s.events)
	}
	for _, one := range s.all {
		close(one.tasks)
		one.gone.Wait()
	}
}

// probe tries one message while the brake holds the partition, as (*worker).probeOne does. It tries
// another one each time, because the oldest may be one that always fails.
func (s *slots) probe(until stop) error {
	w, ctx := s.w, until.taking
	if w.c.cfg.OnFailure == ParkOrderingKey {
		if _, err := w.retrier.retryNext(until); err != nil || !w.brake.Stopped() {
			return err
		}
	}
	bounded, cancel := context.WithTimeout(ctx, w.brake.every)
	defer cancel()
	for {
		if s.observer != nil {
			if err := s.observed(s.observer.look(bounded, w, w.pos)); err != nil {
				return err
			}
		}
		if s.window.Ready(s.open(), 1) > 0 {
			break
		}
		if s.fetchErr != nil {
			return w.fetchError(s.fetchErr)
		}
		select {
		case got := <-w.reader.fetches.results:
			err := s.fetched(ctx, got)
			if s.identifying {
				err = s.counted(<-s.identified)
			}
			if err != nil {
				return err
			}
		case <-bounded.Done():
			if ctx.Err() == nil { // the log has no message
				return w.brake.halt.Load()
			}
			return nil
		}
	}
	one, t := s.all[0], s.window.TakeHead(s.open(), w.probes)
	t.Messages[0].alone = true
	s.start(until, s.all[:1])
	s.give(one, t)
	w.probes++
	for s.busy() > 0 {
		s.slotReported(<-s.events)
	}
	return nil
}
