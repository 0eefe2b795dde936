// Package store has what services of package services call: queries as sqlc generates them, a
// repository with a pool of its own, a client, and ids. It has no handler, so nothing is reported
// here: what it does shows in the handlers that call it.
package store

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DBTX is what a pool has and a transaction.
type DBTX interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

const insertOrder = `-- name: InsertOrder :exec
insert into orders (id) values ($1)`

const getPrice = `-- name: GetPrice :one
select price from prices where sku = $1 and note <> 'delete'`

type Queries struct{ db DBTX }

func New(db DBTX) *Queries { return &Queries{db: db} }

func (q *Queries) WithTx(tx DBTX) *Queries { return &Queries{db: tx} }

func (q *Queries) InsertOrder(ctx context.Context, id string) error {
	_, err := q.db.Exec(ctx, insertOrder, id)
	return err
}

func (q *Queries) GetPrice(ctx context.Context, sku string) (price int64, err error) {
	err = q.db.QueryRow(ctx, getPrice, sku).Scan(&price)
	return price, err
}

// Store holds the queries and the pool, as services without onlyonce do for transactions.
type Store struct {
	*Queries
	pool *pgxpool.Pool
}

func NewStore(pool *pgxpool.Pool) *Store { return &Store{Queries: New(pool), pool: pool} }

// Orders is a repository.
type Orders struct{ pool *pgxpool.Pool }

func NewOrders(pool *pgxpool.Pool) *Orders { return &Orders{pool} }

func (o *Orders) Save(ctx context.Context, id string) error { return o.save(ctx, id) }

func (o *Orders) save(ctx context.Context, id string) error {
	_, err := o.pool.Exec(ctx, insertOrder, id)
	return err
}

func (o *Orders) SaveInTx(ctx context.Context, tx DBTX, id string) error {
	_, err := tx.Exec(ctx, insertOrder, id)
	return err
}

// Notify asks another service.
func Notify(ctx context.Context, client *http.Client, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://mail.example", strings.NewReader(id))
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// NewID is random.
func NewID() string { return "o-" + uuid.NewString() }

// IDOf is not.
func IDOf(message string) string { return "o-" + message }

// Provider is a client of a payment provider.
type Provider struct{ client *http.Client }

func (p *Provider) Charge(ctx context.Context, key string, _ int) error {
	return p.Send(ctx, key)
}

// Refund draws its key: it is for operators.
func (p *Provider) Refund(ctx context.Context, _ int) error { return p.Send(ctx, uuid.NewString()) }

func (p *Provider) Send(ctx context.Context, key string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
