package consumer

import "github.com/onlyonce/onlyonce/internal/ring"

// Statements that tests make something happen at.
const (
	FenceSQL      = fenceSQL
	FenceSlotSQL  = fenceSlotSQL
	BlockedSQL    = blockedSQL
	TakeCursorSQL = takeCursorSQL
	PromoteAllSQL = promoteAllSQL
	FailParkedSQL = failParkedSQL
)

// ClaimSQL is the claim of the class standard.
var ClaimSQL = claimSQL[ring.Standard]
