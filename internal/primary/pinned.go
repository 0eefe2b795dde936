package primary

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PinSQL leaves PostgreSQL's own schema in the search_path of a transaction, and no other. Where
// types are given exactly, PostgreSQL prefers a function or operator of any schema to its own
// polymorphic one: a role that may create cardinality(uuid[]) in public runs it with the rights of
// the next rotator (S2). Our statements name the schema of everything else.
//
// It also keeps the plans on indexes, because a session may have planned a statement while its
// table was empty, and keeps that plan (T13), and it turns off the compiler of plans: if only a
// large sum of estimates crosses its threshold, it takes a second to compile what takes a
// millisecond to run.
const PinSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog', true),
       set_config('enable_seqscan', 'off', true),
       set_config('jit', 'off', true)`

// Pinned returns the pool for engines whose role may do what others may not: relays, rotators.
// Exec, Query, QueryRow and InTx run with PinSQL, the first three in a transaction of one statement
// and one round trip. The search_path of the session, which may be a user's, stays as it is (S2).
func (p *Pool) Pinned() *Pool {
	pinned := *p
	pinned.pinned = true
	return &pinned
}

// alone returns a transaction of one statement.
func alone(sql string, args []any) (b *pgx.Batch, statement *pgx.QueuedQuery) {
	b = &pgx.Batch{}
	b.Queue(`begin isolation level read committed`)
	b.Queue(PinSQL)
	statement = b.Queue(sql, args...)
	b.Queue(`commit`)
	return b, statement
}

func (p *Pool) execPinned(ctx context.Context, sql string, args []any) (tag pgconn.CommandTag, err error) {
	b, statement := alone(sql, args)
	statement.Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	return tag, p.pool.SendBatch(ctx, b).Close()
}

func (p *Pool) queryPinned(ctx context.Context, sql string, args []any) (pgx.Rows, error) {
	b, _ := alone(sql, args)
	all := p.pool.SendBatch(ctx, b)
	for range 2 { // begin, and PinSQL
		if _, err := all.Exec(); err != nil {
			_ = all.Close()
			return nil, err
		}
	}
	r, err := all.Query()
	if err != nil {
		_ = all.Close()
		return nil, err
	}
	return &pinnedRows{Rows: r, all: all}, nil
}

// pinnedRows are the rows of a transaction of one statement. Its COMMIT is read after the last row.
type pinnedRows struct {
	pgx.Rows
	all    pgx.BatchResults
	closed bool
	err    error // of COMMIT
}

func (r *pinnedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *pinnedRows) Close() {
	if !r.closed {
		r.closed = true
		r.Rows.Close()
		r.err = r.all.Close()
	}
}

func (r *pinnedRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// pinnedRow runs its statement when it is scanned.
type pinnedRow struct {
	pool *Pool
	ctx  context.Context //nolint:containedctx // until Scan, as pgx's own has it
	sql  string
	args []any
}

func (r pinnedRow) Scan(dest ...any) error {
	b, statement := alone(r.sql, r.args)
	statement.QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
	return r.pool.Watch(r.pool.pool.SendBatch(r.ctx, b).Close())
}
