// Package services has handlers as public Go services have them, each shape with a fault and
// without: a store that embeds its queries, a core with a storer behind an interface, a command
// handler with a repository and a client, a repository that takes the transaction, a unit of work.
package services

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"example.com/faulty/store"
	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
)

// A service with the queries of a pool.
type service struct {
	queries *store.Queries
	store   *store.Store
	orders  *store.Orders
	core    *core
	command command
	pool    *pgxpool.Pool
	client  *http.Client
	save    func(ctx context.Context, id string) error
}

func newService(pool *pgxpool.Pool, client *http.Client) *service {
	s := &service{queries: store.New(pool), store: store.NewStore(pool), orders: store.NewOrders(pool), pool: pool, client: client}
	s.core = &core{storer: &orderDB{pool}}
	s.command = command{repo: store.NewOrders(pool), client: client}
	s.save = s.orders.Save
	return s
}

func (s *service) generated(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	price, err := s.queries.GetPrice(ctx, m.ID())
	if err != nil || price == 0 {
		return err
	}
	if err := s.queries.WithTx(tx).InsertOrder(ctx, m.ID()); err != nil {
		return err
	}
	return s.queries.InsertOrder(ctx, m.ID()) // want `store.Queries.InsertOrder sends its statement \(store.go:\d+\) on a pgxpool.Pool: it commits outside`
}

// The store embeds its queries.
func (s *service) embedded(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := s.store.InsertOrder(ctx, m.ID()); err != nil { // want `InsertOrder sends its statement \(store.go:\d+\) on a pgxpool.Pool`
		return err
	}
	return s.store.WithTx(tx).InsertOrder(ctx, m.ID())
}

// storer is what the core knows of its database.
type storer interface {
	create(ctx context.Context, id string) error
	count(ctx context.Context) (int64, error)
}

type core struct{ storer storer }

type orderDB struct{ pool *pgxpool.Pool }

func (o *orderDB) create(ctx context.Context, id string) error {
	_, err := o.pool.Exec(ctx, `insert into orders (id) values ($1)`, id) // want `pgxpool.Pool.Exec commits`
	return err
}

func (o *orderDB) count(ctx context.Context) (n int64, err error) {
	err = o.pool.QueryRow(ctx, `select count(*) from orders where status = 'insert'`).Scan(&n)
	return n, err
}

func (c *core) add(ctx context.Context, id string) error {
	if n, err := c.storer.count(ctx); err != nil || n > 100 {
		return err
	}
	return c.storer.create(ctx, id)
}

func (s *service) business(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	return s.core.add(ctx, m.ID())
}

// command is a handler of a command, with a repository and a client.
type command struct {
	repo interface {
		Save(ctx context.Context, id string) error
	}
	client *http.Client
}

func (c command) handle(ctx context.Context, id string) error {
	if err := c.repo.Save(ctx, id); err != nil {
		return err
	}
	return store.Notify(ctx, c.client, id)
}

func (s *service) commanded(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	return s.command.handle(ctx, m.ID()) // want `Orders.Save calls pgxpool.Pool.Exec \(store.go:\d+\): it commits` `store.Notify, by http.Client.Do \(store.go:\d+\), reaches a remote`
}

// The repository takes the transaction.
func (s *service) inTx(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := s.orders.SaveInTx(ctx, tx, m.ID()); err != nil {
		return err
	}
	return s.orders.SaveInTx(ctx, s.pool, m.ID()) // want `store.Orders.SaveInTx sends its statement \(store.go:\d+\) on a pgxpool.Pool`
}

// unit is a unit of work that begins its own transaction.
type unit struct {
	pool *pgxpool.Pool
	tx   pgx.Tx
}

func (u *unit) begin(ctx context.Context) (err error) {
	u.tx, err = u.pool.Begin(ctx) // want `pgxpool.Pool.Begin commits`
	return err
}

func (s *service) unitOfWork(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	u := &unit{pool: s.pool}
	if err := u.begin(ctx); err != nil {
		return err
	}
	if _, err := u.tx.Exec(ctx, `insert into orders (id) values ($1)`, m.ID()); err != nil {
		return err
	}
	return u.tx.Commit(ctx)
}

// Method values and goroutines.
func (s *service) values(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	save := s.orders.Save
	if err := save(ctx, m.ID()); err != nil { // want `store.Orders.Save calls pgxpool.Pool.Exec`
		return err
	}
	if err := each([]string{m.ID()}, s.note); err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { return s.orders.Save(ctx, m.ID()) }) // want `store.Orders.Save calls pgxpool.Pool.Exec`
	return g.Wait()
}

func each(ids []string, f func(string) error) error {
	for _, id := range ids {
		if err := f(id); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) note(id string) error {
	_, err := s.pool.Exec(context.Background(), `insert into notes values ($1)`, id) // want `pgxpool.Pool.Exec commits`
	return err
}

// An id of another package.
func (s *service) ids(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge", ID: store.IDOf(m.ID())}); err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge", ID: store.NewID()}) // want `outbox.Call.ID comes from store.NewID, by uuid.NewString`
}

// A step may ask another service.
func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = idempotency.Step(r.Context(), "notify", func(ctx context.Context, key string) ([]byte, error) {
		return nil, store.Notify(ctx, s.client, key)
	})
	if tx, err := idempotency.TxOf(r); err == nil {
		tx.Queue(`insert into charges default values`)
	}
}

//go:embed report.sql
var report string

var priceOf = "select price from prices where action = 'delete'"

// Statements that only read, wherever their text comes from.
func (s *service) reads(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	var n int64
	table := "orders_" + m.Topic
	if err := s.pool.QueryRow(ctx, report).Scan(&n); err != nil {
		return err
	}
	if err := s.pool.QueryRow(ctx, priceOf).Scan(&n); err != nil {
		return err
	}
	if err := s.pool.QueryRow(ctx, fmt.Sprintf("/* insert */ select count(*) from %s where n > %d", table, 3)).Scan(&n); err != nil {
		return err
	}
	if err := s.pool.QueryRow(ctx, "select count(*) from "+table+" where status = 'insert into'").Scan(&n); err != nil {
		return err
	}
	return s.pool.QueryRow(ctx, string(m.Value)).Scan(&n) // want `pgxpool.Pool.QueryRow sends a statement that is put together as the program runs, so whether it writes cannot be told`
}

// Statements that write, wherever their text comes from.
func (s *service) writes(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	table := "orders_" + m.Topic
	var id string
	if err := s.pool.QueryRow(ctx, fmt.Sprintf("with gone as (delete from %s returning id) select id from gone", table)).Scan(&id); err != nil { // want `pgxpool.Pool.QueryRow commits`
		return err
	}
	return s.pool.QueryRow(ctx, "select nextval('"+table+"')").Scan(&id) // want `pgxpool.Pool.QueryRow commits`
}
