package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/process"
)

// ErrConflict means that the call was enqueued before with other bytes, which may have been sent.
// SQLSTATE OO004. In a consumer's handler it comes from the next statement that waits for its
// result, or from the commit.
var ErrConflict = errors.New("outbox: the call was enqueued before with other bytes")

// SQLSTATEs of onlyonce.enqueue and onlyonce.hold.
const (
	codeFenceLost = "OO001"
	codeConflict  = "OO004"
	codeRebase    = "OO007"
	codeMoved     = "OO008"
	codeNotParked = "P0002" // no_data_found, of onlyonce.all_parked
	codeDenied    = "42501" // insufficient_privilege
)

// handlerTx is what the transaction of a consumer's handler has besides dedupe.AnyTx.
type handlerTx interface {
	// Origin is the inbound message that is being handled; ok is false if there is none.
	Origin() (o origin.Origin, ok bool)
	// BeforeCommit keeps an item for one statement that is sent right before the commit. So the
	// locks of ordering keys are taken together, sorted, and held only for moments.
	BeforeCommit(item any, write func(items []any) (sql string, args []any)) error
	// FirstUse notes an identity, and reports whether this attempt at the message notes it for the
	// first time.
	FirstUse(key [16]byte) bool
}

// Enqueue writes a call in the caller's transaction, together with the effects that ask for it. If
// the transaction commits, a relay sends the call until the remote has given a final answer, always
// under the same key and with the same bytes. If it rolls back, the call is never sent.
//
// In a consumer's handler the key derives from the message, so the call is the same each time the
// message is handled. In a transaction of your own (a [pgx.Tx]) there is no message: Call.ID and
// Call.Scope take its place and are required.
//
// A call that was enqueued before is not written again. Enqueue returns nil if its bytes are the
// same, and [ErrConflict] if they differ. Its error wraps [ErrCall] if the call cannot be enqueued
// as it is, and dedupe.ErrNoTransaction if tx is in no transaction. After an error, roll back.
//
// In a consumer's handler, the message's own claim excludes a second enqueue. Bytes are compared
// only if a message is handled again, with the row while it is kept (RelayConfig.Retention).
//
// In a transaction of your own, Enqueue makes one round trip. The call's key is claimed in the
// inbox (ring standard_keys, or that of its scope's class). If another transaction holds an
// uncommitted claim of the key, Enqueue waits for it; set lock_timeout or a deadline on ctx to
// bound that. The call is recognised while its key is remembered, while it is to be sent, and while
// it is parked, whichever is longest. After that, enqueuing it again makes a new call.
func Enqueue(ctx context.Context, tx dedupe.AnyTx, call Call) error { return EnqueueAll(ctx, tx, call) }

// EnqueueAll is [Enqueue] for several calls at once, in their order. Transactions that enqueue
// calls with ordering keys one by one can deadlock (SQLSTATE 40P01: run the transaction again).
// With one EnqueueAll each they do not.
func EnqueueAll(ctx context.Context, tx dedupe.AnyTx, calls ...Call) error {
	if err := guard.InTransaction(tx); err != nil {
		return fmt.Errorf("outbox: enqueue: %w", err)
	}
	var origin origin.Origin
	handler, inbound := tx.(handlerTx)
	if inbound {
		origin, inbound = handler.Origin()
		origin.Trace = origin.TraceIn(ctx)
	}
	rows := make([]any, 0, len(calls))
	for _, call := range calls {
		r, err := freezeCall(call, origin, inbound)
		if err != nil {
			return err
		}
		// Checked here and not by the database, so that the error is returned at the faulty line.
		if inbound && !handler.FirstUse(r.key) ||
			slices.ContainsFunc(rows, func(v any) bool { return v.(*callRow).key == r.key }) {
			return fmt.Errorf("%w: two calls named %q to sink %q: set Call.ID to tell them apart",
				ErrCall, r.name, r.sink)
		}
		rows = append(rows, &r)
	}
	write := process.Shared[hintedLanes](ctx).enqueueStatement
	if handler != nil {
		for _, r := range rows {
			if err := handler.BeforeCommit(r, write); err != nil {
				return err
			}
		}
		return nil
	}
	if len(rows) == 0 {
		return nil
	}
	sql, args := write(rows)
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		if guard.SQLState(err) == codeConflict {
			return fmt.Errorf("%w: %w", ErrConflict, err)
		}
		return fmt.Errorf("outbox: enqueue: %w", err)
	}
	return nil
}
