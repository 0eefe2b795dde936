package consumer

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/window"
)

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
		head := func(bounded context.Context) (bool, error) { return s.tryHead(bounded, of) }
		err = w.probe(of, head)
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
	s := &slots{w: w, window: window.New[*Message](w.pos, w.leaderEpoch, w.doneBefore), events: make(chan slotEvent), identified: make(chan fetchResult, 1), limit: n, below: math.MaxInt64, reportedFor: -1,
		sweeper: newSweeper(w), sweptAt: time.Now(), prunedAt: time.Now(), pruneWait: w.c.pace.PruneIdle}
	for range n {
		sl := &slot{retrier: w.retrier, tasks: make(chan *task, 1), events: s.events}
		sl.applier = applier{engine: engine{ownership: w.ownership}, fenceOf: sl.slotFence, sideBySide: true}
		sl.deadlocked = func() { s.events <- slotEvent{slot: sl, deadlocked: true} }
		s.all, s.idle = append(s.all, sl), append(s.idle, sl)
	}
	if n == 1 && w.cur.doneUntil != nil {
		// Another version of the program ran several transactions at once. What it has left open is
		// finished first.
		s.below, s.switching = *w.cur.doneUntil, true
	}
	return s
}

// start starts slots.
func (s *slots) start(until stop, which []*slot) {
	for _, sl := range which {
		sl.gone.Go(func() {
			defer sl.stopHandlers()
			for t := range sl.tasks {
				sl.current = t
				err := sl.handleBatch(until, t.Messages, t.Messages[len(t.Messages)-1].Offset+1)
				sl.events <- slotEvent{slot: sl, ended: true, err: err}
			}
		})
	}
}

// schedule gives out messages and moves the position. It returns when ctx is done, when something
// ends the work, or when there is nothing left to do here.
func (s *slots) schedule(ctx context.Context, committer *committer) error {
	tick := time.NewTicker(s.w.c.pace.Sweep)
	defer tick.Stop()
	for ctx.Err() == nil && s.err == nil {
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
			if err := s.counted(ctx, got); err != nil {
				return err
			}
		case e := <-s.events:
			s.slotReported(e)
		case r := <-s.sweeper.done:
			if err := s.swept(r, committer); err != nil {
				return err
			}
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
	case s.fetchErr != nil && s.window.Waiting() == 0:
		return true, s.w.fetchError(s.fetchErr)
	}
	return false, nil
}

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

func (s *slots) give(sl *slot, t *task) {
	s.idle = slices.DeleteFunc(s.idle, func(other *slot) bool { return other == sl })
	sl.task = t
	s.w.state.inFlight.Add(int64(len(t.Entries)))
	sl.tasks <- t
}

// slotReported records what a slot has done (C6).
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
// restored when the partition is taken over, or its work begins anew (C6).
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
// messages, their ids are found first, beside the scheduler, which does not wait for them (C8).
func (s *slots) fetched(ctx context.Context, got fetchResult) error {
	if got.err != nil {
		s.fetchErr = got.err
		return nil //nolint:nilerr // what was fetched before is handled first: see isOver
	}
	got.fetched = s.w.reader.admit(got.fetched)
	if !s.w.c.identifyMayKill() || !slices.ContainsFunc(got.Messages, func(m *Message) bool { return m.alone }) {
		return s.add(ctx, got)
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
func (s *slots) counted(ctx context.Context, got fetchResult) error {
	if s.identifying = false; got.err != nil {
		return got.err
	}
	return s.add(ctx, got)
}

// add adds messages to the window.
func (s *slots) add(ctx context.Context, got fetchResult) error {
	if err := s.compare(ctx, got); err != nil {
		return err
	}
	w := s.window
	s.w.c.identifyAll(got.Messages, s.w.c.identifyInOrder)
	for _, m := range got.Messages {
		if w.Add(&entry{Offset: m.Offset, Message: m, Size: len(m.Value), Epoch: m.LeaderEpoch, Hash: anchorOf(m).hash, Key: m.inOrder}) {
			s.finished++
			s.w.reader.release([]*Message{m})
		}
	}
	w.Next = got.Next
	w.Epoch = got.LeaderEpoch
	return nil
}

// reportBlocked records which message holds up the position although later ones are done (C6).
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
	if s.window.Len() < s.w.c.cfg.Window || s.reportedFor == b.Offset || time.Since(b.Since) < fullAfter {
		return
	}
	s.reportedFor = b.Offset
	cfg, id := &s.w.c.cfg, s.w.id
	cfg.Logger.Warn("onlyonce: partition waits for one message: it has read Config.Window messages above it", "scope", cfg.Scope,
		"topic", id.Topic, "partition", id.Partition, "offset", b.Offset, "ordering_key", b.Key, "since", b.Since, "done", b.Done)
	emit(cfg.Hooks.WindowFull, WindowFullEvent{TopicPartition: id.TopicPartition, Blocked: b})
}

// drain waits for the tasks under way, and ends the slots.
func (s *slots) drain() {
	if s.identifying {
		<-s.identified
	}
	if s.pruning {
		<-s.sweeper.steps
	}
	for s.busy() > 0 {
		s.slotReported(<-s.events)
	}
	for _, sl := range s.all {
		close(sl.tasks)
		sl.gone.Wait()
	}
}
