package consumer_test

import (
	"context"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

type service struct{}

// ask is one request for all messages.
func (s *service) ask(_ context.Context, msgs []*consumer.Message) (map[string]int, error) {
	found := map[string]int{}
	for _, m := range msgs {
		found[string(m.Key)] = 3
	}
	return found, nil
}

type rates struct{} // the key of the context's value

// quote asks for the exchange rates of all messages at once.
func (s *service) quote(ctx context.Context, msgs []*consumer.Message) (context.Context, error) {
	found, err := s.ask(ctx, msgs)
	if err != nil {
		return nil, consumer.Unavailable(err) // counts against no message
	}
	return context.WithValue(ctx, rates{}, found), nil
}

// A look-up at a service, before the transaction.
func ExampleConfig_prepare() {
	pool, end := exampleDatabase(`create table payments (currency text, amount int)`)
	defer end()
	payments := memlog.NewLog("payments", 1) // in a program: kafkasource.New
	payments.AppendMessage(0, &consumer.Message{Key: []byte("SEK"), Value: []byte("20"),
		Headers: []consumer.Header{{Name: "message-id", Value: []byte("payment-1")}}})

	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		rate := ctx.Value(rates{}).(map[string]int)[string(m.Key)]
		tx.Queue(`insert into payments values ($1, $2::text::int * $3::int)`, string(m.Key), string(m.Value), rate)
		return nil
	}
	c, err := consumer.New(pool, &memlog.Source{Log: payments, GroupID: "ledger"}, consumer.HandlerFunc(handle), consumer.Config{
		Scope:   "ledger",
		Key:     consumer.HeaderKey("message-id"),
		Prepare: (&service{}).quote,
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 1)
	printRows(pool, `select currency || ' ' || amount from payments`)
	// Output:
	// SEK 60
}
