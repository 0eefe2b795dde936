package kafkasource_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// The broker writes its clock once for a batch; kafka-go's decoder would return the producer's
// times. (kfake keeps those.)
func TestFetchLogAppendTime(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Brokers(t)
	topic := kafkatest.Topic(t, brokers, 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	before := time.Now().Add(-time.Second)
	old := time.Now().Add(-24 * time.Hour)
	recs := []*kgo.Record{{Topic: topic, Value: []byte("a"), Timestamp: old}, {Topic: topic, Value: []byte("b"), Timestamp: old}}
	if err := kafkatest.Client(t, brokers).ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, m := range join(t, quick(brokers, topic)).Holds(topic, 0).ReadTo(t, 0, 2) {
		if !m.LogAppendTime || m.Time.Before(before) {
			t.Errorf("message %d has time %v, by the broker's clock: %v", m.Offset, m.Time, m.LogAppendTime)
		}
	}
}

func TestFetchCompressed(t *testing.T) {
	codecs := map[string]kgo.CompressionCodec{"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		for name, codec := range codecs {
			topic := kafkatest.Topic(t, brokers, 1, nil)
			want := numbered(strings.Repeat(name, 30), 500)
			kafkatest.Write(t, kafkatest.Client(t, brokers, kgo.ProducerBatchCompression(codec)), topic, want...)
			h := join(t, quick(brokers, topic)).Holds(topic, 0)
			if got := values(h.ReadTo(t, 0, 500)); !slices.Equal(got, want) {
				t.Errorf("%s: %d messages differ from what was written", name, len(got))
			}
		}
	})
}

// A record larger than FetchMaxBytes is returned whole, and a batch that a response cuts off is
// returned by the next.
func TestFetchSmallLimit(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cl := kafkatest.Client(t, brokers)
		var want []string
		for i := range 40 {
			size := 100
			if i%4 == 3 {
				size = 300_000
			}
			want = append(want, strings.Repeat(string(rune('a'+i%26)), size))
			kafkatest.Write(t, cl, topic, want[i]) // a batch of its own
		}
		for _, limit := range []int{1, 250, 100_000, 700_000} {
			cfg := quick(brokers, topic)
			cfg.GroupID += "-" + string(rune('a'+limit%26))
			cfg.FetchMaxBytes = limit
			m := join(t, cfg)
			if got := values(m.Holds(topic, 0).ReadTo(t, 0, 40)); !slices.Equal(got, want) {
				t.Errorf("limit %d: %d messages differ from what was written", limit, len(got))
			}
			if err := m.Leave(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFetchWaits(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		cfg.FetchMaxWait = 200 * time.Millisecond
		h := join(t, cfg).Holds(topic, 0)
		h.MustFetch(t, 0)
		started := time.Now()
		if f := h.MustFetch(t, 0); len(f.Messages) != 0 || f.Next != 0 {
			t.Errorf("an empty log holds %+v", f)
		}
		if d := time.Since(started); d < 150*time.Millisecond {
			t.Errorf("waited %v for an empty log, want 200 ms", d)
		}
	})
}
