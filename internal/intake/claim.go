package intake

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// allowCommitSQL lets onlyonce.seal() allow the COMMIT of this very transaction. One row of text;
// no index, no lock.
const allowCommitSQL = `select set_config('onlyonce.fenced', pg_current_xact_id()::text, true)`

// Steps of a transaction that claims a set.
const (
	stepBounds = "bounds"
	stepClaim  = "claim"
)

// Begin queues the start of a transaction that has only our own statements: its isolation level,
// its bounds, and what its seal asks for. No statement and no wait takes longer than bound.
func Begin(tx *guard.Tx, bound time.Duration) {
	ReadCommitted(tx)
	for _, name := range []string{"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"} {
		tx.Engine(stepBounds, "set local "+name+" = "+guard.Millis(bound))
	}
	tx.Engine(stepBounds, allowCommitSQL)
}

// Claim claims keys in one statement and returns the outcome of each. It waits for uncommitted
// copies.
func Claim(ctx context.Context, tx *guard.Tx, keys []dedupe.Key) ([]dedupe.Outcome, error) {
	outcomes, err := dedupe.ClaimAll(ctx, claiming{tx}, keys)
	if failed := tx.Failure(); failed != nil {
		err = failed
	}
	return outcomes, err
}

// claiming sends the claim as a statement of the engine.
type claiming struct{ *guard.Tx }

func (c claiming) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.EngineRow(ctx, stepClaim, sql, slices.Clone(args)...)
}
