package sharesource_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/sharesource"
)

// More members than partitions have work. Without ids, each record still takes effect once.
func Example() {
	run := func(ctx context.Context, pool *pgxpool.Pool, handle consumer.Handler) error {
		c, err := consumer.New(pool,
			sharesource.New(sharesource.Config{
				Brokers: []string{"broker-1:9092", "broker-2:9092"},
				GroupID: "mail",
				Topics:  []string{"receipts"},
			}),
			handle,
			consumer.Config{Scope: "mail", PositionsOnly: true, Concurrency: 8})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
	_ = run
}

// Validate names every fault at once. consumer.New calls it.
func ExampleSource_Validate() {
	s := sharesource.New(sharesource.Config{Brokers: []string{"broker-1"}, GroupID: "mail", KeeperGroupID: "mail"})
	fmt.Println(s.Validate())
	// Output:
	// sharesource: Config.Brokers: "broker-1" is not host:port
	// sharesource: Config.Topics: must not be empty
	// sharesource: Config.KeeperGroupID: must not be GroupID, "mail": a share group and a consumer group cannot have one name
}
