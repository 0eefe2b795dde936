package quickstart

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// wait returns when cond is true. It gives up if a worker has ended by itself, or if the progress
// that cond returns has not changed for the time of -patience; "" counts as no progress.
func (d *demo) wait(ctx context.Context, what string, cond func(ctx context.Context) (done bool, progress string, err error)) error {
	last := ""
	is := func(ctx context.Context) (bool, error) {
		done, progress, err := cond(ctx)
		if progress != "" {
			last = progress
		}
		return done, err
	}
	return d.fleet.Until(ctx, d.opts.patience, is, func() string { return last }, func(err error) error { return d.stuck(ctx, what, err) })
}

// stuck says what may help to understand why there is no progress.
func (d *demo) stuck(ctx context.Context, what string, err error) error {
	lines := []string{fmt.Sprintf("stuck: waited %v for %s, and nothing moved:", d.opts.patience, what)}
	note := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if err != nil {
		note("last error: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	positions, err := d.positions(ctx)
	ends, endsErr := d.servers.Kafka.Ends(ctx, d.run, d.opts.partitions)
	if err := errors.Join(err, endsErr); err != nil {
		note("positions are not known: %v", err)
	} else {
		for p, end := range ends {
			note("partition %d: handled up to %d of %d", p, positions[int32(p)], end)
		}
	}
	if pending, reason, err := servers.Pending(ctx, d.servers.Postgres.Pool, d.run); err != nil {
		note("calls are not known: %v", err)
	} else {
		note("%d calls are pending; last error of one: %q", pending, reason)
	}
	return errors.New(strings.Join(append(lines, d.fleet.Diagnosis()...), "\n  "))
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
		n, _, err := servers.Pending(ctx, d.servers.Postgres.Pool, d.run)
		if err != nil {
			return false, "", err
		}
		return n == 0, fmt.Sprint(n), nil
	})
}

// lag is how many records are produced and not yet handled.
func (d *demo) lag(ctx context.Context) (int64, error) {
	positions, err := d.positions(ctx)
	if err != nil {
		return 0, err
	}
	ends, err := d.servers.Kafka.Ends(ctx, d.run, d.opts.partitions)
	if err != nil {
		return 0, err
	}
	lag := int64(0)
	for p, end := range ends {
		lag += end - positions[int32(p)]
	}
	return lag, nil
}
