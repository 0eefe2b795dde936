// Package pool has handlers that write past their transaction.
package pool

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/sqltx"
)

type orders struct {
	pool *pgxpool.Pool
	db   *sql.DB
}

func (o *orders) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if _, err := o.pool.Exec(ctx, `insert into audit values ($1)`, m.Value); err != nil { // want `pgxpool.Pool.Exec commits outside of the handler's transaction: if the message is handled again, the write is made again. Use tx instead.`
		return err
	}
	_, err := tx.Exec(ctx, `insert into orders values ($1)`, m.Value)
	return err
}

func (o *orders) batch(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	for range msgs {
		var id int64
		if err := o.pool.QueryRow(ctx, `insert into audit default values returning id`).Scan(&id); err != nil { // want `pgxpool.Pool.QueryRow commits`
			return err
		}
	}
	return nil
}

// A connector of another package leads to a connection of its own.
func (o *orders) opened(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	db := sql.OpenDB(stdlib.GetPoolConnector(o.pool))
	defer func() { _ = db.Close() }()
	_, err := db.ExecContext(ctx, `insert into audit values ($1)`, m.Value) // want `sql.DB.ExecContext commits`
	return err
}

type order struct{ SKU string }

// The handler of a consumer.Decode.
func (o *orders) typed(ctx context.Context, tx consumer.Tx, m *consumer.Message, v order) error {
	return tx.Savepoint(ctx, func() error {
		_, err := o.db.ExecContext(ctx, `update stock set held = held + 1 where sku = $1`, v.SKU) // want `sql.DB.ExecContext commits`
		return err
	})
}

func generic[T any](o *orders) func(context.Context, consumer.Tx, *consumer.Message, T) error {
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message, v T) error {
		_, err := o.pool.Exec(ctx, `insert into orders values ($1)`, v) // want `pgxpool.Pool.Exec commits`
		return err
	}
}

func (o *orders) own(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error { // want `pgx.BeginFunc commits`
		_, err := tx.Exec(ctx, `insert into orders values ($1)`, m.Value)
		return err
	})
}

func (o *orders) begun(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	tx, err := o.pool.Begin(ctx) // want `pgxpool.Pool.Begin commits`
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `insert into orders values ($1)`, m.Value); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// The row locks of a select for update are those of another transaction.
func (o *orders) locked(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	var n int64
	return o.pool.QueryRow(ctx, `select held from stock where sku = $1 for update`, m.Value).Scan(&n) // want `pgxpool.Pool.QueryRow commits`
}

// The handler of an idempotency.Layer.
func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return
	}
	tx.Queue(`insert into orders default values`)
	_, _ = o.pool.Exec(r.Context(), `insert into audit default values`) // want `pgxpool.Pool.Exec commits`
}

func loop(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn, key dedupe.Key) (dedupe.Outcome, error) {
	return dedupe.Do(ctx, pool, key, func(ctx context.Context, tx dedupe.GuardedTx) error {
		_, err := conn.Exec(ctx, `insert into orders default values`) // want `pgx.Conn.Exec commits`
		return err
	})
}

var complete = func(pool *pgxpool.Pool) func(context.Context, dedupe.GuardedTx) error {
	return func(ctx context.Context, tx dedupe.GuardedTx) error {
		_, err := pool.Exec(ctx, `insert into answers default values`) // want `pgxpool.Pool.Exec commits`
		return err
	}
}

// queries is of the shape that sqlc generates.
type queries struct{ db dbtx }

type dbtx interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

func newQueries(db dbtx) *queries { return &queries{db} }

func (q *queries) insertOrder(ctx context.Context, id string) error {
	_, err := q.db.Exec(ctx, `insert into orders values ($1)`, id)
	return err
}

func (q *queries) with(db dbtx) *queries { return &queries{db} }

func (o *orders) generated(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := newQueries(tx).insertOrder(ctx, m.ID()); err != nil {
		return err
	}
	if err := newQueries(o.pool).with(o.pool).insertOrder(ctx, m.ID()); err != nil { // want `this reaches pgxpool.Pool.Exec \(pool.go:\d+\): it commits outside of the handler's transaction`
		return err
	}
	return tx.Savepoint(ctx, func() error {
		return newQueries(o.pool).insertOrder(ctx, m.ID()) // want `this reaches pgxpool.Pool.Exec`
	})
}

func (o *orders) serve(_ http.ResponseWriter, r *http.Request) {
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return
	}
	_ = newQueries(tx).insertOrder(r.Context(), "1")
	_ = newQueries(o.pool).insertOrder(r.Context(), "2") // want `this reaches pgxpool.Pool.Exec`
}

type sqlDB interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}

func insertBySQL(ctx context.Context, db sqlDB, id string) error {
	_, err := db.ExecContext(ctx, `insert into orders values ($1)`, id)
	return err
}

func (o *orders) overSQL(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return sqltx.Within(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
		if err := insertBySQL(ctx, tx, m.ID()); err != nil {
			return err
		}
		return insertBySQL(ctx, o.db, m.ID()) // want `this reaches sql.DB.ExecContext`
	})
}

// A reason switches the rules off for a line; a comment without one does not.
func (o *orders) deliberate(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	//onlyoncevet:ignore attempts are counted, also those that are rolled back
	if _, err := o.pool.Exec(ctx, `insert into attempts default values`); err != nil {
		return err
	}
	//onlyoncevet:ignore
	_, err := o.pool.Exec(ctx, `insert into attempts default values`) // want `pgxpool.Pool.Exec commits`
	return err
}
