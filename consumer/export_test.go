package consumer

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// Statements that tests make something happen at.
const (
	FenceSQL      = fenceSQL
	FenceShareSQL = fenceShareSQL
	FenceSlotSQL  = fenceSlotSQL
	BlockedSQL    = blockedSQL
	TakeCursorSQL = takeCursorSQL
	PromoteAllSQL = promoteAllSQL
	FailParkedSQL = failParkedSQL
)

// ClaimSQL is the claim of the class standard.
var ClaimSQL = claimSQL[ring.Standard]

// DefaultTurns returns what a new consumer shares with the others of its process.
var DefaultTurns = newAttemptLock

// Tests that run side by side have handlers that wait for the test: each consumer has turns of its
// own.
func init() { newAttemptLock = func() *attemptLock { return &attemptLock{} } }

// Enter acquires the lock on attempts of a consumer.
func (c *Consumer) Enter(ctx context.Context, alone bool, bound time.Duration) (leave func(), err error) {
	return c.attempts.acquire(ctx, alone, bound)
}
