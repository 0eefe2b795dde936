package consumer_test

import (
	"context"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// A handler of decoded values. What cannot be decoded is parked at once, with the field's name.
func ExampleDecode() {
	pool, end := exampleDatabase(`create table stock (sku text primary key, held int); insert into stock values ('tea', 0)`)
	defer end()
	orders := memlog.NewLog("orders", 1) // in a program: kafkasource.New
	orders.Append(0, `{"sku": "tea", "qty": 3}`, consumer.Header{Name: "message-id", Value: []byte("order-1")})
	orders.Append(0, `{"sku": "tea", "qty": "three"}`, consumer.Header{Name: "message-id", Value: []byte("order-2")})

	type order struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	hold := consumer.Decode(consumer.JSON, func(_ context.Context, tx consumer.Tx, _ *consumer.Message, o order) error {
		tx.Queue(`update stock set held = held + $1 where sku = $2`, o.Qty, o.SKU)
		return nil
	})
	c, err := consumer.New(pool, &memlog.Source{Log: orders, GroupID: "stock"}, hold, consumer.Config{
		Scope: "stock",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 2)
	printRows(pool, `select sku || ': ' || held from stock`)
	printRows(pool, `select reason || ': ' || error from onlyonce.parked`)
	// Output:
	// tea: 3
	// permanent: the message's value: field "qty" is a JSON string, which does not fit int
}

// One consumer of several types of messages.
func ExampleRouter() {
	pool, end := exampleDatabase(`create table stock (sku text primary key, held int); insert into stock values ('tea', 0)`)
	defer end()
	orders := memlog.NewLog("orders", 1)
	for i, kind := range []string{"placed", "placed", "canceled", "viewed"} {
		orders.Append(0, `{"sku": "tea"}`, consumer.Header{Name: "message-id", Value: []byte{byte('a' + i)}},
			consumer.Header{Name: "event-type", Value: []byte(kind)})
	}

	type order struct {
		SKU string `json:"sku"`
	}
	routes := consumer.Router{
		By: consumer.HeaderKey("event-type"),
		Handlers: map[string]consumer.Handler{
			"placed": consumer.Decode(consumer.JSON, func(_ context.Context, tx consumer.Tx, _ *consumer.Message, o order) error {
				tx.Queue(`update stock set held = held + 1 where sku = $1`, o.SKU)
				return nil
			}),
			"canceled": consumer.Decode(consumer.JSON, func(_ context.Context, tx consumer.Tx, _ *consumer.Message, o order) error {
				tx.Queue(`update stock set held = held - 1 where sku = $1`, o.SKU)
				return nil
			}),
		},
		Unknown: consumer.HandlerFunc(consumer.Skip), // by default messages of unknown types are parked
	}
	c, err := consumer.New(pool, &memlog.Source{Log: orders, GroupID: "stock"}, routes, consumer.Config{
		Scope: "stock",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 4)
	printRows(pool, `select sku || ': ' || held from stock`)
	// Output:
	// tea: 1
}
