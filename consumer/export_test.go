package consumer

import (
	"context"
	"time"
)

// Statements that tests make something happen at.
const (
	FenceSQL   = fenceSQL
	ClaimSQL   = claimSQL
	BlockedSQL = blockedSQL
	SweepSQL   = sweepSQL
)

// DefaultTurns returns what a new consumer shares with the others of its process.
var DefaultTurns = turnsOf

// Tests that run side by side have handlers that wait for the test: each consumer has turns of its
// own.
func init() { turnsOf = func() *turns { return &turns{} } }

// Enter is turns.enter of a consumer.
func (c *Consumer) Enter(ctx context.Context, alone bool, bound time.Duration) (leave func(), err error) {
	return c.turns.enter(ctx, alone, bound)
}
