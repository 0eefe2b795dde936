package onlyoncetest_test

import (
	"context"
	"sync"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
)

// headsAndLines are messages of heads, which have no sku, and of lines of the last head.
func headsAndLines() []onlyoncetest.Message {
	return []onlyoncetest.Message{
		{ID: "h-1", Value: `{"id":"first"}`}, {ID: "l-1", Value: `{"id":"x","sku":"a"}`},
		{ID: "h-2", Value: `{"id":"second"}`}, {ID: "l-2", Value: `{"id":"y","sku":"b"}`}, {ID: "l-3", Value: `{"id":"y","sku":"c"}`},
	}
}

// linksToNewest is a fault with several partitions: a line belongs to whichever head is newest.
func linksToNewest(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	if o.SKU == "" {
		_, err := tx.Exec(ctx, `insert into heads (name) values ($1)`, o.ID)
		return err
	}
	_, err = tx.Exec(ctx, `insert into lines (head_id, sku) select max(id), $1 from heads`, o.SKU)
	return err
}

// remembersHead is a fault: the head of the next lines is in memory, and lost with the process.
func remembersHead(*onlyoncetest.Process) consumer.HandlerFunc {
	var mu sync.Mutex
	var last int64
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		o, err := orderOf(m)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if o.SKU == "" {
			return tx.QueryRow(ctx, `insert into heads (name) values ($1) returning id`, o.ID).Scan(&last)
		}
		id := last
		if id == 0 {
			if err := tx.QueryRow(ctx, `select min(id) from heads`).Scan(&id); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `insert into lines (head_id, sku) values ($1, $2)`, id, o.SKU)
		return err
	}
}

// headWithLine is sound: a head and its line in one message.
func headWithLine(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	var id int64
	if err := tx.QueryRow(ctx, `insert into heads (name) values ($1) returning id`, o.ID).Scan(&id); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into lines (head_id, sku) values ($1, $2)`, id, o.SKU)
	return err
}

// answersFirst is sound: a comment, and an answer that refers to it within one table.
func answersFirst(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, `with asked as (insert into comments (body) values ($1) returning id)
		insert into comments (parent_id, body) select id, 'answer to ' || $1 from asked`, m.ID())
	return err
}

// answersAny is a fault: the answer refers to the comment with the smallest random id.
func answersAny(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if _, err := tx.Exec(ctx, `insert into comments (body) values ($1)`, m.ID()); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `insert into comments (parent_id, body) select id, 'answer to ' || $1
		from comments where parent_id is null order by id limit 1`, m.ID())
	return err
}

func linkPrograms() []program {
	newest := shop(consumer.Config{BatchSize: 1}, always(linksToNewest))
	newest.Messages = headsAndLines()
	newest.Messages[0].Partition = 1
	newest.Messages[1].Partition = 1
	remembers := shop(consumer.Config{BatchSize: 1}, remembersHead)
	remembers.Messages = headsAndLines()
	return []program{
		{name: "line of the newest head", faulty: true, kind: []string{kindNotDeterministic, kindEffectsDiffer}, c: newest},
		{name: "head kept in memory", faulty: true, kind: []string{kindEffectsDiffer}, c: remembers},
		{name: "head and line in one message", c: shop(consumer.Config{}, always(headWithLine))},
		{name: "answers within a table", c: shop(consumer.Config{}, always(answersFirst))},
		{
			name:   "answers to a random comment",
			faulty: true,
			kind:   []string{kindNotDeterministic},
			c:      shop(consumer.Config{}, always(answersAny)),
		},
	}
}
