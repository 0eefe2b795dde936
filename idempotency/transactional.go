package idempotency

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// txHolder holds a request's key by the lock that the transaction of the handler's effects takes
// (H17). A request without a key has the transaction alone (H5).
type txHolder struct{}

// claim opens a transaction and takes the key in it, if there is one.
func (txHolder) claim(run *handlerRun, _ lookup) (out runOutcome, ours bool) {
	bounded, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	reserved := run.reserveConn(bounded)
	cancel()
	if !reserved {
		return finalOutcome(problemReply(codeOverCapacity, nil)), false
	}
	if out, ours = run.openTx(); !ours {
		return out, false
	}
	if run.key != "" && run.derivesCalls() {
		run.lendOrigin()
	}
	run.tx.Checkpoint()
	return out, true
}

func (txHolder) work(run *handlerRun) (ctx context.Context, end func()) { return run.work, func() {} }

func (txHolder) holds(*handlerRun) (rep reply, ours bool) { return rep, true }

func (txHolder) store(run *handlerRun, answer recordedAnswer) error {
	if run.key != "" {
		run.tx.SealBy(
			[]any{&run.expires},
			stepRecord,
			completeSQL,
			codec.UUID(run.id),
			run.scope.Tenant,
			run.subject.Scope,
			run.fingerprint,
			codec.UUID(run.token),
			answer.bytes,
			answer.sealed,
			run.ttl,
			run.lookInterval(),
			run.outlives(),
			run.callKeys,
			run.callSinks,
			run.callLanes,
			answer.refusal,
		)
	}
	return run.tx.Commit(run.layer.cfg.Timeouts.Commit)
}

// fate takes the key, whose lock the old transaction holds. Whichever transaction gets that lock
// next knows that the old one has ended, and its next statement sees whether there is a record.
// Until this request gets the lock, the outcome is open.
func (txHolder) fate(run *handlerRun, sent time.Time) (fate, *time.Time) {
	n, err := run.claimKeyAlone()
	switch {
	case err != nil || n == claimBusy:
		return fateOpen, nil
	case n == claimMine && time.Since(sent) >= run.ttl: // perhaps it was there, and is deleted
		return fateForgotten, nil
	case n == claimMine:
		return fateUndone, nil
	}
	rec, err := run.layer.findRecord(run.ctx, run.id)
	if err != nil {
		return fateOpen, nil
	}
	return run.fateByRecord(rec)
}

// fateByRecord is the fate of a COMMIT after which there was a record. If it is gone, it has
// expired since: its owner is unknown, and the next look decides by the time that has passed.
func (req *servedRequest) fateByRecord(rec *storedRecord) (fate, *time.Time) {
	switch {
	case rec == nil:
		return fateOpen, nil
	case rec.token == req.token:
		return fateStored, rec.expires
	}
	return fateRecorded, nil
}

// release has nothing to do: the key was free when the transaction ended.
func (txHolder) release(*handlerRun) {}

// lendOrigin has the keys of the handler's calls derive from the request's key, and notes the calls
// for its record.
func (run *handlerRun) lendOrigin() {
	from := run.origin
	from.Calls = &run.calls
	run.tx.Lend(&from)
}

// operationLook is how often, at least, the purge checks whether a request's operation has ended.
const operationLook = time.Hour

// lookInterval returns how often the purge checks whether the calls and operations of the request
// are settled. Between two looks and the record's end remotes can forget the keys of its calls
// (H26, H31).
func (run *handlerRun) lookInterval() time.Duration {
	look := run.ttl
	if run.derivesCalls() {
		look -= run.handler.route.KeyWindow
	}
	if run.outlives() {
		look = min(look, operationLook)
	}
	return look
}

// outlives reports whether the record stays until the request's operation has ended (H31). A
// derived key counts for no longer than its route says (H34).
func (run *handlerRun) outlives() bool { return run.operation != "" && !run.derived }

// callKeys, callSinks and callLanes return what the record keeps of the calls that its transaction
// has written, nil if there are none. They are called after these were written.
func (run *handlerRun) callKeys() any {
	keys := run.calls.Keys
	if keys == nil {
		return nil
	}
	return codec.Array(len(keys), func(i int) pgtype.UUID { return codec.UUID(keys[i]) })
}

func (run *handlerRun) callSinks() any {
	sinks := run.calls.Sinks
	if sinks == nil {
		return nil
	}
	return codec.Array(len(sinks), func(i int) pgtype.Text { return pgtype.Text{String: sinks[i], Valid: true} })
}

func (run *handlerRun) callLanes() any {
	lanes := run.calls.Lanes
	if lanes == nil {
		return nil
	}
	return codec.Array(len(lanes), func(i int) pgtype.Int2 { return pgtype.Int2{Int16: lanes[i], Valid: true} })
}

// openTx begins a transaction and takes the key in it, if there is one. If the key is not free, or
// the store cannot be reached, ours is false.
func (run *handlerRun) openTx() (out runOutcome, ours bool) {
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	if err := run.beginTx(ctx, run.handler.route.Isolation); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err)), false
	}
	if run.key == "" {
		run.openUnkeyed()
		return out, true
	}
	n, err := run.claimKey(ctx)
	if mustRerun(err) { // a purge has deleted the expired record since the snapshot
		return runOutcome{reply: rerunsUsedUp(err), rerun: true}, false
	}
	if err != nil {
		run.layer.forgetPlace(run.scope.Tenant, err)
		return finalOutcome(problemReply(
			codeStoreUnavailable,
			fmt.Errorf("idempotency: claiming a key: %w", err),
		)), false
	}
	return runOutcome{reply: inProgressReply(time.Second), recorded: n == claimRecorded}, n == claimMine
}

// The results of onlyonce.http_begin.
const (
	claimBusy     = 0
	claimMine     = 1
	claimRecorded = 2
)

// claimKey takes the key's lock, and then looks for a record.
func (run *handlerRun) claimKey(ctx context.Context) (n int, err error) {
	args := slices.Concat([]any{codec.UUID(run.id)}, run.layer.timeoutArgs, []any{run.home()})
	err = run.tx.EngineRow(ctx, stepClaim, beginSQL, args...).Scan(&n)
	return n, err
}

// openUnkeyed opens the transaction of a request without a key.
func (run *handlerRun) openUnkeyed() {
	run.tx.Engine(stepOpen, openSQL, append(slices.Clip(run.layer.timeoutArgs), run.home())...)
}

// claimKeyAlone claims the key in a transaction of its own.
func (run *handlerRun) claimKeyAlone() (int, error) {
	defer run.endTx()
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	// a snapshot from before the lock would not show the record
	if err := run.beginTx(ctx, pgx.ReadCommitted); err != nil {
		return 0, err
	}
	return run.claimKey(ctx)
}
