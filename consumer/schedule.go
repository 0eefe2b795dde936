package consumer

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/window"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// handleInSlots reads the log and handles it in slots, until ctx is done (nil) or an error ends the
// work.
func (w *worker) handleInSlots(until stop, committer *committer) error {
	if w.cur.pastReplay(w.pos) {
		return w.endReplay(until.working)
	}
	s := w.newSlots(committer)
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
		err = s.schedule(until.taking)
	}
	end()
	last := s.drain()
	if err == nil {
		err = s.err
	}
	if last == nil {
		last = s.sweepRest()
	}
	if err == nil {
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

func (w *worker) newSlots(committer *committer) *slots {
	n := w.c.cfg.Concurrency
	s := &slots{
		w:         w,
		committer: committer,
		window:    window.New[*Message](w.pos, w.leaderEpoch, w.doneBefore),
		limit:     n,
		events:    make(chan event),
		below:     math.MaxInt64,
	}
	s.sweeper = &sweeper{s: s, sweptAt: time.Now()}
	s.pruner = &pruner{s: s, rows: w.donePruning(), lastAt: time.Now(), wait: w.c.pace.PruneIdle}
	s.observer = observer{s: s, full: -1}
	report := func(e slotEvent) { s.events <- func() error { return s.slotReported(e) } }
	for range n {
		sl := &slot{retrier: w.retrier, tasks: make(chan *task, 1), report: report}
		sl.applier = applier{engine: engine{ownership: w.ownership}, fenceOf: sl.slotFence, sideBySide: true}
		sl.deadlocked = func() { report(slotEvent{slot: sl, deadlocked: true}) }
		s.all = append(s.all, sl)
		s.idle = append(s.idle, sl)
	}
	if n == 1 && w.cur.doneUntil != nil {
		// Another version of the program ran several transactions at once. What it has left open is
		// finished first.
		s.below = *w.cur.doneUntil
		s.switching = true
	}
	return s
}

// start starts slots. Each has one task at a time, whose end it reports once; drain ends the slots.
func (s *slots) start(until stop, which []*slot) {
	for _, sl := range which {
		sl.gone.Go(func() {
			defer sl.stopHandlers()
			for t := range sl.tasks {
				sl.current = t
				err := sl.handleBatch(until, t.Messages, t.Messages[len(t.Messages)-1].Offset+1)
				sl.report(slotEvent{slot: sl, ended: true, err: err})
			}
		})
	}
}

// schedule gives out messages and moves the position. It returns when ctx is done, when something
// ends the work, or when there is nothing left to do here.
func (s *slots) schedule(ctx context.Context) error {
	clocks := pace.Clocks{
		{Due: s.givingDue, Run: s.giveOut},
		{Due: s.sweeper.due, Run: s.sweeper.begin},
		{Due: s.pruner.due, Run: func() error { return s.pruner.begin(ctx) }},
		{Due: s.observer.due, Run: s.observer.observe},
	}
	for ctx.Err() == nil && s.err == nil {
		if err := clocks.Run(time.Now()); err != nil {
			return err
		}
		if over, err := s.isOver(); over {
			return err
		}
		if err := s.next(ctx, clocks.Next(time.Now())); err != nil {
			return err
		}
	}
	return nil
}

// next waits for what comes first: the result of a fetch, if the window has room for it, an event,
// a clock, which is due at a time, the loss of the partition, or the end of ctx.
func (s *slots) next(ctx context.Context, at time.Time) error {
	var results <-chan fetchResult
	if s.wantsMore() && !s.identifying {
		results = s.w.reader.fetches.results
	}
	due := time.NewTimer(time.Until(at))
	defer due.Stop()
	select {
	case got := <-results:
		return s.fetched(ctx, got)
	case happened := <-s.events:
		return happened()
	case err := <-s.committer.lost:
		return err
	case <-due.C:
	case <-ctx.Done():
	}
	return nil
}

// isOver reports whether nothing is left to do here, and with which error the work then ends. It is
// over after a halt, if everything below the message that halts is done; at the end of a replay;
// and after an error of the fetch, as what was fetched is handled first.
func (s *slots) isOver() (over bool, err error) {
	if s.busy() > 0 || s.sweeper.sweeping || s.window.Ready(s.open(), 1) > 0 {
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

// givingDue returns when messages are to be given to idle slots: at once, or after Config.Linger if
// they are fewer than a full batch and more may come. It notes since when some are ready.
func (s *slots) givingDue(now time.Time) time.Time {
	cfg := &s.w.c.cfg
	free := s.free()
	if free == 0 {
		return pace.Never
	}
	n := s.window.Ready(s.open(), cfg.BatchSize*free)
	if n == 0 {
		s.readySince = time.Time{}
		return pace.Never
	}
	if s.readySince.IsZero() {
		s.readySince = now
	}
	if n < cfg.BatchSize && s.wantsMore() {
		return s.readySince.Add(cfg.Linger)
	}
	return now
}

// giveOut gives the oldest ready messages to idle slots.
func (s *slots) giveOut() error {
	cfg := &s.w.c.cfg
	for now := time.Now(); !now.Before(s.givingDue(now)); {
		free := s.free()
		n := s.window.Ready(s.open(), cfg.BatchSize*free)
		// Evenly, so that no slot waits while another has a full batch of slow messages.
		s.give(s.idle[0], s.window.Take(s.open(), min((n+free-1)/free, cfg.BatchSize), cfg.BatchBytes))
	}
	return nil
}

// free is how many slots can be given messages.
func (s *slots) free() int { return max(min(len(s.idle), s.limit-s.busy()), 0) }

func (s *slots) give(sl *slot, t *task) {
	s.idle = slices.DeleteFunc(s.idle, func(other *slot) bool { return other == sl })
	sl.task = t
	s.w.state.inFlight.Add(int64(len(t.Entries)))
	sl.tasks <- t
}

// slotReported records what a slot has done (C6).
func (s *slots) slotReported(e slotEvent) error {
	if e.deadlocked {
		s.limit = s.deadlocks.limit(s.w, s.limit, time.Now())
		return nil
	}
	done := s.window.Finish(e.slot.task, e.offsets)
	s.w.reader.release(done)
	s.w.state.inFlight.Add(-int64(len(done)))
	s.sweeper.finished += len(done)
	if !e.ended {
		return nil
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
	return nil
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
		s.events <- func() error { return s.identified(ctx, got) }
	}()
	return nil
}

// identified adds the result of a fetch to the window after identifyCounted.
func (s *slots) identified(ctx context.Context, got fetchResult) error {
	s.identifying = false
	switch {
	case s.draining:
		return nil
	case got.err != nil:
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
		if w.Add(&entry{
			Offset:  m.Offset,
			Message: m,
			Size:    len(m.Value),
			Epoch:   m.LeaderEpoch,
			Hash:    anchorOf(m).hash,
			Key:     m.inOrder,
		}) {
			s.sweeper.finished++
			s.w.reader.release([]*Message{m})
		}
	}
	w.Next = got.Next
	w.Epoch = got.LeaderEpoch
	return nil
}

// await lets events happen for as long as the scheduler waits for nothing else.
func (s *slots) await(under func() bool) error {
	for under() {
		happened := <-s.events
		if err := happened(); err != nil {
			return err
		}
	}
	return nil
}

// drain waits for everything that is under way, and ends the slots. It returns the first error.
func (s *slots) drain() (first error) {
	s.draining = true
	underWay := func() bool { return s.identifying || s.pruner.stepping || s.sweeper.sweeping || s.busy() > 0 }
	for underWay() {
		happened := <-s.events
		if err := happened(); first == nil {
			first = err
		}
	}
	for _, sl := range s.all {
		close(sl.tasks)
		sl.gone.Wait()
	}
	return first
}
