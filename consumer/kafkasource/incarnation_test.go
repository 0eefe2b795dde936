package kafkasource_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/devenv/kafkatest"
)

// recreate deletes a topic and creates it again, and returns when the new one takes records.
func recreate(t *testing.T, adm *kadm.Client, topic string) {
	t.Helper()
	before, err := adm.ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic's new incarnation", func() bool {
		_, err := adm.CreateTopic(t.Context(), 1, 1, nil, topic)
		return err == nil
	})
	eventually(t, "its leader", func() bool {
		after, err := adm.ListTopics(t.Context(), topic)
		ends, err2 := adm.ListEndOffsets(t.Context(), topic)
		return err == nil && err2 == nil && ends.Error() == nil && len(ends[topic]) == 1 && after[topic].ID != before[topic].ID
	})
}

// The case of F4: five records are read; the topic is deleted, created again and written to beyond the position, all between two
// fetches. Fetched by name, the first five records of the new topic would be skipped without an error.
func TestTopicRecreatedBetweenFetches(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		write(t, producer(t, brokers), topic, numbered("old", 5)...)
		h := join(t, quick(brokers, topic)).holds(topic, 0)
		h.readTo(t, 0, 5)
		recreate(t, admin(t, brokers), topic)
		write(t, producer(t, brokers), topic, numbered("new", 8)...)

		_, err := h.Fetch(h.ctx, 5)
		if !errors.Is(err, consumer.ErrIncarnation) {
			t.Fatalf("fetch from the new incarnation: %v", err)
		}
		if _, _, err := h.Bounds(h.ctx); err != nil && !errors.Is(err, consumer.ErrIncarnation) {
			t.Errorf("bounds: %v", err)
		}
		if _, err := h.Fetch(h.ctx, 5); !errors.Is(err, consumer.ErrIncarnation) {
			t.Errorf("and once more: %v", err)
		}
		// Identity, asked again, names the new one, and from then on it is read.
		id, err := h.Identity(h.ctx)
		if err != nil || id.TopicID == h.id.TopicID || id.ClusterID != h.id.ClusterID {
			t.Errorf("identity is %+v after %+v, %v", id, h.id, err)
		}
		if got := values(h.readTo(t, 0, 8)); !slices.Equal(got, numbered("new", 8)) {
			t.Errorf("read %v", got)
		}
	})
}

// Brokers from 2.8 to 3.0 have topic ids, but fetch by name: the id is looked at when the last fetch is more than a second ago.
func TestTopicRecreatedFetchingByName(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(kversion.V2_8_0())).ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	write(t, producer(t, brokers), topic, numbered("old", 5)...)
	h := join(t, quick(brokers, topic)).holds(topic, 0)
	if h.id.TopicID == [16]byte{} {
		t.Fatal("this broker tells topic ids")
	}
	h.readTo(t, 0, 5)
	read := time.Now()
	recreate(t, admin(t, brokers), topic)
	write(t, producer(t, brokers), topic, numbered("new", 8)...)
	eventually(t, "a second to pass", func() bool { return time.Since(read) > 1100*time.Millisecond })
	if f, err := h.Fetch(h.ctx, 5); !errors.Is(err, consumer.ErrIncarnation) {
		t.Errorf("fetch from the new incarnation: %v, %v", f.Messages, err)
	}
}

// Older brokers have none: the topic id is zero, everything else works.
func TestBrokerWithoutTopicIDs(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]*kversion.Versions{"2.7": kversion.V2_7_0(), "2.1": kversion.V2_1_0(), "1.0": kversion.V1_0_0()} {
		brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(v)).ListenAddrs()
		topic := kafkatest.Topic(t, brokers, 1, nil)
		write(t, producer(t, brokers), topic, numbered("v", 5)...)
		h := join(t, quick(brokers, topic)).holds(topic, 0)
		if h.id.TopicID != [16]byte{} || h.id.ClusterID == "" {
			t.Errorf("%s: identity is %+v", name, h.id)
		}
		if got := values(h.readTo(t, 0, 5)); !slices.Equal(got, numbered("v", 5)) {
			t.Errorf("%s: read %v", name, got)
		}
		if err := h.Commit(h.ctx, 5, "m"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if offset, metadata, err := h.Committed(h.ctx); offset != 5 || metadata != "m" || err != nil {
			t.Errorf("%s: committed %d %q %v", name, offset, metadata, err)
		}
	}
}

// And those without transactions are refused, rather than read wrong.
func TestBrokerTooOld(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(kversion.V0_10_2())).ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	wantAll(t, runFails(t, quick(brokers, topic)), "Unsupported Version", brokers[0])
}

// A topic that is gone is an error, not an empty fetch, and no reason for Run to end.
func TestTopicDeleted(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		write(t, producer(t, brokers), topic, numbered("old", 5)...)
		m := join(t, quick(brokers, topic))
		h := m.holds(topic, 0)
		h.readTo(t, 0, 5)
		adm := admin(t, brokers)
		if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		_, err := h.Fetch(h.ctx, 5)
		if err == nil || errors.Is(err, consumer.ErrIncarnation) || !strings.Contains(err.Error(), topic) {
			t.Errorf("fetch from a deleted topic: %v", err)
		}
	})
}
