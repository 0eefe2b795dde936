// Package goroutine has handlers whose transaction reaches another goroutine.
package goroutine

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

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
