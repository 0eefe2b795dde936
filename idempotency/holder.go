package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// holder is a way to hold a request's key while its handler runs: by the transaction that makes the
// handler's effects (H17), or by a lease (H18). A holder is for one request and one goroutine, and
// for all runs of the request's handler. Its methods are called in the order below; release is the
// last one, and called once, by [servedRequest.serveHeld] alone.
type holder interface {
	// claim takes the key for a run, or keeps it for a further one. found is the record that was
	// under the key before. If the key is not the run's, ours is false, and out is what becomes of
	// the request.
	claim(run *handlerRun, found lookup) (out runOutcome, ours bool)
	// work returns the context of the handler. end ends what the holder does beside the run; the
	// run calls it once, when its transaction has ended.
	work(run *handlerRun) (ctx context.Context, end func())
	// holds reports, after the handler's return, whether the key is still the run's. If it is not,
	// rep is the answer.
	holds(run *handlerRun) (rep reply, ours bool)
	// store writes the record, and commits it with the handler's writes.
	store(run *handlerRun, answer recordedAnswer) error
	// fate looks once whether a COMMIT without an answer, sent after the time sent, succeeded. The
	// run's transaction has ended on this side.
	fate(run *handlerRun, sent time.Time) (fate, *time.Time)
	// release gives the key back after a run of which nothing is kept, so that the next request
	// runs at once.
	release(run *handlerRun)
}

// fate is what became of a COMMIT without an answer (T4).
type fate int

const (
	fateOpen      fate = iota // not known yet: look again
	fateStored                // the record is there, and expires at the time that is returned with it
	fateUndone                // nothing is there, and nothing can come any more: the handler may run again
	fateRecorded              // another request has written a record
	fateTaken                 // another process has taken the request over
	fateForgotten             // a record would have expired by now, so its absence says nothing
)

// lookupLimit is how often a request looks at a record that another one has just written.
const lookupLimit = 20

// errGaveUp is why a request gave up its key.
var errGaveUp = errors.New("idempotency: gave up a key: another request was faster at each of 20 attempts")

// serveHeld runs the handler under the request's key, again if the database asks for that (H17), or
// answers from the record of another request that was faster.
func (req *servedRequest) serveHeld(h holder, found lookup) reply {
	var run *handlerRun
	giveBack := true
	defer func() {
		if giveBack { // also if the handler has panicked, or called runtime.Goexit
			h.release(run)
		}
	}()
	reruns := 0
	for range lookupLimit {
		run = req.newRun()
		giveBack = true
		out := run.runHeld(h, found, req.newRecorder(req.bodyLimit()))
		giveBack = out.giveBack || out.rerun
		switch {
		case out.recorded:
			if found = req.lookUp(); found.kind == lookupAnswered {
				return found.reply
			}
		case out.rerun && reruns < rerunLimit:
			reruns++
		default:
			return out.reply
		}
	}
	return problemReply(codeKeyContended, errGaveUp)
}

// runHeld runs the handler once, and stores its answer. However it ends, also by a panic or
// runtime.Goexit, its transaction ends here, and with that its connection is given back.
func (run *handlerRun) runHeld(h holder, found lookup, rec *recorder) runOutcome {
	end := func() {}
	defer func() {
		run.endTx()
		end()
	}()
	out, ours := h.claim(run, found)
	if !ours {
		return out
	}
	var ctx context.Context
	ctx, end = h.work(run)
	if p := run.runHandler(ctx, rec); p != nil {
		panic(p)
	}
	if err := fault.Point(fault.RequestHandled); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	if rep, ours := h.holds(run); !ours {
		return finalOutcome(rep)
	}
	decision := run.decideKept(rec)
	if decision.part == keepNothing {
		return decision.outcome
	}
	if decision.part == keepAnswer && run.tx != nil {
		if err := run.tx.Revert(run.ctx); err != nil {
			return run.outcomeOfFailure(err)
		}
	}
	if run.key == "" {
		return run.storeHeld(h, handlerReply(Bypassed, rec), recordedAnswer{})
	}
	answer, err := run.encodeResponse(run, rec)
	if err != nil {
		return undoneOutcome(problemReply(codeRolledBack, err))
	}
	return run.storeHeld(h, handlerReply(Created, rec), answer)
}

// storeHeld stores the answer, which is sent only after it (H12). A record without writes of the
// handler is written again until that succeeds: the first statement that does so ends the claim,
// and a later one fails because of that.
func (run *handlerRun) storeHeld(h holder, rep reply, answer recordedAnswer) runOutcome {
	sent := time.Now()
	writes := run.tx != nil // the handler's, which are in this transaction only
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.Timeouts.Commit)
	defer cancel()
	retry := retryBackoff()
	for {
		err := h.store(run, answer)
		if err == nil {
			return run.storedOutcome(rep, &run.expires)
		}
		lost := run.tx != nil && run.tx.Lost()
		run.endTx()
		switch {
		case lost && writes, guard.SQLState(err) == fenceLost: // an earlier COMMIT may have succeeded after all
			return run.resolve(h, rep, sent, err)
		case isRecordExists(err):
			return runOutcome{reply: inProgressReply(time.Second), recorded: true}
		case guard.SQLState(err) == stepUnknown:
			return undoneOutcome(unkeptReply(rep, err))
		case mustRerun(err) && writes:
			return runOutcome{reply: rerunsUsedUp(err), rerun: true}
		case writes: // a deferred constraint of the handler's tables failed
			return undoneOutcome(problemReply(codeRolledBack, err))
		}
		if !pause(ctx, retry) {
			return finalOutcome(problemReply(codeCommitUnknown, err))
		}
	}
}

// storedOutcome is the outcome of a run whose answer is stored until expires.
func (run *handlerRun) storedOutcome(rep reply, expires *time.Time) runOutcome {
	if run.onCommit != nil {
		run.onCommit()
	}
	if rep.mark == Created {
		run.layer.recentKeys.add(run.id)
		rep.expires = expires
	}
	return finalOutcome(rep)
}

// resolve finds out whether a COMMIT without an answer succeeded (T4). Without a key it cannot be
// looked up, and a retry could apply it twice.
func (run *handlerRun) resolve(h holder, rep reply, sent time.Time, cause error) runOutcome {
	unknown := problemReply(codeCommitUnknown, cause)
	if run.key == "" {
		unknown.retryAfter = 0
		unknown.final = true
		return finalOutcome(unknown)
	}
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.Timeouts.Commit)
	defer cancel()
	for retry := retryBackoff(); ctx.Err() == nil; pause(ctx, retry) {
		fate, expires := h.fate(run, sent)
		switch fate {
		case fateStored:
			return run.storedOutcome(rep, expires)
		case fateUndone:
			return runOutcome{reply: problemReply(codeRolledBack, cause), rerun: true}
		case fateRecorded:
			return runOutcome{reply: inProgressReply(time.Second), recorded: true}
		case fateTaken:
			return finalOutcome(inProgressReply(time.Second))
		case fateForgotten:
			return finalOutcome(unknown)
		}
	}
	return finalOutcome(unknown)
}

// pause waits for the next of a series of growing pauses. If ctx ends first, it returns false.
func pause(ctx context.Context, retry *backoff.ExponentialBackOff) bool {
	timer := time.NewTimer(retry.NextBackOff())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
