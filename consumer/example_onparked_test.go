package consumer_test

import (
	"context"
	"errors"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
)

// bury sends a message that is left to an operator to a topic of dead letters. The call commits
// with the parking.
func bury(ctx context.Context, tx consumer.Tx, m *consumer.Message, e consumer.ParkedEvent) error {
	return outbox.Enqueue(ctx, tx, outbox.Call{
		Sink: "events", Name: "bury", Target: "/orders.dead", Body: m.Value,
		Scope: "stock.dead", ID: e.ID,
	})
}

// A topic of dead letters.
func ExampleConfig_onParked() {
	pool, end := exampleDatabase(``)
	defer end()
	orders := memlog.NewLog("orders", 1) // in a program: kafkasource.New
	orders.Append(0, "no order", consumer.Header{Name: "message-id", Value: []byte("order-1")})

	handle := func(context.Context, consumer.Tx, *consumer.Message) error {
		return consumer.Permanent(errors.New("no such sku"))
	}
	c, err := consumer.New(pool, &memlog.Source{Log: orders, GroupID: "stock"}, consumer.HandlerFunc(handle), consumer.Config{
		Scope:    "stock",
		Key:      consumer.HeaderKey("message-id"),
		OnParked: bury,
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 1)
	printRows(pool, `select reason || ': ' || error from onlyonce.parked`)
	printRows(pool, `select count(*) || ' call to be sent' from onlyonce.outbox_log`)
	// Output:
	// permanent: no such sku
	// 1 call to be sent
}
