package intake

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Steps of a transaction that claims a set.
const (
	stepBounds = "bounds"
	stepClaim  = "claim"
)

// Begin queues the start of a transaction that has only our own statements: its isolation level,
// its bounds, and what its seal asks for. No statement and no wait takes longer than bound.
func Begin(tx *guard.Tx, bound time.Duration) {
	ReadCommitted(tx)
	tx.Bound(stepBounds, bound, bound, bound)
	tx.Engine(stepBounds, guard.AllowCommitSQL)
}

// Claim claims keys in one statement and returns the outcome of each. It waits for uncommitted
// copies.
func Claim(ctx context.Context, tx *guard.Tx, keys []dedupe.Key) ([]dedupe.Outcome, error) {
	outcomes, err := dedupe.ClaimAll(ctx, guard.Querier{Tx: tx, Step: stepClaim}, keys)
	if failed := tx.Failure(); failed != nil {
		err = failed
	}
	return outcomes, err
}
