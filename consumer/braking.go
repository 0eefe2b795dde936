package consumer

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	brakes "github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// haltEverythingFails halts the partition because of a message that failed, like nearly all before
// it.
func (e *engine) haltEverythingFails(pos, offset int64, v *disposition) *HaltError {
	b := e.brake
	counts := map[string]int{}
	judged := b.Trip()
	for _, reason := range judged {
		counts[reason]++
	}
	var reasons, failed []string
	for _, reason := range []string{parked.NoKey, parked.TooOld, parked.Permanent, parked.Exhausted} {
		if counts[reason] > 0 {
			reasons = append(reasons, reason)
			failed = append(failed, fmt.Sprintf("%d %s", counts[reason], reason))
		}
	}
	h := e.haltErrorAt(pos, HaltEverythingFails, "of the last %d messages nearly all have failed (%s), the "+
		"last of them at offset %d, which is not parked: %v. One message is tried every %v; when it is "+
		"applied, the partition continues by itself",
		len(judged), strings.Join(failed, ", "), offset, v.err, b.every)
	for _, reason := range reasons {
		if reason == parked.TooOld {
			continue // an operator has to find out first which of them were applied
		}
		h.parkedKind = e.c.parkedKind()
		h.failed = append(h.failed, reason)
		h.Redrive = append(h.Redrive, h.redrive(reason, &h.Partition))
	}
	b.halt.Store(h)
	return h
}

// recordOutcomes records for the brake how the messages of a committed transaction ended, as
// outcome.reasons.
func (e *engine) recordOutcomes(reasons ...string) {
	if !e.brake.Record(reasons...) {
		return
	}
	if h := e.state.halted.Load(); h != nil && h.Reason == HaltEverythingFails {
		e.state.halted.CompareAndSwap(h, nil)
	}
	e.c.cfg.Logger.Info("onlyonce: a message was applied: the partition continues",
		"scope", e.c.cfg.Scope, "topic", e.id.Topic, "partition", e.id.Partition)
}

// firstBraked returns the index of the first message of a plan at which the partition has to
// halt, before that message is set aside. err is nil if there is none (D7).
func (e *engine) firstBraked(p *plan, dispositions []*disposition) (at int, err error) {
	if p.alreadyParked || e.c.cfg.OnFailure == BlockPartition {
		return 0, nil
	}
	of := func(i int) *disposition {
		if dispositions[i] == nil {
			return p.park
		}
		return dispositions[i]
	}
	reasons := make([]string, len(p.msgs))
	worst := false
	for i := range p.msgs {
		if v := of(i); v != nil {
			reasons[i] = v.reason
			worst = true
		}
	}
	if !worst {
		return 0, nil
	}
	if at, yes := e.brake.StopsAt(p, reasons...); yes {
		return at, &brakeError{of(at)}
	}
	return 0, nil
}

// brake is the brake of one partition. The partition's worker and retrier share it.
type brake struct {
	*brakes.Window
	every time.Duration
	halt  atomic.Pointer[HaltError]
}

func newBrake(cfg Brake) *brake {
	return &brake{Window: brakes.Settings(cfg).New(), every: cfg.ProbeInterval}
}
