package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// brakeError means that a message is not parked, because nearly all before it were. Nothing of its
// transaction is committed: the receiver stores those before it first.
type brakeError struct {
	at  *incoming
	why error
}

func (e *brakeError) Error() string { return e.why.Error() }

// braked returns a brakeError if the transaction of a set is about to park a message that the brake
// does not let pass. The messages count in the order of arrival; copies do not count (Q7).
func (r *receiver) braked(set []*incoming, found []intake.Found) error {
	var judged []*incoming
	var reasons []string
	for i, in := range set {
		if found[i] != intake.Known {
			judged = append(judged, in)
			reasons = append(reasons, in.parkedFor(found[i]))
		}
	}
	at, yes := r.brake.StopsAt(set[0], reasons...)
	if !yes {
		return nil
	}
	in := judged[at]
	return &brakeError{at: in, why: in.parkedWhy()}
}

// parkedFor returns the reason for which a message is about to be parked, or "".
func (in *incoming) parkedFor(found intake.Found) string {
	switch {
	case in.fault != nil:
		return parked.NoKey
	case found == intake.Divergent:
		return parked.Conflict
	case in.item.Refused() != nil:
		return in.item.Reason
	}
	return ""
}

// parkedWhy returns the error for which a message is about to be parked.
func (in *incoming) parkedWhy() error {
	if in.fault != nil {
		return in.fault
	}
	return in.item.Refused()
}

// record counts a message that is stored or parked.
func (r *receiver) record(in *incoming) {
	outcome := ""
	switch in.item.Outcome {
	case intake.Copied:
		return
	case intake.Parked:
		outcome = in.item.Reason
	}
	if r.brake.Record(outcome) {
		r.cfg.Logger.Info("onlyonce: a message was stored: the queue continues", "queue", r.cfg.Name)
	}
}

// standStill holds the queue until a message is tried again, and keeps the place meanwhile. Then it
// looks for the ids again, because a service that Identify calls may have been away. Without
// Ordered another message is the first one to be tried.
func (r *receiver) standStill(ctx context.Context, stop *brakeError, left []*incoming) ([]*incoming, error) {
	fresh := !r.brake.Stopped()
	why := r.tripped(stop)
	r.state.Set(why)
	if fresh {
		r.cfg.Logger.Error("onlyonce: nearly all messages of a queue would be parked: none is, and nothing is received",
			"queue", r.cfg.Name, "error", why)
	}
	until := time.Now().Add(r.cfg.Brake.ProbeInterval)
	for wait := r.cfg.Brake.ProbeInterval; wait > 0; wait = time.Until(until) {
		if !pace.Sleep(ctx, min(wait, r.cfg.LeaseTTL/3)) {
			return left, ctx.Err()
		}
		if err := r.keep(ctx); err != nil {
			return left, err
		}
	}
	if !r.cfg.Ordered {
		left = append(left[1:], left[0])
	}
	r.identifyAgain(left)
	return left, nil
}

// tripped halts the queue, and returns why.
func (r *receiver) tripped(stop *brakeError) error {
	judged := r.brake.Trip()
	var failed []string
	for _, reason := range []string{parked.NoKey, parked.TooOld, parked.Permanent} {
		n := 0
		for _, other := range judged {
			if other == reason {
				n++
			}
		}
		if n > 0 {
			failed = append(failed, fmt.Sprintf("%d %s", n, reason))
		}
	}
	return fmt.Errorf(
		"of the last %d messages nearly all cannot be stored (%s), the last of them, which is not parked, "+
			"because of: %w. "+
			"One message is tried every %v; when it is stored, the queue continues by itself",
		len(judged),
		strings.Join(failed, ", "),
		stop.why,
		r.cfg.Brake.ProbeInterval,
	)
}

// identifyAgain looks for the ids of messages that have none.
func (r *receiver) identifyAgain(left []*incoming) {
	var lack []*Delivery
	for _, in := range left {
		if in.fault != nil {
			lack = append(lack, in.delivery)
		}
	}
	found := r.identify(lack)
	for _, in := range found {
		at := slices.IndexFunc(left, func(old *incoming) bool { return old.delivery == in.delivery })
		left[at] = in
	}
}
