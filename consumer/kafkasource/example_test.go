package kafkasource_test

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

func Example() {
	run := func(ctx context.Context, pool *pgxpool.Pool, handle consumer.Handler) error {
		c, err := consumer.New(pool,
			kafkasource.New(kafkasource.Config{
				Brokers: []string{"broker-1:9093", "broker-2:9093"},
				GroupID: "stock",
				Topics:  []string{"orders"},
				TLS:     &tls.Config{},
				SASL:    plain.Mechanism{Username: "stock", Password: "secret"},
			}),
			handle,
			consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
	_ = run
}

func ExampleSource_Validate() {
	s := kafkasource.New(kafkasource.Config{Brokers: []string{"localhost"}, Topics: []string{"orders"}})
	fmt.Println(s.Validate())
	// Output:
	// kafkasource: Config.Brokers: "localhost" is not host:port
	// kafkasource: Config.GroupID: must not be empty: it is what the processes that share the work have in common
}
