package kafkasource_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// Brokers from 2.8 to 3.0 have topic ids but fetch by name. The source compares the id if the last
// fetch is more than a second ago.
func TestTopicRecreatedFetchingByName(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(kversion.V2_8_0())).ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	kafkatest.Write(t, kafkatest.Client(t, brokers), topic, numbered("old", 5)...)
	h := join(t, quick(brokers, topic)).Holds(topic, 0)
	if h.ID.TopicID == [16]byte{} {
		t.Fatal("this broker tells topic ids")
	}
	h.ReadTo(t, 0, 5)
	read := time.Now()
	kafkatest.Recreate(t, kafkatest.Admin(t, brokers), topic)
	kafkatest.Write(t, kafkatest.Client(t, brokers), topic, numbered("new", 8)...)
	eventually(t, "a second to pass", func() bool { return time.Since(read) > 1100*time.Millisecond })
	if f, err := h.Fetch(h.Ctx, 5, 1<<20); !errors.Is(err, source.ErrIncarnation) {
		t.Errorf("fetch from the new incarnation: %v, %v", f.Messages, err)
	}
}

// Older brokers have no topic ids: the id is zero, and everything else works.
func TestBrokerWithoutTopicIDs(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]*kversion.Versions{"2.7": kversion.V2_7_0(), "2.1": kversion.V2_1_0(), "1.0": kversion.V1_0_0()} {
		brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(v)).ListenAddrs()
		topic := kafkatest.Topic(t, brokers, 1, nil)
		kafkatest.Write(t, kafkatest.Client(t, brokers), topic, numbered("v", 5)...)
		h := join(t, quick(brokers, topic)).Holds(topic, 0)
		if h.ID.TopicID != [16]byte{} || h.ID.ClusterID == "" {
			t.Errorf("%s: identity is %+v", name, h.ID)
		}
		if got := values(h.ReadTo(t, 0, 5)); !slices.Equal(got, numbered("v", 5)) {
			t.Errorf("%s: read %v", name, got)
		}
		if err := h.Commit(h.Ctx, 5, "m"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if offset, metadata, err := h.Committed(h.Ctx); offset != 5 || metadata != "m" || err != nil {
			t.Errorf("%s: committed %d %q %v", name, offset, metadata, err)
		}
	}
}

// Brokers without transactions are refused, because they would be read wrong.
func TestBrokerTooOld(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(kversion.V0_10_2())).ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(quick(brokers, topic))), "Unsupported Version", brokers[0])
}

// A deleted topic is an error, not an empty fetch, and does not end Run.
func TestTopicDeleted(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		kafkatest.Write(t, kafkatest.Client(t, brokers), topic, numbered("old", 5)...)
		m := join(t, quick(brokers, topic))
		h := m.Holds(topic, 0)
		h.ReadTo(t, 0, 5)
		adm := kafkatest.Admin(t, brokers)
		if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		_, err := h.Fetch(h.Ctx, 5, 1<<20)
		if err == nil || errors.Is(err, source.ErrIncarnation) || !strings.Contains(err.Error(), topic) {
			t.Errorf("fetch from a deleted topic: %v", err)
		}
	})
}
