package consumer_test

import (
	"context"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// Copies of these messages may come weeks later, from a mirror that was stopped. Their keys are
// remembered in the ring of the class long, and those of other consumers are not.
func ExampleConfig_horizon() {
	pool, end := exampleDatabase(`create table shipments (id text)`)
	defer end()
	shipments := memlog.NewLog("shipments", 1)
	for _, id := range []string{"s-1", "s-2", "s-1"} {
		shipments.AppendMessage(0, &consumer.Message{
			Value:   []byte(id),
			Headers: []consumer.Header{{Name: "message-id", Value: []byte(id)}},
		})
	}
	c, err := consumer.New(
		pool,
		&memlog.Source{Log: shipments, GroupID: "dispatch"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `insert into shipments (id) values ($1)`, string(m.Value))
			return err
		}),
		consumer.Config{
			Scope:   "dispatch",
			Key:     consumer.HeaderKey("message-id"),
			Horizon: consumer.HorizonLong,
		},
	)
	if err != nil {
		panic(err)
	}
	runTo(c, 3)
	printRows(pool, `select id from shipments order by id`)
	printRows(pool, `select segment || ': ' || count(*) from onlyonce.inbox group by segment`)
	// Output:
	// s-1
	// s-2
	// consumer_long_keys_0: 2
}
