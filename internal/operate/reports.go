package operate

import (
	"context"
	"errors"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// Outbox is [reports.Outbox], with errors of package ops.
func Outbox(ctx context.Context, db ops.DB, q reports.OutboxQuestion) (*reports.OutboxReport, error) {
	r, err := reports.Outbox(ctx, db, q)
	return r, refused(err)
}

// CallByKey is [reports.CallByKey], with errors of package ops.
func CallByKey(ctx context.Context, db ops.DB, key string, body bool) (*reports.Call, error) {
	c, err := reports.CallByKey(ctx, db, key, body)
	return c, refused(err)
}

// Events is [reports.EventList], with errors of package ops.
func Events(ctx context.Context, db ops.DB, f reports.EventFilter) ([]reports.Event, bool, error) {
	return asked(reports.EventList)(ctx, db, f)
}

// asked makes errors of package ops of a list's.
func asked[F, T any](read func(context.Context, reports.DB, F) ([]T, bool, error)) func(context.Context, ops.DB, F) ([]T, bool, error) {
	return func(ctx context.Context, db ops.DB, f F) ([]T, bool, error) {
		rows, more, err := read(ctx, db, f)
		return rows, more, refused(err)
	}
}

func refused(err error) error {
	if r, is := errors.AsType[*reports.Refusal](err); is {
		kind := map[reports.Kind]error{reports.Invalid: ops.ErrInvalid, reports.NotFound: ops.ErrNotFound, reports.Refused: ops.ErrRefused}[r.Kind]
		return &ops.Error{Kind: kind, Reason: r.Reason, Remedy: r.Remedy}
	}
	return err
}
