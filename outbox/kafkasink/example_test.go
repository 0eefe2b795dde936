package kafkasink_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
)

// A sink for one topic. In a program the sink is given to outbox.NewRelay, whose relay calls
// SendBatch for the rows that are due. Here one call is sent directly, to a broker in this process
// (kfake), and read back.
func Example() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	events, err := kafkasink.New(kafkasink.Config{
		Name: "events", Brokers: broker.ListenAddrs(), Topics: []string{"orders"}, KeyWindow: 6 * 24 * time.Hour,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer events.Close()

	ctx := context.Background()
	result := events.Send(ctx, &outbox.Attempt{
		Key:    "6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10",
		Method: http.MethodPost, Target: "/orders?key=17",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(`{"placed":17}`),
	})
	fmt.Println(result.Outcome)

	reader, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer reader.Close()
	record := reader.PollRecords(ctx, 1).Records()[0]
	fmt.Printf("key %s, value %s\n", record.Key, record.Value)
	for _, h := range record.Headers {
		fmt.Printf("%s: %s\n", h.Key, h.Value)
	}
	// Output:
	// delivered
	// key 17, value {"placed":17}
	// message-id: 6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10
	// content-type: application/json
}
