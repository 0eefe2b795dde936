package consumer

import "context"

// probe tries one message while the brake holds the partition. It returns errMoved if that releases
// the brake, and the halt if there is no message to try. If failed messages are retried from the
// database and one of them is due, it tries that one, and messages in the log wait (D7).
//
// tryOne tries one message of the log, and reports whether there was one. bounded is how long it
// may wait for that.
func (w *worker) probe(until stop, tryOne func(bounded context.Context) (tried bool, err error)) error {
	if w.c.cfg.OnFailure == ParkOrderingKey {
		if _, err := w.retrier.retryNext(until); err != nil {
			return err
		}
		if !w.brake.Stopped() {
			return errMoved
		}
	}
	bounded, cancel := context.WithTimeout(until.taking, w.brake.every)
	defer cancel()
	tried, err := tryOne(bounded)
	switch {
	case err != nil:
		return err
	case !tried && until.taking.Err() == nil:
		return w.brake.halt.Load()
	case !w.brake.Stopped():
		return errMoved
	}
	return nil
}

// tryOldest tries the oldest message that is not handled. A position that moves without one counts
// as tried.
func (w *worker) tryOldest(bounded context.Context, until stop, committer *committer) (tried bool, err error) {
	msgs, next, err := w.reader.nextBatch(bounded, w.pos, committer.lost)
	switch {
	case err != nil:
		return false, w.fetchError(err)
	case len(msgs) > 0:
		err = w.handleAlone(until, msgs[0], next)
		w.reader.release(msgs)
		return true, err
	case next > w.pos:
		return true, w.advancePosition(until, next)
	}
	return false, nil
}

// tryHead tries one of the messages that wait for no other. It tries another one each time, because
// the oldest may be one that always fails.
func (s *slots) tryHead(bounded context.Context, until stop) (tried bool, err error) {
	w := s.w
	for s.window.Ready(s.open(), 1) == 0 {
		if s.fetchErr != nil {
			return false, w.fetchError(s.fetchErr)
		}
		select {
		case got := <-w.reader.fetches.results:
			if err := s.fetched(until.taking, got); err != nil {
				return false, err
			}
			if err := s.await(func() bool { return s.identifying }); err != nil {
				return false, err
			}
		case <-bounded.Done():
			return false, nil
		}
	}
	sl := s.all[0]
	t := s.window.TakeHead(s.open(), w.probes)
	t.Messages[0].alone = true
	s.start(until, s.all[:1])
	s.give(sl, t)
	w.probes++
	if err := s.await(func() bool { return s.busy() > 0 }); err != nil {
		return true, err
	}
	if s.halt != nil {
		return true, s.halt
	}
	return true, s.err
}
