// Package consumertest has the test that each [consumer.Source] must pass: [Conformance].
package consumertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// Harness gives Conformance a cluster and the Source under test. Its functions fail the test by
// themselves. Topics must be ready for use when the function returns. A field may be nil only if
// its comment says so; the cases that need it are then skipped with a message.
type Harness struct {
	// Topic makes an empty topic with a new name and returns the name. Retention by time may delete
	// its records after the given time; 0 means never. Required.
	Topic func(t testing.TB, partitions int, retention time.Duration) string
	// Produce appends records to a partition, in one batch if the source has batches. Key, Value,
	// Headers and Time are set. Required.
	Produce func(t testing.TB, topic string, partition int32, msgs ...*consumer.Message)
	// Begin appends records in a transaction and returns the function that ends it. A transaction
	// takes one more offset for its end. Nil if the source has no transactions.
	Begin func(t testing.TB, topic string, partition int32, values ...string) (end func(commit bool))
	// Skip leaves at least one offset without a record. It may be nil if Begin is set: aborted
	// transactions leave such offsets.
	Skip func(t testing.TB, topic string, partition int32)
	// DeleteBefore deletes the records below an offset, like retention. Required.
	DeleteBefore func(t testing.TB, topic string, partition int32, offset int64)
	// Elect makes another leader of a partition, which has all records of the previous one. Nil if
	// the source has no leaders.
	Elect func(t testing.TB, topic string, partition int32)
	// Truncate makes another leader, which has no records from an offset on. Nil if the source has
	// no leaders.
	Truncate func(t testing.TB, topic string, partition int32, offset int64)
	// Recreate deletes a topic and makes it again, empty, with one partition. Required.
	Recreate func(t testing.TB, topic string)
	// Identity returns a topic's cluster, id and number of partitions, as the cluster reports them.
	// Required.
	Identity func(t testing.TB, topic string) source.Identity
	// Source makes a new source, which is a member of the group while it runs. It must notice other
	// members within about a second. After the given time it must be replaced if it does not give a
	// partition up. Required.
	Source func(t testing.TB, group string, rebalance time.Duration, topics ...string) consumer.Source
	// Shares is true if members share the partitions. Otherwise the member that joined last has
	// them all. Defaults to false.
	Shares bool
	// KeepsNeeded is true if retention deletes only records that every consumer has passed, so that
	// Retained knows no bound. Defaults to false.
	KeepsNeeded bool
	// Missing makes a source for a topic that does not exist. Nil if there is no such case.
	Missing func(t testing.TB) (s consumer.Source, topic string)
	// Unreachable makes a source for an address at which no process listens. Nil if there is no
	// such case.
	Unreachable func(t testing.TB) (s consumer.Source, address string)
}

// Conformance checks that a Source keeps the contract of package consumer, sentence by sentence.
// Run it as a test of a new source, against every kind of broker that the source supports:
//
//	func TestConformance(t *testing.T) {
//		consumertest.Conformance(t, consumertest.Harness{...})
//	}
//
// The subtests run one after the other, on topics and groups of their own. Against a Kafka broker
// they take about 20 seconds.
func Conformance(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"RunReturnsNilAndLeavesNothing", runReturnsNil},
		{"Identity", identity},
		{"CommittedOffsets", committedOffsets},
		{"FetchInOrder", fetchInOrder},
		{"FetchIsBounded", fetchIsBounded},
		{"HolesArePassedOver", holesArePassedOver},
		{"AbortedRecordsArePassedOver", abortedArePassedOver},
		{"OpenTransactionHoldsBack", openTransactionHoldsBack},
		{"OutOfRange", outOfRange},
		{"OffsetAtATime", offsetAtATime},
		{"LogCutOff", logCutOff},
		{"Incarnation", incarnation},
		{"Retained", retained},
		{"ReadyAsMember", readyAsMember},
		{"MembersShare", membersShare},
		{"HandedOverOnlyAfterOwnReturned", handedOverAfterReturn},
		{"CommitIsFenced", commitIsFenced},
		{"OwnershipLostJoinsAnew", ownershipLostJoinsAnew},
		{"OwnErrorEndsRun", ownErrorEndsRun},
		{"TopicMissing", topicMissing},
		{"Unreachable", unreachable},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
}

// groupOf returns a name that no other test uses.
func groupOf(topic string) string { return "group-" + topic }

// rebalance is long enough for what members of the suite do before they give a partition up.
const rebalance = 20 * time.Second

// one makes a topic with one partition, and a member that holds it.
func one(t *testing.T, h Harness) (string, *memlog.Held) {
	t.Helper()
	topic := h.Topic(t, 1, 0)
	return topic, memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 0)
}

func values(prefix string, n int) []*consumer.Message {
	msgs := make([]*consumer.Message, n)
	for i := range msgs {
		msgs[i] = &consumer.Message{Value: fmt.Appendf(nil, "%s%d", prefix, i), Time: time.UnixMilli(1_700_000_000_000)}
	}
	return msgs
}

func valuesOf(msgs []*consumer.Message) []string {
	out := make([]string, len(msgs))
	for i, m := range msgs {
		out[i] = string(m.Value)
	}
	return out
}

func wantValues(t *testing.T, got []*consumer.Message, want ...string) {
	t.Helper()
	if !slices.Equal(valuesOf(got), want) {
		t.Errorf("read %q, want %q", valuesOf(got), want)
	}
}
