// Command produce sends one order twice, as a producer does that got no answer the first time.
package main

import (
	"context"
	"log"
	"os"

	"github.com/segmentio/kafka-go"
)

func main() {
	ctx := context.Background()
	broker := os.Getenv("ONLYONCE_KAFKA_BROKERS")
	conn, err := kafka.Dial("tcp", broker)
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.CreateTopics(kafka.TopicConfig{Topic: "orders", NumPartitions: 4, ReplicationFactor: 1}); err != nil {
		log.Fatal(err)
	}
	if _, err := kafka.LookupPartition(ctx, "tcp", broker, "orders", 0); err != nil { // waits for the new topic
		log.Fatal(err)
	}
	w := &kafka.Writer{Addr: kafka.TCP(broker), Topic: "orders", RequiredAcks: kafka.RequireAll}
	order := kafka.Message{
		Headers: []kafka.Header{{Key: "message-id", Value: []byte("order-17")}}, // made once, sent with each copy
		Value:   []byte(`{"sku": "tea", "qty": 3}`),
	}
	if err := w.WriteMessages(ctx, order, order); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
}
