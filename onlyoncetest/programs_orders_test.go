package onlyoncetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
)

// shopSchema is the database of all programs.
const shopSchema = `
create table customers (id bigint generated always as identity primary key, email text not null unique);
create table orders (
  id text primary key, customer_id bigint references customers, status text not null default 'unknown',
  total int not null default 0, payment_id text, created_at timestamptz not null default now());
create table audit (entry text not null);
create table totals (sku text primary key, held text not null default 'unknown');
insert into totals values ('all', '0');
create table heads (id bigint generated always as identity primary key, name text not null);
create table lines (head_id bigint not null references heads, sku text not null);
create table comments (id uuid primary key default gen_random_uuid(), parent_id uuid references comments, body text not null);
create table changes (id bigserial primary key, order_id text not null, at timestamptz not null default clock_timestamp());
create function note_change() returns trigger language plpgsql as $$
begin insert into changes (order_id) values (new.id); return null; end $$;
create trigger orders_changed after insert on orders for each row execute function note_change();
create table ledger (sku text not null, version int not null, qty int not null, primary key (sku, version)) partition by list (sku);
create table ledger_tea partition of ledger for values in ('tea');
create table ledger_rest partition of ledger default;
create table payments (key text primary key, provider_id text not null);
create table visits (message text not null, seen_at timestamptz not null);
create table vouchers (code text primary key, used_by text);
insert into vouchers (code) values ('v-0'), ('v-1'), ('v-2'), ('v-3'), ('v-4');
create table baskets (customer text primary key, qty int not null, updated_at timestamptz);
create function note_update() returns trigger language plpgsql as $$
begin new.updated_at := clock_timestamp(); return new; end $$;
create trigger baskets_changed before insert or update on baskets for each row execute function note_update()`

func migrateShop(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, shopSchema)
	return err
}

type shopOrder struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	SKU      string `json:"sku"`
	Qty      int    `json:"qty"`
}

func orderOf(m *consumer.Message) (o shopOrder, err error) {
	if err := json.Unmarshal(m.Value, &o); err != nil {
		return o, consumer.Permanent(err)
	}
	return o, nil
}

func shopMessages() []onlyoncetest.Message {
	return []onlyoncetest.Message{
		{ID: "m-0", Key: "a", Value: `{"id":"o-0","customer":"ann","sku":"tea","qty":1}`},
		{ID: "m-1", Key: "b", Value: `{"id":"o-1","customer":"bob","sku":"coffee","qty":2}`},
		{ID: "m-2", Key: "a", Value: `{"id":"o-2","customer":"ann","sku":"tea","qty":4}`},
		{ID: "m-3", Key: "b", Value: `{"id":"o-3","customer":"bob","sku":"tea","qty":8}`},
	}
}

// shop is a case of a service that is made for each process.
func shop(cfg consumer.Config, service func(p *onlyoncetest.Process) consumer.HandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{Migrate: migrateShop, Messages: shopMessages(),
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			return consumer.New(p.Pool, p.Source(), service(p), p.Tune(cfg))
		}}
}

// always is a service without memory.
func always(h consumer.HandlerFunc) func(*onlyoncetest.Process) consumer.HandlerFunc {
	return func(*onlyoncetest.Process) consumer.HandlerFunc { return h }
}

// shopDB is what sqlc generates for a connection.
type shopDB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// shopQueries is of the shape that sqlc generates.
type shopQueries struct{ db shopDB }

func newShopQueries(db shopDB) *shopQueries { return &shopQueries{db} }

func (*shopQueries) WithTx(tx shopDB) *shopQueries { return &shopQueries{tx} }

func (q *shopQueries) InsertOrder(ctx context.Context, o shopOrder) error {
	_, err := q.db.Exec(ctx, `insert into orders (id, status, total) values ($1, 'placed', $2)`, o.ID, o.Qty)
	return err
}

func (q *shopQueries) InsertAudit(ctx context.Context, entry string) error {
	_, err := q.db.Exec(ctx, `insert into audit values ($1)`, entry)
	return err
}

// orderRepository keeps orders, by the connection that it is given or by its own.
type orderRepository struct{ pool *pgxpool.Pool }

func (r *orderRepository) Save(ctx context.Context, o shopOrder) error {
	_, err := r.pool.Exec(ctx, `insert into orders (id, status, total) values ($1, 'placed', $2)
		on conflict (id) do update set total = orders.total + excluded.total`, o.ID, o.Qty)
	return err
}

func (*orderRepository) SaveIn(ctx context.Context, tx shopDB, o shopOrder) error {
	_, err := tx.Exec(ctx, `insert into orders (id, status, total) values ($1, 'placed', $2)`, o.ID, o.Qty)
	return err
}

// orderService is a layer between handler and repository.
type orderService struct {
	orders  *orderRepository
	queries *shopQueries
	mu      sync.Mutex
	tries   map[string]int
	known   map[string]int64
	total   int
}

func newOrderService(p *onlyoncetest.Process) *orderService {
	return &orderService{
		orders:  &orderRepository{p.Pool},
		queries: newShopQueries(p.Pool),
		tries:   map[string]int{},
		known:   map[string]int64{},
	}
}

// saves is a fault: the repository has the pool.
func (s *orderService) saves(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	return s.orders.Save(ctx, o)
}

// savesIn is sound.
func (s *orderService) savesIn(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	return s.orders.SaveIn(ctx, tx, o)
}

// forgetsWithTx is a fault: one of two statements has no WithTx.
func (s *orderService) forgetsWithTx(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	if err := s.queries.WithTx(tx).InsertOrder(ctx, o); err != nil {
		return err
	}
	return s.queries.InsertAudit(ctx, o.ID)
}

// withTx is sound.
func (s *orderService) withTx(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	q := s.queries.WithTx(tx)
	if err := q.InsertOrder(ctx, o); err != nil {
		return err
	}
	return q.InsertAudit(ctx, o.ID)
}

// countsTries is a fault: it remembers attempts, in a column whose default contains "now".
func (s *orderService) countsTries(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.tries[o.ID]++
	status := "placed"
	if s.tries[o.ID] > 1 {
		status = "placed again"
	}
	s.mu.Unlock()
	_, err = tx.Exec(ctx, `insert into orders (id, status) values ($1, $2)`, o.ID, status)
	return err
}

// keepsTotal is a fault: a running total in memory.
func (s *orderService) keepsTotal(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.total += o.Qty
	total := s.total
	s.mu.Unlock()
	_, err = tx.Exec(ctx, `update totals set held = $1 where sku = 'all'`, fmt.Sprint(total))
	return err
}

// cachesCustomers is a fault: it fills a cache before the COMMIT.
func (s *orderService) cachesCustomers(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, known := s.known[o.Customer]
	if !known {
		if id, err = customerOf(ctx, tx, o.Customer); err != nil {
			return err
		}
		s.known[o.Customer] = id
	}
	_, err = tx.Exec(ctx, `insert into orders (id, customer_id) values ($1, $2)`, o.ID, id)
	return err
}

func customerOf(ctx context.Context, tx shopDB, email string) (id int64, err error) {
	err = tx.QueryRow(ctx, `insert into customers (email) values ($1)
		on conflict (email) do update set email = excluded.email returning id`, email).Scan(&id)
	return id, err
}

// ofCustomers is sound.
func ofCustomers(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	id, err := customerOf(ctx, tx, o.Customer)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into orders (id, customer_id, status) values ($1, $2, 'placed')`, o.ID, id)
	return err
}

// inGroup is a fault: statements of one transaction in goroutines.
func inGroup(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	q := newShopQueries(tx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return q.InsertOrder(ctx, o) })
	g.Go(func() error { return q.InsertAudit(ctx, o.ID) })
	return g.Wait()
}

// pricesInGroup is sound: the goroutines compute, and one of them writes.
func pricesInGroup(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	prices := make([]int, 3)
	var g errgroup.Group
	for i := range prices {
		g.Go(func() error {
			prices[i] = (i + 1) * o.Qty
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	o.Qty = prices[0] + prices[1] + prices[2]
	return newShopQueries(tx).InsertOrder(ctx, o)
}

// tableOfTenant is the name of a customer's own table.
func tableOfTenant(o shopOrder) string {
	return pgx.Identifier{"orders_of_" + strings.ToLower(o.Customer)}.Sanitize()
}

// inTenantsTable writes into a table of the customer, which it makes.
func inTenantsTable(ctx context.Context, db shopDB, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	name := tableOfTenant(o)
	if _, err := db.Exec(ctx, `create table if not exists `+name+` (id text, qty int)`); err != nil {
		return err
	}
	_, err = db.Exec(ctx, `insert into `+name+` values ($1, $2)`, o.ID, o.Qty)
	return err
}

// sourced appends to an event-sourced ledger in a partitioned table.
func sourced(ctx context.Context, db shopDB, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, `insert into ledger (sku, version, qty)
		select $1, coalesce(max(version), 0) + 1, $2 from ledger where sku = $1`, o.SKU, o.Qty)
	return err
}

func orderPrograms() []program {
	method := func(f func(*orderService, context.Context, consumer.Tx, *consumer.Message) error) onlyoncetest.Case {
		return shop(consumer.Config{}, func(p *onlyoncetest.Process) consumer.HandlerFunc {
			s := newOrderService(p)
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error { return f(s, ctx, tx, m) }
		})
	}
	by := func(f func(context.Context, shopDB, *consumer.Message) error, past bool) onlyoncetest.Case {
		return shop(consumer.Config{}, func(p *onlyoncetest.Process) consumer.HandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if past {
					return f(ctx, p.Pool, m)
				}
				return f(ctx, tx, m)
			}
		})
	}
	return []program{
		{
			name:   "repository with the pool",
			first:  kindWrittenOutside,
			faulty: true,
			kind:   []string{kindWrittenOutside},
			c:      method((*orderService).saves),
		},
		{name: "repository with tx", c: method((*orderService).savesIn)},
		{
			name:   "sqlc, WithTx forgotten",
			first:  kindWrittenOutside,
			faulty: true,
			kind:   []string{kindWrittenOutside},
			c:      method((*orderService).forgetsWithTx),
		},
		{name: "sqlc, WithTx", c: method((*orderService).withTx)},
		{name: "attempts counted in memory", faulty: true, kind: []string{kindEffectsDiffer}, c: method((*orderService).countsTries)},
		{name: "total kept in memory", faulty: true, kind: []string{kindEffectsDiffer}, c: method((*orderService).keepsTotal)},
		{
			name:   "customers cached before COMMIT",
			first:  kindParkedWrongly,
			faulty: true,
			kind:   []string{kindParkedWrongly},
			c:      method((*orderService).cachesCustomers),
		},
		{name: "orders of customers", c: shop(consumer.Config{}, always(ofCustomers))},
		{
			name:   "statements in an errgroup",
			first:  kindParkedWrongly,
			faulty: true,
			kind:   []string{kindParkedWrongly},
			c:      shop(consumer.Config{}, always(inGroup)),
		},
		{name: "prices in an errgroup", c: shop(consumer.Config{}, always(pricesInGroup))},
		{
			name:   "tables per tenant by the pool",
			first:  kindWrittenOutside,
			faulty: true,
			kind:   []string{kindWrittenOutside},
			c:      by(inTenantsTable, true),
		},
		{name: "tables per tenant", c: by(inTenantsTable, false)},
		{
			name:   "partitioned ledger by the pool",
			first:  kindWrittenOutside,
			faulty: true,
			kind:   []string{kindWrittenOutside},
			c:      by(sourced, true),
		},
		{name: "partitioned ledger", c: by(sourced, false)},
	}
}
