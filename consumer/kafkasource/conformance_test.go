package kafkasource_test

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/test/brokerfaults"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// sourceOf makes the source that all suites test.
func sourceOf(brokers []string, group string, rebalance time.Duration, topics ...string) consumer.Source {
	return kafkasource.New(kafkasource.Config{Brokers: brokers, GroupID: group, Topics: topics,
		SessionTimeout: time.Second, RebalanceTimeout: rebalance, HeartbeatInterval: 100 * time.Millisecond})
}

// TestMain: some rows of TestFaults need a process that can be stopped.
func TestMain(m *testing.M) { brokerfaults.Main(m, sourceOf) }

func TestConformance(t *testing.T) {
	// The suites run one after the other and beside no other test, because they count goroutines.
	t.Run("real", func(t *testing.T) {
		consumertest.Conformance(t, kafkatest.Harness(t, kafkatest.Brokers(t), sourceOf))
	})
	t.Run("kfake", func(t *testing.T) {
		c := kafkatest.FakeCluster(t)
		h := kafkatest.Harness(t, c.ListenAddrs(), sourceOf)
		h.Elect = func(t testing.TB, topic string, partition int32) {
			// To itself, in another epoch.
			if err := c.MoveTopicPartition(topic, partition, c.LeaderFor(topic, partition)); err != nil {
				t.Fatal(err)
			}
		}
		consumertest.Conformance(t, h)
	})
}
