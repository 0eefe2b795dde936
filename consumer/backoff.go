package consumer

import (
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/primary"
)

// reportLogRetry is reportRetry for failures that keep the partition's log from continuing.
func (ap *applier) reportLogRetry(r MessageEvent, b backoff.BackOff) time.Duration {
	ap.state.setTrouble(&ap.state.logTrouble, r.Err)
	ap.troubled = true
	return ap.reportRetry(r, b)
}

// reportRetry reports that something is tried again, and returns the wait before that.
func (e *engine) reportRetry(r MessageEvent, b backoff.BackOff) time.Duration {
	r.Topic, r.Partition, r.Wait = e.id.Topic, e.id.Partition, primary.Wait(r.Err, waitAtLeast(r.Err, b.NextBackOff()))
	e.c.cfg.Logger.Warn("onlyonce: trying again", "scope", e.c.cfg.Scope, "topic", r.Topic, "partition", r.Partition,
		"offset", r.Offset, "messages", r.Messages, "attempt", r.Attempt, "wait", r.Wait, "error", r.Err)
	if e.c.cfg.Hooks.Retry != nil {
		e.c.cfg.Hooks.Retry(r)
	}
	return r.Wait
}

func newBackoff(cfg Config) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(cfg.Backoff.Min), backoff.WithMaxInterval(cfg.Backoff.Max),
		backoff.WithMaxElapsedTime(0)) // without end: giving up is decided elsewhere
}

// backoffFor returns the wait before the attempt that follows the n-th, if no single process has
// made all of these attempts.
func backoffFor(cfg Config, n int) time.Duration {
	b, d := newBackoff(cfg), time.Duration(0)
	for range min(n, 100) {
		d = b.NextBackOff()
	}
	return d
}
