package guard

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// AllowCommitSQL lets onlyonce.seal() allow the COMMIT of this very transaction, and of no later
// one that a procedure began after ending it. One row of text; no index, no lock.
const AllowCommitSQL = `
select set_config('onlyonce.fenced', pg_current_xact_id()::text, true),
       set_config('jit', 'off', true)`

// Bound queues how long the transaction's statements may wait for a lock, how long each may run,
// and how long the server waits for the next one, under the name of a step. It uses SET, which
// takes no snapshot.
func (t *Tx) Bound(step string, lock, statement, idle time.Duration) {
	for _, b := range []struct {
		name string
		of   time.Duration
	}{{"lock_timeout", lock}, {"statement_timeout", statement}, {"idle_in_transaction_session_timeout", idle}} {
		t.Engine(step, "set local "+b.name+" = "+Millis(b.of))
	}
}

// Querier sends queries as statements of the engine, under the name of a step.
type Querier struct {
	*Tx
	Step string
}

// QueryRow is [Tx.EngineRow]. It keeps no reference to args.
func (q Querier) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return q.EngineRow(ctx, q.Step, sql, slices.Clone(args)...)
}
