package consumer

// Statements that tests make something happen at.
const (
	FenceSQL   = fenceSQL
	ClaimSQL   = claimSQL
	BlockedSQL = blockedSQL
	SweepSQL   = sweepSQL
)
