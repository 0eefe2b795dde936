package kafkatest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// NewSource makes the source under test: a member that is noticed to be gone within a second, and
// has a time of rebalance to give partitions up.
type NewSource func(brokers []string, group string, rebalance time.Duration, topics ...string) consumer.Source

// Harness is what the conformance suite needs of a Kafka cluster.
func Harness(t testing.TB, brokers []string, newSource NewSource) consumertest.Harness {
	t.Helper()
	adm := Admin(t, brokers)
	return consumertest.Harness{
		Topic: func(t testing.TB, partitions int, retention time.Duration) string {
			ms := int64(-1)
			if retention > 0 {
				ms = retention.Milliseconds()
			}
			return Topic(t, brokers, partitions, map[string]string{"retention.ms": strconv.FormatInt(ms, 10)})
		},
		Produce: func(t testing.TB, topic string, partition int32, msgs ...*consumer.Message) {
			t.Helper()
			// A client of its own: one that has written to a topic does not notice for some time
			// that it was created again.
			cl := Client(t, brokers)
			defer cl.Close()
			produce(t, cl, topic, partition, msgs...)
		},
		Begin: func(t testing.TB, topic string, partition int32, values ...string) func(bool) {
			t.Helper()
			cl := Client(t, brokers, kgo.TransactionalID(TopicName(t)), kgo.TransactionTimeout(time.Minute))
			if err := cl.BeginTransaction(); err != nil {
				t.Fatalf("kafkatest: %v", err)
			}
			msgs := make([]*consumer.Message, len(values))
			for i, v := range values {
				msgs[i] = &consumer.Message{Value: []byte(v), Time: time.Now()}
			}
			produce(t, cl, topic, partition, msgs...)
			return func(commit bool) {
				t.Helper()
				if err := cl.EndTransaction(context.Background(), kgo.TransactionEndTry(commit)); err != nil {
					t.Fatalf("kafkatest: ending a transaction: %v", err)
				}
			}
		},
		DeleteBefore: func(t testing.TB, topic string, partition int32, offset int64) {
			t.Helper()
			var cut kadm.Offsets
			cut.Add(kadm.Offset{Topic: topic, Partition: partition, At: offset})
			if _, err := adm.DeleteRecords(context.Background(), cut); err != nil {
				t.Fatalf("kafkatest: deleting records: %v", err)
			}
		},
		Recreate: func(t testing.TB, topic string) { t.Helper(); Recreate(t, adm, topic) },
		Identity: func(t testing.TB, topic string) source.Identity {
			t.Helper()
			topics, err := adm.ListTopics(context.Background(), topic)
			if err != nil {
				t.Fatalf("kafkatest: %v", err)
			}
			meta, err := adm.BrokerMetadata(context.Background())
			if err != nil {
				t.Fatalf("kafkatest: %v", err)
			}
			return source.Identity{
				ClusterID:      meta.Cluster,
				TopicID:        topics[topic].ID,
				TopicPartition: source.TopicPartition{Topic: topic},
				Partitions:     int32(len(topics[topic].Partitions)),
			}
		},
		Source: func(_ testing.TB, group string, rebalance time.Duration, topics ...string) consumer.Source {
			return newSource(brokers, group, rebalance, topics...)
		},
		Shares: true,
		Missing: func(t testing.TB) (consumer.Source, string) {
			topic := TopicName(t)
			return newSource(brokers, "group-"+topic, time.Second, topic), topic
		},
		Unreachable: func(t testing.TB) (consumer.Source, string) {
			t.Helper()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := l.Addr().String()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return newSource([]string{addr}, "group", time.Second, "topic"), addr
		},
	}
}

// Recreate deletes a topic and creates it again with one partition, and returns when the new one
// takes records.
func Recreate(t testing.TB, adm *kadm.Client, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), topicTimeout)
	defer cancel()
	before, err := adm.ListTopics(ctx, topic)
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		t.Fatalf("kafkatest: deleting %s: %v", topic, err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for created := false; ; {
		if !created {
			_, err = adm.CreateTopic(ctx, 1, 1, nil, topic)
			created = err == nil
		} else {
			after, err1 := adm.ListTopics(ctx, topic)
			ends, err2 := adm.ListEndOffsets(ctx, topic)
			answered := err1 == nil && err2 == nil && ends.Error() == nil
			if answered && len(ends[topic]) == 1 && after[topic].ID != before[topic].ID {
				return
			}
			err = fmt.Errorf("its leader does not answer: %w %w %w", err1, err2, ends.Error())
		}
		select {
		case <-ctx.Done():
			t.Fatalf("kafkatest: recreating %s: %v", topic, err)
		case <-tick.C:
		}
	}
}

// Client returns a client that writes to the partition that a record names, each call in one batch.
func Client(t testing.TB, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MetadataMinAge(50 * time.Millisecond), // or it returns the topic of before
	}, opts...)...)
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// Admin returns a client for what tests do around a Source.
func Admin(t testing.TB, brokers []string) *kadm.Client {
	t.Helper()
	return kadm.NewClient(Client(t, brokers))
}

// Write writes records to partition 0 and waits for them.
func Write(t testing.TB, cl *kgo.Client, topic string, values ...string) {
	t.Helper()
	msgs := make([]*consumer.Message, len(values))
	for i, v := range values {
		msgs[i] = &consumer.Message{Value: []byte(v), Time: time.Now()}
	}
	produce(t, cl, topic, 0, msgs...)
}

func produce(t testing.TB, cl *kgo.Client, topic string, partition int32, msgs ...*consumer.Message) {
	t.Helper()
	recs := make([]*kgo.Record, len(msgs))
	for i, m := range msgs {
		recs[i] = &kgo.Record{Topic: topic, Partition: partition, Key: m.Key, Value: m.Value, Timestamp: m.Time}
		for _, h := range m.Headers {
			recs[i].Headers = append(recs[i].Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
	}
	if err := cl.ProduceSync(context.Background(), recs...).FirstErr(); err != nil {
		t.Fatalf("kafkatest: produce: %v", err)
	}
}

// Expel removes a member from its group, as its coordinator does after the session timeout.
func Expel(t testing.TB, brokers []string, group, member string) {
	t.Helper()
	one := kmsg.NewLeaveGroupRequestMember()
	one.MemberID = member
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	req.MemberID = member
	req.Members = []kmsg.LeaveGroupRequestMember{one}
	if _, err := req.RequestWith(context.Background(), Client(t, brokers)); err != nil {
		t.Fatalf("kafkatest: removing a member: %v", err)
	}
}
