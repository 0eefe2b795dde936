package onlyoncetest_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// queries is of the shape that sqlc generates: all statements are in one file, and a pool fits as
// well as a transaction.
type queries struct {
	db interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
}

func (q queries) insertInvoice(ctx context.Context, id string) error {
	_, err := q.db.Exec(ctx, `insert into invoices values ($1)`, id)
	return err
}
