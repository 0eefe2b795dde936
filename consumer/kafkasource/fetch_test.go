package kafkasource_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/devenv/kafkatest"
)

// What was written is what is read: nil is not empty, headers keep their order and repeat, times are the producer's.
func TestFetchRecords(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		at := time.UnixMilli(1_700_000_000_123).UTC()
		recs := []*kgo.Record{
			{Key: []byte("k"), Value: []byte("v"), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{}}, {Key: "", Value: nil}}},
			{Key: nil, Value: nil, Timestamp: at.Add(-time.Hour)},
			{Key: []byte{}, Value: []byte{}, Timestamp: at.Add(time.Hour)},
		}
		for _, r := range recs {
			r.Topic, r.Partition = topic, 1
		}
		if err := producer(t, brokers).ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		h := join(t, quick(brokers, topic)).holds(topic, 1)
		got := h.readTo(t, 0, 3)
		if len(got) != 3 {
			t.Fatalf("%d messages", len(got))
		}
		for i, m := range got {
			want := recs[i]
			if m.Topic != topic || m.Partition != 1 || m.Offset != int64(i) || m.LeaderEpoch < 0 || m.LogAppendTime {
				t.Errorf("message %d is %+v", i, m)
			}
			if !m.Time.Equal(want.Timestamp) {
				t.Errorf("message %d has time %v, want %v", i, m.Time, want.Timestamp)
			}
			for what, pair := range map[string][2][]byte{"key": {m.Key, want.Key}, "value": {m.Value, want.Value}} {
				if !bytes.Equal(pair[0], pair[1]) || (pair[0] == nil) != (pair[1] == nil) {
					t.Errorf("message %d has %s %#v, want %#v", i, what, pair[0], pair[1])
				}
			}
		}
		hs := got[0].Headers
		if len(hs) != 3 || hs[0].Name != "a" || string(hs[0].Value) != "1" || hs[1].Name != "a" || hs[1].Value == nil || len(hs[1].Value) != 0 || hs[2].Value != nil {
			t.Errorf("headers are %#v", hs)
		}
		f := h.fetch(t, 3)
		if len(f.Messages) != 0 || f.Next != 3 || f.HighWatermark != 3 {
			t.Errorf("at the log's end: %+v", f)
		}
		if f = h.fetch(t, 1); len(f.Messages) != 2 || f.Messages[0].Offset != 1 {
			t.Errorf("from the middle of a batch: %v", f.Messages)
		}
	})
}

// The broker's clock is written once for a batch; kafka-go's decoder would hand over the producer's times. (kfake keeps those.)
func TestFetchLogAppendTime(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Brokers(t)
	topic := kafkatest.Topic(t, brokers, 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	before := time.Now().Add(-time.Second)
	old := time.Now().Add(-24 * time.Hour)
	recs := []*kgo.Record{{Topic: topic, Value: []byte("a"), Timestamp: old}, {Topic: topic, Value: []byte("b"), Timestamp: old}}
	if err := producer(t, brokers).ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, m := range join(t, quick(brokers, topic)).holds(topic, 0).readTo(t, 0, 2) {
		if !m.LogAppendTime || m.Time.Before(before) {
			t.Errorf("message %d has time %v, by the broker's clock: %v", m.Offset, m.Time, m.LogAppendTime)
		}
	}
}

func TestFetchCompressed(t *testing.T) {
	codecs := map[string]kgo.CompressionCodec{"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	onBoth(t, func(t *testing.T, brokers []string) {
		for name, codec := range codecs {
			topic := kafkatest.Topic(t, brokers, 1, nil)
			want := numbered(strings.Repeat(name, 30), 500)
			write(t, producer(t, brokers, kgo.ProducerBatchCompression(codec)), topic, want...)
			h := join(t, quick(brokers, topic)).holds(topic, 0)
			if got := values(h.readTo(t, 0, 500)); !slices.Equal(got, want) {
				t.Errorf("%s: %d messages differ from what was written", name, len(got))
			}
		}
	})
}

// A record larger than FetchMaxBytes comes through whole, and a batch that a response cuts off comes with the next.
func TestFetchSmallLimit(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cl := producer(t, brokers)
		var want []string
		for i := range 40 {
			size := 100
			if i%4 == 3 {
				size = 300_000
			}
			want = append(want, strings.Repeat(string(rune('a'+i%26)), size))
			write(t, cl, topic, want[i]) // a batch of its own
		}
		for _, limit := range []int{1, 250, 100_000, 700_000} {
			cfg := quick(brokers, topic)
			cfg.GroupID += "-" + string(rune('a'+limit%26))
			cfg.FetchMaxBytes = limit
			m := join(t, cfg)
			if got := values(m.holds(topic, 0).readTo(t, 0, 40)); !slices.Equal(got, want) {
				t.Errorf("limit %d: %d messages differ from what was written", limit, len(got))
			}
			if err := m.leave(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFetchWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		cfg.FetchMaxWait = 200 * time.Millisecond
		h := join(t, cfg).holds(topic, 0)
		h.fetch(t, 0)
		started := time.Now()
		if f := h.fetch(t, 0); len(f.Messages) != 0 || f.Next != 0 {
			t.Errorf("an empty log holds %+v", f)
		}
		if d := time.Since(started); d < 150*time.Millisecond || d > 3*time.Second {
			t.Errorf("waited %v where there was nothing, want 200 ms", d)
		}
	})
}

func TestOutOfRange(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		write(t, producer(t, brokers), topic, numbered("v", 10)...)
		h := join(t, quick(brokers, topic)).holds(topic, 0)
		h.readTo(t, 0, 10)
		var cut kadm.Offsets
		cut.Add(kadm.Offset{Topic: topic, At: 4})
		if _, err := admin(t, brokers).DeleteRecords(t.Context(), cut); err != nil {
			t.Fatal(err)
		}
		for _, from := range []int64{0, 3, 11, 1000} {
			_, err := h.Fetch(h.ctx, from)
			var out *consumer.OutOfRangeError
			if !errors.As(err, &out) || *out != (consumer.OutOfRangeError{Offset: from, Start: 4, End: 10}) {
				t.Errorf("fetch at %d: %v", from, err)
			}
		}
		if start, end, err := h.Bounds(h.ctx); start != 4 || end != 10 || err != nil {
			t.Errorf("bounds are %d and %d, %v", start, end, err)
		}
		if got := values(h.readTo(t, 4, 10)); !slices.Equal(got, numbered("v", 10)[4:]) {
			t.Errorf("read %v", got)
		}
	})
}

// The record's own time counts, and the topic's retention; aborted and removed records below it do not.
func TestRetained(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		at := time.UnixMilli(time.Now().Add(-time.Hour).UnixMilli()).UTC()
		for ms, want := range map[string]time.Time{"86400000": at.Add(24 * time.Hour), "-1": {}} {
			topic := kafkatest.Topic(t, brokers, 1, map[string]string{"retention.ms": ms})
			if err := producer(t, brokers).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v"), Timestamp: at}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			h := join(t, quick(brokers, topic)).holds(topic, 0)
			if until, err := h.Retained(h.ctx, 0); !until.Equal(want) || err != nil {
				t.Errorf("with retention.ms=%s: %v, %v; want %v", ms, until, err, want)
			}
			if until, err := h.Retained(h.ctx, 1); !until.IsZero() || err != nil {
				t.Errorf("at the log's end: %v, %v", until, err)
			}
		}
	})
}
