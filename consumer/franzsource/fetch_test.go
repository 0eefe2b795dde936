package franzsource_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// A compacted topic is read exactly: each record that is left is returned once, in order. Removed
// records are passed over, including batches that lost their last record or all records (F8).
func TestCompactedTopic(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	brokers := c.ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
	cl := kafkatest.Client(t, brokers)
	last := map[string]int64{} // where the latest record of each key is
	for round := range 8 {
		var recs []*kgo.Record
		for i := range 6 {
			recs = append(recs, &kgo.Record{Topic: topic, Key: []byte{byte('a' + (round*i)%7)}, Value: fmt.Appendf(nil, "%d-%d", round, i)})
		}
		if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			last[string(r.Key)] = r.Offset
		}
	}
	c.Compact()
	for _, limit := range []int{1, 1 << 20} {
		cfg := quick(brokers, topic)
		cfg.FetchMaxBytes = limit
		m := join(t, cfg)
		h := m.Holds(topic, 0)
		if !h.ID.Compacted {
			t.Error("Identity does not say that the topic is compacted")
		}
		start, end := h.MustBounds(t) // kfake lets the log begin with its first batch
		all := map[string]bool{}
		for from := start; from < end; from++ {
			var before int64 = -1
			got := h.ReadTo(t, from, end)
			for _, r := range got {
				if r.Offset <= before {
					t.Fatalf("offset %d behind %d", r.Offset, before)
				}
				before = r.Offset
				all[string(r.Key)] = all[string(r.Key)] || r.Offset == last[string(r.Key)]
			}
			if from == start && int64(len(got)) == end-start {
				t.Error("nothing was removed")
			}
		}
		for k := range last {
			if !all[k] {
				t.Errorf("limit %d: the latest record of key %q, at %d, was not read", limit, k, last[k])
			}
		}
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
	}
}

func TestFetchCompressed(t *testing.T) {
	codecs := map[string]kgo.CompressionCodec{"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		for name, codec := range codecs {
			topic := kafkatest.Topic(t, brokers, 1, nil)
			var want []string
			for i := range 500 {
				want = append(want, fmt.Sprint(strings.Repeat(name, 30), i))
			}
			kafkatest.Write(t, kafkatest.Client(t, brokers, kgo.ProducerBatchCompression(codec)), topic, want...)
			h := join(t, quick(brokers, topic)).Holds(topic, 0)
			if got := values(h.ReadTo(t, 0, 500)); !slices.Equal(got, want) {
				t.Errorf("%s: %d messages differ from what was written", name, len(got))
			}
		}
	})
}

// Partitions of one broker are fetched together. One with much to read is not held up by others
// that have nothing, and small responses are not lost to large ones.
func TestFetchesTravelTogether(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		const partitions, records = 6, 60
		topic := kafkatest.Topic(t, brokers, partitions, nil)
		cl := kafkatest.Client(t, brokers)
		for p := range int32(partitions) {
			for i := range records * int(p%2) { // every second one stays empty
				r := &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%d-%d-%s", p, i, strings.Repeat("x", 1000*int(p)))}
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cfg := quick(brokers, topic)
		cfg.FetchMaxBytes = 4000 // many fetches
		m := join(t, cfg)
		m.HoldsExactly(partitions)
		var reading sync.WaitGroup
		for _, h := range m.All() {
			reading.Go(func() {
				p := h.ID.Partition
				if p%2 == 0 {
					for range 3 {
						if f, err := h.Fetch(h.Ctx, 0, 1<<20); err != nil || len(f.Messages) > 0 || f.Next != 0 {
							t.Errorf("partition %d: %+v, %v", p, f, err)
						}
					}
					return
				}
				for from := int64(0); from < records; {
					f, err := h.Fetch(h.Ctx, from, 1<<20)
					if err != nil {
						t.Errorf("partition %d at %d: %v", p, from, err)
						return
					}
					for _, r := range f.Messages {
						if r.Offset != from || r.Partition != p || !strings.HasPrefix(string(r.Value), fmt.Sprintf("%d-%d-", p, from)) {
							t.Errorf("partition %d at %d: offset %d of %d", p, from, r.Offset, r.Partition)
							return
						}
						from++
					}
				}
			})
		}
		reading.Wait()
	})
}

// The leader moves to another broker, with its records or without some of them.
func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t, kfake.NumBrokers(3))
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	move := func() {
		t.Helper()
		if err := c.MoveTopicPartition(topic, 0, (c.LeaderFor(topic, 0)+1)%3); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(6) {
		v := fmt.Sprint(i)
		kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, v)
		if got := values(h.ReadTo(t, i, i+1)); !slices.Equal(got, []string{v}) {
			t.Errorf("read %v, want %q", got, v)
		}
		move()
	}
	h.MustFetch(t, 6) // the new leader's log goes as far: no error
	move()
	// An unclean election has cut off the log, and other records were written since. The position
	// exists in the log, but records before it are lost.
	c.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		asked := r.(*kmsg.OffsetForLeaderEpochRequest).Topics[0].Partitions[0]
		rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
		rp.LeaderEpoch = asked.LeaderEpoch
		rp.EndOffset = 4
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = topic
		rt.Partitions = append(rt.Partitions, rp)
		resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	_, err := h.Fetch(h.Ctx, 6, 1<<20)
	var out *source.OutOfRangeError
	if !errors.As(err, &out) || *out != (source.OutOfRangeError{Offset: 6, Start: 0, End: 4}) {
		t.Errorf("fetch behind what was cut off: %v", err)
	}
}

// A broker that throttles returns an empty answer, which is not the end of the log.
func TestThrottled(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, "v")
	left := 2
	c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if left--; left < 0 {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		resp.ThrottleMillis = 50
		return resp, nil, true
	})
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	if f := h.MustFetch(t, 0); !slices.Equal(values(f.Messages), []string{"v"}) {
		t.Errorf("read %v", values(f.Messages))
	}
}

// answersEmpty makes a broker answer so many fetches of partition 0 from an offset of 3 to 7 as if
// it had no batch there: the last stable offset is 8.
func answersEmpty(c *kfake.Cluster, left int) {
	c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.FetchRequest)
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		hole := false
		for _, rt := range req.Topics {
			st := kmsg.NewFetchResponseTopic()
			st.Topic = rt.Topic
			st.TopicID = rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewFetchResponseTopicPartition()
				sp.Partition = rp.Partition
				if rp.Partition == 0 {
					sp.HighWatermark = 10
					sp.LastStableOffset = 8
					hole = hole || left > 0 && rp.FetchOffset >= 3 && rp.FetchOffset < 8
				}
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		if hole {
			left--
		}
		return resp, nil, hole
	})
}

// An empty answer of a compacted topic may only be late: after one or two, the records follow (F6).
func TestEmptyAnswersThatEnd(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, map[string]string{"cleanup.policy": "compact"})
	kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
	answersEmpty(c, 2)
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	if f := h.MustFetch(t, 3); !slices.Equal(values(f.Messages), []string{"3", "4", "5", "6", "7", "8", "9"}) {
		t.Errorf("read %v, up to %d", values(f.Messages), f.Next)
	}
}

// The cleaner has removed every batch up to the last stable offset, so that no fetch will ever find
// one: the position passes over them. In a topic that is not compacted an empty answer is an error,
// and nothing is passed over (F6).
func TestHoleUpToTheLastStableOffset(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	brokers := c.ListenAddrs()
	for _, policy := range []string{"compact", "delete"} {
		topic := kafkatest.Topic(t, brokers, 2, map[string]string{"cleanup.policy": policy})
		kafkatest.Write(t, kafkatest.Client(t, brokers), topic, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		answersEmpty(c, math.MaxInt)
		m := join(t, quick(brokers, topic))
		m.HoldsExactly(2)
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { // another partition's fetches travel with this one's
			for h := m.Holds(topic, 1); ctx.Err() == nil; {
				_, _ = h.Fetch(ctx, 0, 1<<20)
			}
		})
		h := m.Holds(topic, 0)
		f, err := h.Fetch(h.Ctx, 3, 1<<20)
		cancel()
		beside.Wait()
		switch {
		case policy == "delete":
			if err == nil {
				t.Errorf("%s: fetched %+v", policy, f)
			}
		case err != nil || len(f.Messages) > 0 || f.Next != 8:
			t.Errorf("%s: fetched %+v, %v", policy, f, err)
		case f.LastStable != 8 || f.HighWatermark != 10 || f.LeaderEpoch != 0:
			t.Errorf("%s: fetched %+v", policy, f)
		default:
			if err := h.Verify(h.Ctx, f.Next, f.LeaderEpoch); err != nil {
				t.Error(err)
			}
		}
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
	}
}

// Brokers before 3.1 fetch by name, and those before 2.8 have no topic ids. Everything else works.
func TestOldBrokers(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]*kversion.Versions{"2.8": kversion.V2_8_0(), "2.1": kversion.V2_1_0()} {
		brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(v)).ListenAddrs()
		topic := kafkatest.Topic(t, brokers, 2, nil)
		kafkatest.Write(t, kafkatest.Client(t, brokers), topic, "a", "b")
		m := join(t, quick(brokers, topic))
		m.HoldsExactly(2)
		h := m.Holds(topic, 0)
		if got := values(h.ReadTo(t, 0, 2)); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%s: read %v", name, got)
		}
		if err := h.Commit(h.Ctx, 2, "m"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if offset, metadata, err := h.Committed(h.Ctx); offset != 2 || metadata != "m" || err != nil {
			t.Errorf("%s: committed %d %q %v", name, offset, metadata, err)
		}
	}
}

// A topic that was created again is also noticed if fetches name it, when the last fetch is more
// than a second ago (F4).
func TestTopicRecreatedFetchingByName(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(kversion.V2_8_0())).ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	kafkatest.Write(t, kafkatest.Client(t, brokers), topic, "a", "b")
	h := join(t, quick(brokers, topic)).Holds(topic, 0)
	h.ReadTo(t, 0, 2)
	read := time.Now()
	kafkatest.Recreate(t, kafkatest.Admin(t, brokers), topic)
	kafkatest.Write(t, kafkatest.Client(t, brokers), topic, "c", "d", "e")
	eventually(t, "a second to pass", func() bool { return time.Since(read) > 1100*time.Millisecond })
	if f, err := h.Fetch(h.Ctx, 2, 1<<20); !errors.Is(err, source.ErrIncarnation) {
		t.Errorf("fetch from the new incarnation: %v, %v", f.Messages, err)
	}
}
