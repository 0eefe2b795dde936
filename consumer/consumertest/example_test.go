package consumertest_test

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// A topic in memory and a source that reads it. A test gives the source to consumer.New in place of
// one for Kafka; here own reads the partition itself.
func Example() {
	log := consumertest.NewLog("orders", 1)
	log.Append(0, "first")
	log.Skip(0, 2) // offsets 1 and 2 hold no record, for example after an aborted transaction
	log.Append(0, "second")

	ctx, stop := context.WithCancel(context.Background())
	orders := &consumertest.Source{Log: log, GroupID: "stock"}
	err := orders.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		defer stop()
		if _, err := p.Identity(ctx); err != nil { // Fetch reads the topic that Identity named
			return err
		}
		fetched, err := p.Fetch(ctx, 0, 1<<20)
		if err != nil {
			return err
		}
		for _, m := range fetched.Messages {
			fmt.Println(m.Offset, string(m.Value))
		}
		return p.Commit(ctx, fetched.Next, "")
	})
	fmt.Println(err)

	offset, _ := log.Committed("stock", 0)
	fmt.Println("committed:", offset)
	// Output:
	// 0 first
	// 3 second
	// <nil>
	// committed: 4
}

// The faults of a log happen when the test causes them. This one is retention, which deletes a
// record that a slow consumer has not read.
func ExampleLog_DeleteBefore() {
	log := consumertest.NewLog("orders", 1)
	log.Append(0, "never read")
	log.Append(0, "second")
	log.DeleteBefore(0, 1)

	ctx, stop := context.WithCancel(context.Background())
	orders := &consumertest.Source{Log: log, GroupID: "stock"}
	_ = orders.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		defer stop()
		if _, err := p.Identity(ctx); err != nil {
			return err
		}
		_, err := p.Fetch(ctx, 0, 1<<20)
		fmt.Println(err)
		return nil
	})
	// Output: offset 0 is out of range: the log holds 1 to 2
}
