package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// verdict is what follows for a message that is alone from one attempt at it.
type verdict int8

// Verdicts.
const (
	done     verdict = iota // the plan has committed
	noAnswer                // the attempt ended for a reason that is not the message's: it does not count
	again                   // the answer counts, and the message is tried again where it is
	park                    // it is set aside, and tried again from the database
	giveUp                  // it is set aside for an operator
	halt                    // it would have to be set aside and may not be: the partition halts
	tripped                 // nearly all fail: the partition halts
)

// policy is what judge goes by besides the message: the configuration, and where the message is.
type policy struct {
	limit     int  // Config.MaxAttempts
	blocks    bool // no message of the log may be passed over
	sidelines bool // a message that fails is retried from the database, so only its ordering key waits
	row       bool // the message is a parked row
	parking   bool // the plan was to set the message aside
	braked    bool // the brake holds the partition
	onParked  bool // Config.OnParked is set

	wait func(attempt int) time.Duration // Config.Backoff
}

// count has the attempts at a message, as known when one of them begins.
type count struct {
	attempt    int // its number, from 1: Message.Attempt
	counted    int // attempts, this one included, that can have ended a process
	unanswered int // of those before it: without an answer
}

// logPolicy is the policy for messages of the log.
func (ap *applier) logPolicy() policy {
	pol := ap.c.policy()
	pol.blocks = ap.c.cfg.OnFailure == BlockPartition
	pol.sidelines = ap.c.cfg.OnFailure == ParkOrderingKey
	pol.braked = ap.brake.Stopped()
	return pol
}

// rowPolicy is the policy for parked rows. Nothing waits for one but its ordering key, so no row
// halts its partition, except by the brake.
func (r *retrier) rowPolicy() policy {
	pol := r.c.policy()
	pol.row = true
	pol.sidelines = true
	pol.braked = r.countsForBrake() && r.brake.Stopped()
	return pol
}

func (c *Consumer) policy() policy {
	return policy{
		limit:    c.cfg.MaxAttempts,
		onParked: c.cfg.OnParked != nil,
		wait:     func(attempt int) time.Duration { return backoffFor(c.cfg, attempt) },
	}
}

// judgeUnanswered decides, before an attempt is made, whether the ones before it have ended their
// processes too often: then this one is not made, and the message is given up as crashed. The first
// of those may have been under way when another message did that. The others were made with nothing
// else of their process under way (D3, F9).
func judgeUnanswered(pol policy, n count) (crashed *disposition) {
	if n.counted <= pol.limit || n.unanswered <= 1 {
		return nil
	}
	crashed = &disposition{reason: parked.Crashed, attempts: n.counted - 1, err: fmt.Errorf(
		"the process ended %d times while it handled this message: os.Exit, out of memory, or a kill", n.unanswered)}
	// Attempts beyond the limit and one were to park it: then Config.OnParked may end the process.
	if parking := n.counted - 1 - pol.limit; pol.onParked && parking > 0 {
		crashed.quiet = true
		crashed.err = fmt.Errorf("%w, %d of them while it was to be parked: Config.OnParked was not called",
			crashed.err, parking)
	}
	return crashed
}

// judge decides what becomes of a message that is alone after the attempt n has ended with err. It
// is the one place for messages of the log and for parked rows. If the verdict sets the message
// aside or halts, the disposition says why; otherwise it is nil (D1, D2, D3, D7).
func judge(pol policy, n count, err error) (verdict, *disposition) {
	if err == nil {
		return done, nil
	}
	f, answered := errors.AsType[*handlerFailure](err)
	if !answered {
		return noAnswer, nil
	}
	blocked, isBlocked := errors.AsType[*blockedError](f.err)
	braked, isBraked := errors.AsType[*brakeError](f.err)
	final := &disposition{reason: givenUpReason(f), err: f.err, attempts: n.attempt}
	hopeless := final.reason == parked.Permanent
	switch {
	case isBlocked && pol.row:
		return park, blocked.disposition // its row says why from now on
	case isBlocked:
		return halt, blocked.disposition
	case isBraked:
		return tripped, braked.disposition
	case pol.parking:
		return again, nil // it failed while it was set aside: it is tried once more, and counts
	case pol.braked:
		return tripped, final
	case pol.blocks && hopeless:
		return halt, final
	case pol.blocks:
		return again, nil
	case hopeless, n.attempt >= pol.limit:
		return giveUp, final
	case pol.sidelines:
		return park, &disposition{reason: parked.Failed, err: f.err, attempts: n.attempt,
			wait: waitAtLeast(f.err, pol.wait(n.attempt))}
	}
	return again, nil
}
