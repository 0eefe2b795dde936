package queue

import (
	"context"
	"errors"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

const (
	// fullEvery is how often a receiver asks its broker whether the queue is full.
	fullEvery = 5 * time.Second
	// fullTimeout bounds one such query.
	fullTimeout = 5 * time.Second
)

// faultFull is the kind of the fault of a queue that takes no more messages, as
// onlyonce.owners.faults has it.
const faultFull = "full"

// watchFull notes whether the broker's queue is full, until ctx ends. A full queue is no fault of
// the receiver, which goes on. But nobody else tells the operators, and producers may lose what
// they cannot send.
func (q *Queue) watchFull(ctx context.Context) {
	b, says := q.broker.(BrokerFull)
	if !says {
		return
	}
	for wait := time.Duration(0); pace.Sleep(ctx, wait); wait = fullEvery {
		bounded, cancel := context.WithTimeout(ctx, fullTimeout)
		why, err := b.Full(bounded)
		cancel()
		_, was := q.full.Trouble()
		switch {
		case err != nil: // that the broker is away is another fault
		case why == "":
			q.full.Set(nil)
		default:
			if was == nil {
				q.cfg.Logger.Warn("onlyonce: the queue is full: the broker refuses what producers send",
					"queue", q.cfg.Name, "why", why)
			}
			q.full.Set(errors.New(why))
		}
	}
	q.full.Set(nil)
}
