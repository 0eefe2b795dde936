package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// ParkedItem is a message, call or event that was set aside. A nil pointer means: not known, or
// none.
type ParkedItem struct {
	ID     int64  `json:"id" col:"ID"`
	Kind   string `json:"kind" col:"KIND" doc:"message, call or event"`
	State  string `json:"state" col:"STATE" doc:"waiting, retrying, blocked, reconcile, resolved or discarded"`
	Reason string `json:"reason" col:"REASON"`
	Tenant string `json:"tenant"`
	Scope  string `json:"scope" col:"SCOPE"`

	// Topic, Partition and Offset are a message's or an event's.
	Topic     *string `json:"topic" col:"ORIGIN" by:"Origin"`
	Partition *int32  `json:"partition"`
	Offset    *int64  `json:"offset"`
	// Sink and Name are a call's.
	Sink *string `json:"sink"`
	Name *string `json:"name"`

	Attempts  int32      `json:"attempts" col:"ATTEMPTS"`
	Error     string     `json:"error" col:"ERROR" by:"ErrorLine" doc:"its first line, at most 1,000 characters"`
	ParkedAt  time.Time  `json:"parked_at" col:"AGE,ago"`
	SettledAt *time.Time `json:"settled_at" doc:"when it was resolved or discarded"`

	NextAttemptAt *time.Time `json:"next_attempt_at" doc:"in state retrying: when it is due; nil: it waits for a rate"`
}

// Origin is the row's origin: a position in Kafka, or a call.
func (r *ParkedItem) Origin() string { return originOf(r.Topic, r.Partition, r.Offset, r.Sink, r.Name) }

// ErrorLine is the beginning of the error, for a table.
func (r *ParkedItem) ErrorLine() string { return show.FirstLine(r.Error, 60) }

func readParked(ctx context.Context, tx pgx.Tx, f reports.ParkedFilter) ([]ParkedItem, bool, error) {
	return reports.Parked[ParkedItem](ctx, tx, f)
}
