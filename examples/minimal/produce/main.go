// Command produce sends one order twice, as a producer does that got no answer the first time.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/segmentio/kafka-go"
)

func main() {
	broker := os.Getenv("ONLYONCE_KAFKA_BROKERS")
	conn, err := kafka.Dial("tcp", broker)
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.CreateTopics(kafka.TopicConfig{Topic: "orders", NumPartitions: 4, ReplicationFactor: 1}); err != nil {
		log.Fatal(err)
	}
	for _, err = conn.ReadPartitions("orders"); errors.Is(err, kafka.UnknownTopicOrPartition); {
		_, err = conn.ReadPartitions("orders") // a broker knows a new topic a little later
	}
	w := &kafka.Writer{Addr: kafka.TCP(broker), Topic: "orders", RequiredAcks: kafka.RequireAll}
	order := kafka.Message{
		Headers: []kafka.Header{{Key: "message-id", Value: []byte("order-17")}}, // made once, sent with each copy
		Value:   []byte(`{"sku": "tea", "qty": 3}`),
	}
	if err := w.WriteMessages(context.Background(), order, order); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
}
