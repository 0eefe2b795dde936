package consumer_test

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// Several transactions of one partition at once, for handlers that wait. The balance of an account
// is the sum of its payments in their order: each account's messages stay in it.
func ExampleConfig_concurrency() {
	pool, end := exampleDatabase(`create table entries (n int generated always as identity, account text, cents int)`)
	defer end()
	payments := memlog.NewLog("payments", 1)
	for n := range 6 {
		payments.AppendMessage(0, &consumer.Message{Key: fmt.Appendf(nil, "account-%d", n%3), Value: fmt.Append(nil, n),
			Headers: []consumer.Header{{Name: "message-id", Value: fmt.Appendf(nil, "payment-%d", n)}}})
	}

	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		_, err := tx.Exec(ctx, `insert into entries (account, cents) values ($1, $2::text::int)`, string(m.Key), string(m.Value))
		return err
	}
	c, err := consumer.New(pool, &memlog.Source{Log: payments, GroupID: "ledger"}, consumer.HandlerFunc(handle), consumer.Config{
		Scope:       "ledger",
		Key:         consumer.HeaderKey("message-id"),
		OrderingKey: func(m *consumer.Message) []byte { return m.Key }, // the default
		Concurrency: 3,
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 6)
	printRows(pool, `select account || ': ' || string_agg(cents::text, ', ' order by n) from entries group by account order by account`)
	// Output:
	// account-0: 0, 3
	// account-1: 1, 4
	// account-2: 2, 5
}
