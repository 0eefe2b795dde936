package operate

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

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

// within makes a list's function of one that begins its own transaction.
func within[F, T any](
	read func(context.Context, reports.DB, F) ([]T, bool, error),
) func(context.Context, pgx.Tx, F) ([]T, bool, error) {
	return func(ctx context.Context, tx pgx.Tx, f F) ([]T, bool, error) {
		return read(ctx, reports.Within{Tx: tx}, f)
	}
}

func refused(err error) error {
	if r, is := errors.AsType[*reports.Refusal](err); is {
		kinds := map[reports.Kind]error{
			reports.Invalid:  ops.ErrInvalid,
			reports.NotFound: ops.ErrNotFound,
			reports.Refused:  ops.ErrRefused,
		}
		return &ops.Error{Kind: kinds[r.Kind], Reason: r.Reason, Remedy: r.Remedy}
	}
	return err
}
