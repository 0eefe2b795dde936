package pool

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
)

type repository struct{ pool *pgxpool.Pool }

func (r *repository) save(ctx context.Context, id string) error {
	_, err := r.pool.Exec(ctx, `insert into orders values ($1)`, id) // want `pgxpool.Pool.Exec commits`
	return err
}

// unused is called by no handler.
func (r *repository) unused(ctx context.Context, id string) error {
	_, err := r.pool.Exec(ctx, `insert into orders values ($1)`, id)
	return err
}

type layered struct {
	orders *repository
	pool   *pgxpool.Pool
}

func (l *layered) handle(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	if err := l.record(ctx, m.ID()); err != nil {
		return err
	}
	return saveOrder(ctx, l.pool, m.ID())
}

func (l *layered) record(ctx context.Context, id string) error { return l.orders.save(ctx, id) }

func saveOrder(ctx context.Context, pool *pgxpool.Pool, id string) error {
	_, err := pool.Exec(ctx, `insert into orders values ($1)`, id) // want `pgxpool.Pool.Exec commits`
	return err
}
