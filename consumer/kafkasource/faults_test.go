package kafkasource_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// script answers the first n requests of a key in place of the broker; f changes the response.
func script[Resp kmsg.Response](c *kfake.Cluster, key kmsg.Key, n int32, f func(req kmsg.Request, resp Resp)) *atomic.Int32 {
	var left, seen atomic.Int32
	left.Store(n)
	c.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if left.Add(-1) < 0 {
			return nil, nil, false
		}
		seen.Add(1)
		resp := req.ResponseKind().(Resp)
		f(req, resp)
		return resp, nil, true
	})
	return &seen
}

// fetchError makes a response in which each partition of the request has an error.
func fetchError(code kafka.Error) func(kmsg.Request, *kmsg.FetchResponse) {
	return func(r kmsg.Request, resp *kmsg.FetchResponse) {
		for _, t := range r.(*kmsg.FetchRequest).Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = t.Topic
			rt.TopicID = t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition = p.Partition
				rp.ErrorCode = int16(code)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	}
}

// Errors with which brokers report a move are gone at the next attempt, and the caller does not see
// them.
func TestFetchSurvivesMoves(t *testing.T) {
	t.Parallel()
	for _, code := range []kafka.Error{
		kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.FencedLeaderEpoch,
		kafka.UnknownLeaderEpoch, kafka.UnknownTopicID, kafka.UnknownTopicOrPartition,
		kafka.OffsetNotAvailable, kafka.KafkaStorageError, kafka.ReplicaNotAvailable,
		kafka.OffsetOutOfRange,
	} {
		c := kafkatest.FakeCluster(t)
		topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
		kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, "v")
		seen := script(c, kmsg.Fetch, 2, fetchError(code))
		h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
		if f := h.MustFetch(t, 0); !slices.Equal(values(f.Messages), []string{"v"}) {
			t.Errorf("after %v: %v", code, f)
		}
		if seen.Load() != 2 {
			t.Errorf("%v was met %d times", code, seen.Load())
		}
	}
}

func TestFetchReportsWhatStays(t *testing.T) {
	t.Parallel()
	for _, code := range []kafka.Error{kafka.TopicAuthorizationFailed, kafka.Unknown} {
		c := kafkatest.FakeCluster(t)
		topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
		script(c, kmsg.Fetch, 1, fetchError(code))
		h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
		if _, err := h.Fetch(h.Ctx, 0, 1<<20); !errors.Is(err, code) {
			t.Errorf("%v: %v", code, err)
		}
	}
}

// The leader moves to another broker. Both the transport and the partition have to find it.
func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t, kfake.NumBrokers(3))
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	for i := range 6 {
		v := string(rune('a' + i))
		kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, v)
		if got := values(h.ReadTo(t, int64(i), int64(i)+1)); !slices.Equal(got, []string{v}) {
			t.Errorf("read %v, want %q", got, v)
		}
		if err := c.MoveTopicPartition(topic, 0, int32(i%3)); err != nil {
			t.Fatal(err)
		}
	}
}

// An unclean election has cut off the log, and other records were written since. The position
// exists in the log, but records before it are lost (F5).
func TestTruncatedLog(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t, kfake.NumBrokers(2))
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, numbered("v", 10)...)
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	h.ReadTo(t, 0, 5+5)
	if err := c.MoveTopicPartition(topic, 0, 1-c.LeaderFor(topic, 0)); err != nil {
		t.Fatal(err)
	}
	h.MustFetch(t, 10) // the new leader's log goes as far: no error
	if err := c.MoveTopicPartition(topic, 0, 1-c.LeaderFor(topic, 0)); err != nil {
		t.Fatal(err)
	}
	asked := script(c, kmsg.OffsetForLeaderEpoch, 1, epochEnds(topic, 7))
	_, err := h.Fetch(h.Ctx, 10, 1<<20)
	var out *source.OutOfRangeError
	if !errors.As(err, &out) || *out != (source.OutOfRangeError{Offset: 10, Start: 0, End: 7}) {
		t.Errorf("fetch behind what was cut off: %v (asked %d times)", err, asked.Load())
	}
}

// epochEnds answers that the requested epoch ends at an offset.
func epochEnds(topic string, end int64) func(kmsg.Request, *kmsg.OffsetForLeaderEpochResponse) {
	return func(r kmsg.Request, resp *kmsg.OffsetForLeaderEpochResponse) {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = topic
		rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
		rp.LeaderEpoch = r.(*kmsg.OffsetForLeaderEpochRequest).Topics[0].Partitions[0].LeaderEpoch
		rp.EndOffset = end
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
	}
}

// A new owner has read nothing itself. It asks where the epoch ends up to which the previous owner
// has read. An owner that has found nothing since it took over asks when the leader has changed.
func TestF5TruncatedBeforeTheTakeOver(t *testing.T) {
	t.Parallel()
	for _, epoch := range []int32{0, -1} {
		c := kafkatest.FakeCluster(t, kfake.NumBrokers(2))
		topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
		kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, numbered("v", 10)...)
		h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
		cut := source.OutOfRangeError{Offset: 10, Start: 0, End: 7}
		var out *source.OutOfRangeError
		if epoch >= 0 {
			script(c, kmsg.OffsetForLeaderEpoch, 1, epochEnds(topic, 7))
			if err := h.Verify(h.Ctx, 10, epoch); !errors.As(err, &out) || *out != cut {
				t.Errorf("cut off: %v", err)
			}
		}
		if err := h.Verify(h.Ctx, 10, epoch); err != nil {
			t.Errorf("not cut off: %v", err)
		}
		h.MustFetch(t, 10) // nothing new
		if err := c.MoveTopicPartition(topic, 0, 1-c.LeaderFor(topic, 0)); err != nil {
			t.Fatal(err)
		}
		script(c, kmsg.OffsetForLeaderEpoch, 1, epochEnds(topic, 7))
		if f, err := h.Fetch(h.Ctx, 10, 1<<20); !errors.As(err, &out) || *out != cut {
			t.Errorf("cut off while nothing was read: %+v, %v", f, err)
		}
		if f := h.MustFetch(t, 10); f.Next != 10 {
			t.Errorf("fetched %+v", f)
		}
	}
}

// A broker that throttles returns an empty answer. That is not the end of the log: a consumer that
// looks for a record which it has read would take it for lost.
func TestThrottled(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	kafkatest.Write(t, kafkatest.Client(t, c.ListenAddrs()), topic, "v")
	script(c, kmsg.Fetch, 2, func(_ kmsg.Request, resp *kmsg.FetchResponse) { resp.ThrottleMillis = 50 })
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	if f := h.MustFetch(t, 0); !slices.Equal(values(f.Messages), []string{"v"}) {
		t.Errorf("read %v", f)
	}
	script(c, kmsg.Fetch, 1<<30, func(_ kmsg.Request, resp *kmsg.FetchResponse) { resp.ThrottleMillis = 50 })
	if f, err := h.Fetch(h.Ctx, 0, 1<<20); err == nil || !strings.Contains(err.Error(), "throttles") {
		t.Errorf("throttled for good: %v, %v", f, err)
	}
}

// Errors of a coordinator that has just started or moves are retried. Its refusal of a member that
// it does not know is ErrOwnershipLost at once.
func TestCommitErrors(t *testing.T) {
	t.Parallel()
	answer := func(code kafka.Error) func(kmsg.Request, *kmsg.OffsetCommitResponse) {
		return func(r kmsg.Request, resp *kmsg.OffsetCommitResponse) {
			for _, t := range r.(*kmsg.OffsetCommitRequest).Topics {
				rt := kmsg.NewOffsetCommitResponseTopic()
				rt.Topic = t.Topic
				for _, p := range t.Partitions {
					rp := kmsg.NewOffsetCommitResponseTopicPartition()
					rp.Partition = p.Partition
					rp.ErrorCode = int16(code)
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
		}
	}
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	h := join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	for _, code := range []kafka.Error{kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup} {
		script(c, kmsg.OffsetCommit, 2, answer(code))
		if err := h.Commit(h.Ctx, 1, ""); err != nil {
			t.Errorf("after %v: %v", code, err)
		}
	}
	for _, code := range []kafka.Error{kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress, kafka.FencedInstanceID} {
		script(c, kmsg.OffsetCommit, 1, answer(code))
		err := h.Commit(h.Ctx, 1, "")
		if !errors.Is(err, source.ErrOwnershipLost) || !errors.Is(err, code) {
			t.Errorf("after %v: %v", code, err)
		}
	}
	script(c, kmsg.OffsetCommit, 1, answer(kafka.OffsetMetadataTooLarge))
	if err := h.Commit(h.Ctx, 1, ""); !errors.Is(err, kafka.OffsetMetadataTooLarge) || errors.Is(err, source.ErrOwnershipLost) {
		t.Errorf("after metadata that is too large: %v", err)
	}
	script(c, kmsg.OffsetCommit, 1<<30, answer(kafka.NotCoordinatorForGroup))
	ctx, cancel := context.WithTimeout(h.Ctx, 300*time.Millisecond)
	defer cancel()
	if err := h.Commit(ctx, 1, ""); err == nil || errors.Is(err, source.ErrOwnershipLost) {
		t.Errorf("without a coordinator: %v", err)
	}
}

// Right after a broker's start there is no coordinator. The group is joined once there is one.
func TestCoordinatorNotAvailableAtFirst(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	seen := script(c, kmsg.FindCoordinator, 3, func(_ kmsg.Request, resp *kmsg.FindCoordinatorResponse) {
		resp.ErrorCode = int16(kafka.GroupCoordinatorNotAvailable)
		resp.NodeID = -1
	})
	join(t, quick(c.ListenAddrs(), topic)).Holds(topic, 0)
	if seen.Load() != 3 {
		t.Errorf("the coordinator was looked for %d times in vain", seen.Load())
	}
}

// The group and the reader wait for a broker that goes away and comes back.
func TestBrokerRestart(t *testing.T) {
	t.Parallel()
	k, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindEmbedded, Own: true, AllowFake: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Stop() })
	topic := kafkatest.Topic(t, k.Brokers, 1, nil)
	kafkatest.Write(t, kafkatest.Client(t, k.Brokers), topic, "before")
	m := join(t, quick(k.Brokers, topic))
	m.Holds(topic, 0).ReadTo(t, 0, 1)
	if err := k.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.HoldsExactly(0)
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := m.Holds(topic, 0)
	kafkatest.Write(t, kafkatest.Client(t, k.Brokers), topic, "after")
	if got := values(h.ReadTo(t, 1, 2)); !slices.Equal(got, []string{"after"}) {
		t.Errorf("read %v", got)
	}
}
