package dedupe

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// AnyTx is the part of a transaction that claiming needs: [pgx.Tx] has it, and so has the
// transaction that a consumer's handler gets. Never pass a pool or a bare connection: a claim
// outside the transaction of its effects does not protect them.
type AnyTx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Outcome is the result of a claim. A duplicate is an outcome and not an error.
type Outcome int16

// Outcomes. The zero value is not an outcome, so that a program that ignores an error does not take
// it for Fresh.
const (
	// Fresh: the key was not claimed before. It is claimed now, and stays so if and only if this
	// transaction commits.
	Fresh Outcome = 3
	// Duplicate: the key was claimed by a transaction that has committed, or earlier in this one.
	// Skip the message.
	Duplicate Outcome = 1
	// Conflict: the key was claimed for another payload. One of the two producers is wrong. Set the
	// message aside and alert an operator: if you skip it, it is lost.
	Conflict Outcome = 2
)

// String is the outcome's name in lower case, "invalid" for any other value.
func (o Outcome) String() string {
	switch o {
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	}
	return "invalid"
}

// sqlFresh is how onlyonce.claim returns Fresh; the other codes equal their outcomes.
const sqlFresh = 0

// ErrNoTransaction means that a claim, or an enqueued call, got a pool or a connection without a
// transaction.
var ErrNoTransaction = guard.ErrNoTransaction

// claimSQL claims keys. In: uuid[], bigint[] and text[] (their scopes) of the same length. Out: one
// row, smallint[] in the same order. Inserts into segments of the inbox in key order and waits
// there for uncommitted copies; any isolation level.
const claimSQL = `select onlyonce.claim($1, $2, $3)`

// Claim claims one key in the caller's transaction, before its effects:
//
//	outcome, err := dedupe.Claim(ctx, tx, key)
//	if err == nil && outcome == dedupe.Fresh {
//		// effects, in tx
//	}
//
// If another transaction holds an uncommitted claim of the same key, Claim waits until it ends,
// because it may roll back: set lock_timeout in tx, or a deadline on ctx, to bound that. Under
// REPEATABLE READ and SERIALIZABLE the wait ends in SQLSTATE 40001 when the other one commits: run
// the transaction again (PostgreSQL documentation, chapter "Transaction Isolation").
//
// A pool, and a connection without a transaction, are refused with [ErrNoTransaction] (T1).
func Claim(ctx context.Context, tx AnyTx, key Key) (Outcome, error) {
	outcomes, err := ClaimAll(ctx, tx, []Key{key})
	if err != nil {
		return 0, err
	}
	return outcomes[0], nil
}

// ClaimAll claims many keys in one statement and returns their outcomes in the same order. A key
// that occurs twice in keys is Fresh once. It takes the locks in the order of the hashes, so that
// calls with overlapping keys wait for each other and do not deadlock. Several calls in one
// transaction can deadlock (SQLSTATE 40P01: run the transaction again).
func ClaimAll(ctx context.Context, tx AnyTx, keys []Key) ([]Outcome, error) {
	if err := guard.InTransaction(tx); err != nil {
		return nil, fmt.Errorf("dedupe: claim: %w", err)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	hashes := make([][16]byte, len(keys))
	fingerprints := make([]int64, len(keys))
	scopes := make([]string, len(keys))
	var faults []error
	for i, k := range keys {
		if err := k.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("key %d: %w", i, err))
			continue
		}
		hashes[i] = k.Hash()
		fingerprints[i] = k.Fingerprint.Int64()
		scopes[i] = k.Scope
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	var codes []int16
	if err := tx.QueryRow(
		ctx,
		claimSQL,
		codec.UUIDs(hashes),
		codec.Bigints(fingerprints),
		scopes,
	).Scan(&codes); err != nil {
		return nil, fmt.Errorf("dedupe: claim: %w", err)
	}
	if len(codes) != len(keys) {
		return nil, fmt.Errorf("dedupe: claim: %d outcomes for %d keys", len(codes), len(keys))
	}
	outcomes := make([]Outcome, len(codes))
	for i, c := range codes {
		switch o := Outcome(c); {
		case c == sqlFresh:
			outcomes[i] = Fresh
		case o == Duplicate, o == Conflict:
			outcomes[i] = o
		default:
			return nil, fmt.Errorf("dedupe: claim: the database answered %d for key %d", c, i)
		}
	}
	return outcomes, nil
}
