package consumertest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// The scripted source keeps the contract of a Source, so that a test that passes with it is
// meaningful (F4, F5, F7, F8, E3).
func TestConformance(t *testing.T) {
	logs := map[string]*memlog.Log{}
	consumertest.Conformance(t, consumertest.Harness{
		Topic: func(_ testing.TB, partitions int, retention time.Duration) string {
			name := fmt.Sprintf("topic-%d", len(logs))
			logs[name] = memlog.NewLog(name, partitions)
			logs[name].Retention = retention
			return name
		},
		Produce: func(_ testing.TB, topic string, partition int32, msgs ...*consumer.Message) {
			for _, m := range msgs {
				logs[topic].AppendMessage(partition, m)
			}
		},
		Skip: func(_ testing.TB, topic string, partition int32) { logs[topic].Skip(partition, 3) },
		DeleteBefore: func(_ testing.TB, topic string, partition int32, offset int64) {
			logs[topic].DeleteBefore(partition, offset)
		},
		Elect: func(_ testing.TB, topic string, partition int32) { logs[topic].Elect(partition) },
		Truncate: func(_ testing.TB, topic string, partition int32, offset int64) {
			logs[topic].Truncate(partition, offset)
		},
		Recreate: func(_ testing.TB, topic string) { logs[topic].Recreate() },
		Identity: func(_ testing.TB, topic string) source.Identity { return logs[topic].Identity() },
		Source: func(_ testing.TB, group string, _ time.Duration, topics ...string) consumer.Source {
			return &memlog.Source{Log: logs[topics[0]], GroupID: group}
		},
	})
}
