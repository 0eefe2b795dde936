package consumer

import (
	"errors"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// refusedLimit is how often a batch is repeated whole if the server refuses it. Then it is
// divided: it may need more room than there is, or one of its messages may be the cause. Dividing
// does not count against any message.
const refusedLimit = 3

// lostLimit is how many connections in a row a batch may lose. Then it is divided, because one of
// its messages may be what kills them.
const lostLimit = 3

// handleBatch moves the position to next, together with the effects of msgs; messages that cannot
// be applied are parked. It returns when that is done, when no more is to be taken (the current
// attempt is then not committed), or with the error that ended the work.
//
// If a batch fails because of a handler, it rolls back and is divided. Only a message that is alone
// is judged. In a batch, a queued statement's error may surface at a neighbour, and a deferred
// constraint's at the very end (F9, D1).
func (ap *applier) handleBatch(until stop, msgs []*Message, next int64) error {
	if at := slices.IndexFunc(msgs, func(m *Message) bool { return m.alone }); at >= 0 {
		n := max(at, 1)
		if err := ap.handlePart(until, msgs[:n], positionAfter(msgs, n, next)); err != nil || n == len(msgs) {
			return err
		}
		return ap.handlePart(until, msgs[n:], next)
	}
	retry := newBackoff(ap.c.cfg)
	began := time.Now()
	for lost, refused := 0, 0; ; {
		release, err := ap.acquireLock(until.taking, false)
		if err != nil {
			return err
		}
		err = ap.run(until.working, ap.plan(msgs, next)).err
		release()
		var f *handlerFailure
		var h *hindrance
		var stop *brakeError
		switch {
		case err == nil || endsWork(err):
			return err
		case errors.As(err, &f) && errors.As(f.err, &stop):
			if f.index == 0 {
				return ap.haltEverythingFails(ap.state.position.Load(), msgs[0].Offset, stop.disposition)
			}
			if err := ap.handlePart(until, msgs[:f.index], positionAfter(msgs, f.index, next)); err != nil {
				return err
			}
			return ap.handlePart(until, msgs[f.index:], next)
		case errors.As(err, &f) && f.lost && lost < lostLimit:
			lost++
		case errors.As(err, &f):
			return ap.divideBatch(until, msgs, next, f.index)
		case errors.As(err, &h) && h.keptOut() && time.Since(began) < ap.c.cfg.longest():
			// Smaller batches would not be let in either.
		case errors.As(err, &h) && refused == refusedLimit:
			return ap.divideBatch(until, msgs, next, h.index)
		case h != nil:
			refused++
		}
		if !pace.Sleep(
			until.taking,
			ap.reportLogRetry(RetryEvent{Offset: msgs[0].Offset, Messages: len(msgs), Err: err}, retry),
		) {
			return until.taking.Err()
		}
	}
}

// divideBatch handles the messages before the failed one, that one by itself, and those after it.
// If the failed one is not known, it divides the batch in halves, which takes the fewest runs until
// the message is alone (D1).
func (ap *applier) divideBatch(until stop, msgs []*Message, next int64, failed int) error {
	cuts := []int{0, len(msgs) / 2, len(msgs)}
	if failed >= 0 {
		cuts = []int{0, failed, failed + 1, len(msgs)}
	}
	for i, from := range cuts[:len(cuts)-1] {
		if to := cuts[i+1]; from < to {
			if err := ap.handlePart(until, msgs[from:to], positionAfter(msgs, to, next)); err != nil {
				return err
			}
		}
	}
	return nil
}

// handlePart handles some messages of a batch. A single one is alone from here on.
func (ap *applier) handlePart(until stop, msgs []*Message, next int64) error {
	switch {
	case until.taking.Err() != nil:
		return until.taking.Err()
	case len(msgs) == 1:
		return ap.handleAlone(until, msgs[0], next)
	}
	return ap.handleBatch(until, msgs, next)
}

// positionAfter returns the position after the first n messages of a batch that ends at next.
func positionAfter(msgs []*Message, n int, next int64) int64 {
	if n < len(msgs) {
		return msgs[n].Offset
	}
	return next
}

// advancePosition moves the position past offsets that hold nothing to handle (F6).
func (w *worker) advancePosition(until stop, next int64) error {
	retry := newBackoff(w.c.cfg)
	for {
		err := w.run(until.working, w.plan(nil, next)).err
		if err == nil || endsWork(err) {
			return err
		}
		if !pace.Sleep(until.taking, w.reportLogRetry(RetryEvent{Offset: w.pos, Err: err}, retry)) {
			return until.taking.Err()
		}
	}
}
