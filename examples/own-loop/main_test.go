package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The loop over a topic with copies, and another order under a known id, in a group that reads
// everything a second time, as after a reset of its offsets.
func TestLoop(t *testing.T) {
	pool := pgtest.DB(t)
	brokers := kafkatest.Fake(t)
	if _, err := pool.Exec(t.Context(), tableSQL); err != nil {
		t.Fatal(err)
	}
	var all []kafka.Message
	for i := range 30 {
		all = append(all, kafka.Message{
			Key:     fmt.Appendf(nil, "order-%d", i%20),
			Headers: []kafka.Header{{Key: "message-id", Value: fmt.Appendf(nil, "order-%d", i%20)}},
			Value:   fmt.Appendf(nil, "order %d", i%20),
		})
	}
	all = append(all, kafka.Message{Key: all[0].Key, Headers: all[0].Headers, Value: []byte("another order")})
	client := &kafka.Client{Addr: kafka.TCP(brokers...)}
	if _, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic:             "orders",
		NumPartitions:     4,
		ReplicationFactor: 1,
	}}}); err != nil {
		t.Fatal(err)
	}
	w := &kafka.Writer{Addr: kafka.TCP(brokers...), Topic: "orders", Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll}
	if err := w.WriteMessages(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for _, group := range []string{"own-loop", "reset"} {
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: brokers, GroupID: group, Topic: "orders", MaxWait: 50 * time.Millisecond})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop(ctx, pool, reader) }()
		pgtest.Until(t, pgtest.Patience(20*time.Second), "everything to be committed", func() bool {
			return committed(t, client, group) == int64(len(all))
		})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	}
	var applied, orders, aside int
	err := pool.QueryRow(
		t.Context(),
		`select (select count(*) from applied), (select count(distinct order_id) from applied), (select count(*) from set_aside)`,
	).Scan(
		&applied,
		&orders,
		&aside,
	)
	good := err == nil && applied == 20 && orders == 20 && aside == 1
	if !good {
		t.Errorf("%d rows of %d orders, %d set aside, %v", applied, orders, aside, err)
	}
}

// committed is the sum of a group's offsets.
func committed(t *testing.T, client *kafka.Client, group string) (n int64) {
	t.Helper()
	offsets, err := client.OffsetFetch(t.Context(), &kafka.OffsetFetchRequest{
		GroupID: group,
		Topics:  map[string][]int{"orders": {0, 1, 2, 3}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range offsets.Topics["orders"] {
		n += max(p.CommittedOffset, 0)
	}
	return n
}
