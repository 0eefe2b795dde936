package kafkatest_test

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

func TestBrokers(t *testing.T) {
	t.Parallel()
	roundTrip(t, kafkatest.Brokers(t))
}

func TestFake(t *testing.T) {
	t.Parallel()
	roundTrip(t, kafkatest.Fake(t))
}

// roundTrip uses a topic at once, with kafka-go, which is the pickier client
// here: no retries of ours may be needed, and a session may be short.
func roundTrip(t *testing.T, brokers []string) {
	t.Helper()
	topic := kafkatest.Topic(t, brokers, 3, map[string]string{"retention.ms": "3600000"})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w := &kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, BatchSize: 1, MaxAttempts: 1,
		// Not the default one, which all clients of this process share: it
		// keeps what it knows of a cluster for six seconds, and so does not
		// know a topic made since.
		Transport: &kafka.Transport{},
	}
	if err := w.WriteMessages(ctx, kafka.Message{Key: []byte("k"), Value: []byte("v")}); err != nil {
		t.Fatalf("write: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: topic, Brokers: brokers, Topics: []string{topic}, SessionTimeout: time.Second, HeartbeatInterval: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	gen, err := g.Next(ctx)
	if err != nil {
		t.Fatalf("join: %v", err)
	}
	if n := len(gen.Assignments[topic]); n != 3 {
		t.Errorf("%d partitions assigned, want 3", n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	cl := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: &kafka.Transport{}}
	total := int64(0)
	for p := range 3 {
		offs, err := cl.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {
			kafka.LastOffsetOf(p),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		total += offs.Topics[topic][0].LastOffset
	}
	if total != 1 {
		t.Errorf("%d records in the topic, want 1", total)
	}
}

// A new topic takes a record at once, from a client that does not try twice.
func TestTopicIsReady(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Brokers(t)
	for range 20 {
		topic := kafkatest.Topic(t, brokers, 4, nil)
		for p := range 4 {
			conn, err := kafka.DialLeader(t.Context(), "tcp", brokers[0], topic, p)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.WriteMessages(kafka.Message{Value: []byte("v")}); err != nil {
				t.Errorf("partition %d of a new topic: %v", p, err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
