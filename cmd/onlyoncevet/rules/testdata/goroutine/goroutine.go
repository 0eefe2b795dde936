// Package goroutine has handlers whose transaction reaches another goroutine.
package goroutine

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"example.com/faulty/store"
	"github.com/onlyonce/onlyonce/consumer"
)

func write(ctx context.Context, tx consumer.Tx) {
	tx.Queue(`insert into orders default values`)
}

func argument(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	go write(ctx, tx) // want `the transaction reaches another goroutine through a go statement: a statement after the handler's return or beside another one fails, and the message is handled again. Use tx in the handler's own goroutine.`
	return nil
}

func literal(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	go func() { // want `through a go statement`
		func() { write(ctx, tx) }()
	}()
	return nil
}

func method(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	go tx.Queue(`insert into orders default values`) // want `through a go statement`
	return nil
}

func group(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range msgs {
		g.Go(func() error { // want `through errgroup.Group.Go`
			_, err := tx.Exec(ctx, `insert into orders values ($1)`, m.Value)
			return err
		})
	}
	return g.Wait()
}

func later(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	time.AfterFunc(time.Second, func() { write(ctx, tx) }) // want `through time.AfterFunc`
	var wg sync.WaitGroup
	wg.Go(func() { write(ctx, tx) }) // want `through sync.WaitGroup.Go`
	wg.Wait()
	return nil
}

func channel(to chan<- consumer.Tx) consumer.HandlerFunc {
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		to <- tx // want `through a channel`
		return nil
	}
}

// service has queries of its pool, and makes those of a transaction.
type service struct {
	queries *store.Queries
	pool    *pgxpool.Pool
}

func newService(pool *pgxpool.Pool) *service { return &service{store.New(pool), pool} }

type work struct {
	tx   consumer.Tx
	name string
}

// The queries have the transaction.
func (s *service) queriesOfTx(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	q := s.queries.WithTx(tx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return q.InsertOrder(ctx, m.ID()) })             // want `through errgroup.Group.Go`
	g.Go(func() error { return store.New(tx).InsertOrder(ctx, m.ID()) }) // want `through errgroup.Group.Go`
	go record(ctx, store.New(tx))                                        // want `through a go statement`
	go q.InsertOrder(ctx, "o")                                           // want `through a go statement`
	return g.Wait()
}

func record(ctx context.Context, q *store.Queries) { _ = q.InsertOrder(ctx, "o") }

func (s *service) inField(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	w := &work{tx: tx, name: m.ID()}
	done := make(chan struct{})
	go func() { // want `through a go statement`
		defer close(done)
		write(ctx, w.tx)
	}()
	<-done
	return nil
}

// Goroutines may read by the pool, and use what the transaction does not have a part in.
func (s *service) sound(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	w := &work{tx: tx, name: m.ID()}
	q := s.queries
	var price int64
	var g errgroup.Group
	g.Go(func() (err error) {
		price, err = q.GetPrice(ctx, w.name)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	_, err := w.tx.Exec(ctx, `insert into orders values ($1, $2)`, w.name, price)
	return err
}
