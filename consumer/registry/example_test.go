package registry_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/consumer/registry"
)

type Order struct {
	SKU string `avro:"sku"`
	Qty int    `avro:"qty"`
}

func hold(_ context.Context, tx consumer.Tx, _ *consumer.Message, o Order) error {
	tx.Queue(`update stock set held = held + $1 where sku = $2`, o.Qty, o.SKU)
	return nil
}

func consume(ctx context.Context, pool *pgxpool.Pool, brokers []string, address string) error {
	client, err := sr.NewClient(sr.URLs(address)) // its options have the login and TLS
	if err != nil {
		return err
	}
	source := kafkasource.New(kafkasource.Config{Brokers: brokers, GroupID: "stock", Topics: []string{"orders"}})
	c, err := consumer.New(pool, source, consumer.Decode(registry.Avro[Order](registry.New(client)), hold), consumer.Config{
		Scope: "stock",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

var _ = consume // it needs Kafka

// A value in Avro, with its schema in a registry.
func ExampleAvro() {
	server := httptest.NewServer(&fake{subjects: map[string]int{}}) // in a program: the address of yours
	defer server.Close()
	client, err := sr.NewClient(sr.URLs(server.URL))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	schema := avro.MustParse(`{"type": "record", "name": "Order", "fields": [{"name": "sku", "type": "string"}, {"name": "qty", ` +
		`"type": "int"}]}`)
	id, err := client.RegisterSchema(ctx, "orders-value", sr.Schema{Schema: schema.String()}, -1, -1)
	if err != nil {
		panic(err)
	}
	value, err := schema.Encode(Order{"tea", 3})
	if err != nil {
		panic(err)
	}

	decode := registry.Avro[Order](registry.New(client))
	order, err := decode(ctx, &consumer.Message{Value: framed(id, value)})
	fmt.Printf("%+v %v\n", order, err)
	_, err = decode(ctx, &consumer.Message{Value: framed(17, value)})
	fmt.Println(err)
	// Output:
	// {SKU:tea Qty:3} <nil>
	// the registry has no schema 17
}
