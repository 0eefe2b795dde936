package outbox

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// clock is a part of a loop's work that has times of its own.
type clock struct {
	// due returns when run is due: at once if that time has passed.
	due func(now time.Time) time.Time
	run func() error
}

// never is when a clock is due that has nothing to do.
var never = time.Unix(1<<40, 0)

// clocks are the clocks of one loop, in the order in which they run. After a database error none of
// them runs before retryAt.
type clocks struct {
	all     []clock
	retryAt time.Time
	waits   backoff.BackOff
}

// run runs each clock that is due, once, up to the first error.
func (c *clocks) run(now time.Time) error {
	for _, one := range c.all {
		if now.Before(one.due(now)) {
			continue
		}
		if err := one.run(); err != nil {
			return err
		}
	}
	c.waits.Reset()
	return nil
}

// next returns when the first clock is due.
func (c *clocks) next(now time.Time) time.Time {
	next := never
	for _, one := range c.all {
		if at := one.due(now); at.Before(next) {
			next = at
		}
	}
	if next.Before(c.retryAt) {
		return c.retryAt
	}
	return next
}

// postpone emits a database error and puts the next try off.
func (c *clocks) postpone(emit emitter, err error) {
	d := c.waits.NextBackOff()
	emit.failed(err, d)
	c.retryAt = time.Now().Add(d)
}
