package consumer

import (
	"context"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// handleAlone moves the position past one message, which is applied, found to be a duplicate, or
// parked. It tries until that is done, the work ends, or no more is to be taken; then it takes back
// what it owes (D1, D2).
func (ap *applier) handleAlone(until stop, m *Message, next int64) error {
	t := tries{ap: ap, m: m, exclusive: ap.cur.suspected(m)}
	retry := newBackoff(ap.c.cfg)
	for {
		err := ap.tryAlone(until, &t, next)
		if err == nil {
			return nil
		}
		err = t.hindered(until.taking, err)
		ends := endsWork(err)
		if !ends && until.taking.Err() == nil {
			wait := ap.reportLogRetry(RetryEvent{Offset: m.Offset, Messages: 1, Attempt: t.attempt, Err: err}, retry)
			if pace.Sleep(until.taking, wait) {
				continue
			}
		}
		t.takeBack()
		if ends {
			return err
		}
		return until.taking.Err()
	}
}

// tryAlone makes one attempt at a message: it begins a try, runs, judges and settles.
func (ap *applier) tryAlone(until stop, t *tries, next int64) error {
	t.count = count{} // if there is no attempt, none is reported
	release, err := ap.acquireLock(until.taking, t.exclusive)
	if err != nil {
		return err
	}
	// Deferred, and so after ended has taken the count back: while the database has an attempt as
	// exclusive that is none, no other attempt of this process may begin. If that one killed the
	// process, the next owner would hold the count against this message (F9).
	defer release()
	if err := t.begin(until.working); err != nil {
		return err
	}
	err = ap.applyOrPark(until.working, t, next)
	t.ended(err)
	return err
}

// applyOrPark runs the attempt that has begun, and judges it. If the verdict is to set the message
// aside, that is a run of its own, which is judged too. The error is nil if the position has passed
// the message.
func (ap *applier) applyOrPark(work context.Context, t *tries, next int64) error {
	v := giveUp
	var err error
	why := judgeUnanswered(ap.logPolicy(), t.count)
	if why != nil {
		ap.giveUpIdentifying(t.m, t.count)
	} else {
		one := *t.m
		one.Attempt = t.attempt
		err = ap.run(work, ap.planAlone(&one, next, nil)).err
		v, why = judge(ap.logPolicy(), t.count, err)
	}
	if v == park || v == giveUp {
		err = ap.run(work, ap.planAlone(t.m, next, why)).err
		parking := ap.logPolicy()
		parking.parking = true
		v, why = judge(parking, t.count, err)
	}
	return ap.settle(t.m, v, why, err)
}

// settle turns a verdict that halts the partition into the halt. It returns err after any other: a
// message that may be set aside has been by now (D3, D7).
func (ap *applier) settle(m *Message, v verdict, why *disposition, err error) error {
	switch {
	case v == tripped:
		ap.forgetAttempts(m.Offset)
		return ap.haltEverythingFails(ap.state.position.Load(), m.Offset, why)
	case v == halt && why.reason == parked.Crashed: // the count is final, whatever version is deployed
		return ap.haltBlocked(m, "%s: %v; adopt at %d to try it again, or at the next offset to give it up",
			why.reason, why.err, ap.haltPosition(m))
	case v == halt:
		return ap.haltBlocked(m, "%s: %v", why.reason, why.err)
	}
	return err
}
