package guard

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrNoTransaction is dedupe.ErrNoTransaction.
var ErrNoTransaction = errors.New("dedupe: needs the transaction of the effects")

// InTransaction returns ErrNoTransaction for a value that has the methods of a transaction but is
// none, for example a pool. A write through it would commit by itself, even if the effects roll
// back (T1).
func InTransaction(tx any) error {
	switch c := tx.(type) {
	case nil:
		return fmt.Errorf("%w: it is nil", ErrNoTransaction)
	case interface {
		Acquire(ctx context.Context) (*pgxpool.Conn, error)
	}:
		return fmt.Errorf("%w: a pool is none", ErrNoTransaction)
	case interface{ Conn() *pgx.Conn }: // an acquired connection; a transaction of pgx has it too
		return inConnectionTransaction(c.Conn())
	case *pgx.Conn:
		return inConnectionTransaction(c)
	}
	return nil
}

func inConnectionTransaction(conn *pgx.Conn) error {
	if conn != nil && conn.PgConn().TxStatus() == 'I' {
		return fmt.Errorf("%w: this connection is in none", ErrNoTransaction)
	}
	return nil
}
