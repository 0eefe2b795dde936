package consumer

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// Reasons of a disposition that no row has; the others are in package parked.
const (
	reasonDuplicate  = "duplicate"           // the message is skipped, not parked
	reasonUnparkable = "it cannot be parked" // the partition halts
)

// disposition is what becomes of a message that is not applied.
type disposition struct {
	reason   string
	err      error
	attempts int
	wait     time.Duration // until the next attempt, if the message is retried
	waitsFor pgtype.UUID   // the ordering key of an earlier parked message that it waits for
}

func (v *disposition) parkedState() string {
	switch v.reason {
	case parked.Failed:
		return parked.Retrying
	case parked.Behind:
		return parked.Blocked
	}
	return parked.Waiting
}

// blockedError means that a message would have to be set aside, but Config.OnFailure forbids it.
type blockedError struct{ *disposition }

func (e *blockedError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }

func (e *blockedError) Unwrap() error { return e.err }

// brakeError means that a message is not given up, because the partition has to halt first.
type brakeError struct{ *disposition }

func (e *brakeError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }

func (e *brakeError) Unwrap() error { return e.err }

// givenUpReason returns the reason for which a message is given up, from the failure of its last
// attempt.
func givenUpReason(f *handlerFailure) string {
	if isHopeless(f.err) && !f.lost {
		return parked.Permanent
	}
	return parked.Exhausted
}
