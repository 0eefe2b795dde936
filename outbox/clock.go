package outbox

import (
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// clocks are the clocks of one loop, in the order in which they run. After a database error none of
// them runs before retryAt.
type clocks struct {
	all     pace.Clocks
	retryAt time.Time
	waits   backoff.BackOff
}

// never is when a clock is due that has nothing to do.
var never = pace.Never

// run runs each clock that is due, once, up to the first error.
func (c *clocks) run(now time.Time) error {
	if err := c.all.Run(now); err != nil {
		return err
	}
	c.waits.Reset()
	return nil
}

// next returns when the first clock is due.
func (c *clocks) next(now time.Time) time.Time {
	next := c.all.Next(now)
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
