package franzsource_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
)

func Example() {
	run := func(ctx context.Context, pool *pgxpool.Pool, handle consumer.Handler) error {
		c, err := consumer.New(pool,
			franzsource.New(franzsource.Config{
				Brokers: []string{"broker-1:9093", "broker-2:9093"},
				GroupID: "stock",
				Topics:  []string{"orders"},
				TLS:     &tls.Config{},
				SASL:    scram.Auth{User: "stock", Pass: "secret"}.AsSha512Mechanism(),
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

// A process that restarts within SessionTimeout gets its partitions back without a rebalance. The
// id must be unique and stay the same, for example the name of a StatefulSet's pod.
func ExampleConfig_staticMember() {
	s := franzsource.New(franzsource.Config{
		Brokers:    []string{"broker-1:9092"},
		GroupID:    "stock",
		Topics:     []string{"orders"},
		InstanceID: os.Getenv("HOSTNAME"),
	})
	fmt.Println(s.Validate())
	// Output: <nil>
}
