package intake

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Steps of a transaction that claims a set.
const (
	stepBounds = "bounds"
	stepClaim  = "claim"
)

const lockNotAvailable = "55P03" // lock_not_available

// Begin queues the start of a transaction that has only our own statements: its isolation level,
// its bounds, and what its seal asks for. A claim waits for an uncommitted copy at most for wait.
// No other statement and no other wait takes longer than bound.
func Begin(tx *guard.Tx, wait, bound time.Duration) {
	ReadCommitted(tx)
	tx.Bound(stepBounds, wait, bound, bound)
	tx.Engine(stepBounds, guard.AllowCommitSQL)
}

// Claim claims keys in one statement and returns the outcome of each. It waits for uncommitted
// copies; if one of them takes too long, the error wraps ErrPending.
func Claim(ctx context.Context, tx *guard.Tx, keys []dedupe.Key) ([]dedupe.Outcome, error) {
	outcomes, err := dedupe.ClaimAll(ctx, guard.Querier{Tx: tx, Step: stepClaim}, keys)
	if failed := tx.Failure(); failed != nil {
		err = failed
	}
	return outcomes, AsPending(err)
}

// Claimed queues what follows the claims of a set: from here on, each wait may take as long as
// bound.
func Claimed(tx *guard.Tx, bound time.Duration) {
	tx.Engine(stepBounds, "set local lock_timeout = "+guard.Millis(bound))
}

// AsPending wraps the error of a claim with ErrPending if the claim has waited for too long.
func AsPending(err error) error {
	if guard.SQLState(err) == lockNotAvailable {
		return fmt.Errorf("%w: %w", ErrPending, err)
	}
	return err
}
