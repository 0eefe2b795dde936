package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/examples/internal/servers"
)

// pollEvery is how often a condition is looked at.
const pollEvery = 50 * time.Millisecond

// stuckError means that there was no progress for too long. It is a failed check, because the
// example shows liveness too.
type stuckError struct {
	what  string
	after time.Duration
	state []string
}

func (e *stuckError) Error() string {
	return fmt.Sprintf("stuck: waited %v for %s, and nothing moved:\n  %s", e.after, e.what, strings.Join(e.state, "\n  "))
}

// wait returns when cond is true. It gives up if a worker has ended by itself, or if the progress
// that cond returns has not changed for the time of -patience; "" counts as no progress.
func (d *demo) wait(ctx context.Context, what string, cond func(ctx context.Context) (done bool, progress string, err error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last, since := "", time.Now()
	for {
		done, progress, err := cond(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case d.fleet.Failure() != nil:
			return d.fleet.Failure()
		case done && err == nil:
			return nil
		case progress != "" && progress != last:
			last, since = progress, time.Now()
		}
		// An error is waited out too: a server may be away for a moment.
		if time.Since(since) > d.opts.patience {
			return d.stuck(ctx, what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stuck prints what may help to understand why there is no progress.
func (d *demo) stuck(ctx context.Context, what string, err error) error {
	e := &stuckError{what: what, after: d.opts.patience}
	note := func(format string, args ...any) { e.state = append(e.state, fmt.Sprintf(format, args...)) }
	if err != nil {
		note("last error: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	positions, _, err := d.positions(ctx)
	ends, endsErr := d.servers.Kafka.Ends(ctx, d.topic, d.opts.partitions)
	if err := errors.Join(err, endsErr); err != nil {
		note("positions are not known: %v", err)
	} else {
		for p, end := range ends {
			note("partition %d: handled up to %d of %d", p, positions[int32(p)], end)
		}
	}
	if pending, reason, err := servers.Pending(ctx, d.servers.Postgres.Pool, d.scope()); err != nil {
		note("calls are not known: %v", err)
	} else {
		note("%d calls are pending; last error of one: %q", pending, reason)
	}
	e.state = append(e.state, d.fleet.Diagnosis()...)
	return e
}

// waitOwned waits until every partition was taken over since mark, by a worker that lives.
func (d *demo) waitOwned(ctx context.Context, mark int) error {
	return d.wait(ctx, "every partition to have an owner", func(context.Context) (bool, string, error) {
		return d.fleet.Settled(mark, d.opts.partitions), "", nil
	})
}

// waitHandled waits until the cursors are at the end of the log.
func (d *demo) waitHandled(ctx context.Context) error {
	return d.wait(ctx, "every record to be handled", func(ctx context.Context) (bool, string, error) {
		lag, err := d.lag(ctx)
		if err != nil {
			return false, "", err
		}
		return lag == 0, fmt.Sprint(lag), nil
	})
}

// waitPaid waits until the outbox has no call left to make.
func (d *demo) waitPaid(ctx context.Context) error {
	return d.wait(ctx, "every call to be made", func(ctx context.Context) (bool, string, error) {
		n, _, err := servers.Pending(ctx, d.servers.Postgres.Pool, d.scope())
		if err != nil {
			return false, "", err
		}
		return n == 0, fmt.Sprint(n), nil
	})
}

// lag is how many records are produced and not yet handled.
func (d *demo) lag(ctx context.Context) (int64, error) {
	positions, _, err := d.positions(ctx)
	if err != nil {
		return 0, err
	}
	ends, err := d.servers.Kafka.Ends(ctx, d.topic, d.opts.partitions)
	if err != nil {
		return 0, err
	}
	lag := int64(0)
	for p, end := range ends {
		lag += end - positions[int32(p)]
	}
	return lag, nil
}
