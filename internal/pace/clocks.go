package pace

import "time"

// Clock is a part of a loop's work that has times of its own.
type Clock struct {
	// Due returns when Run is due: at once if that time has passed.
	Due func(now time.Time) time.Time
	Run func() error
}

// Never is when a clock is due that has nothing to do.
var Never = time.Unix(1<<40, 0)

// Clocks are the clocks of one loop, in the order in which they run.
type Clocks []Clock

// Run runs each clock that is due, once, up to the first error.
func (c Clocks) Run(now time.Time) error {
	for _, one := range c {
		if now.Before(one.Due(now)) {
			continue
		}
		if err := one.Run(); err != nil {
			return err
		}
	}
	return nil
}

// Next returns when the first clock is due.
func (c Clocks) Next(now time.Time) time.Time {
	next := Never
	for _, one := range c {
		if at := one.Due(now); at.Before(next) {
			next = at
		}
	}
	return next
}
