package consumertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// Harness gives Conformance a cluster and the Source under test. Its functions fail the test by
// themselves. Topics that it makes must be ready for use when the function returns. A field may be
// nil only if its comment says so; the cases that need it are then skipped with a message.
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
	// Identity returns what the cluster reports about a topic: cluster, id, number of partitions.
	// Required.
	Identity func(t testing.TB, topic string) consumer.Identity
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

// patience bounds every wait of the suite.
const patience = time.Minute

// Conformance checks that a Source keeps the contract of package consumer, sentence by sentence.
// The author of a source runs it as a test, against every kind of broker that the source is for:
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
func one(t *testing.T, h Harness) (string, *Held) {
	t.Helper()
	topic := h.Topic(t, 1, 0)
	return topic, Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 0)
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

// Run returns nil once ctx is done and every own has returned, and leaves nothing running.
func runReturnsNil(t *testing.T, h Harness) {
	topic := h.Topic(t, 3, 0)
	s := h.Source(t, groupOf(topic), rebalance, topic)
	if s.Group() != groupOf(topic) {
		t.Errorf("Group is %q, want %q", s.Group(), groupOf(topic))
	}
	before := runtime.NumGoroutine()
	m := NewMember(t)
	m.Drain = func(x *Held) {
		// Work in progress is finished and committed before Run returns.
		ctx := context.WithoutCancel(x.Ctx)
		if _, err := x.Fetch(ctx, 0, fetchBytes); err != nil {
			t.Errorf("fetch after the end of own's context: %v", err)
		}
		if err := x.Commit(ctx, 0, "bye"); err != nil {
			t.Errorf("commit after the end of own's context: %v", err)
		}
	}
	m.Start(s)
	m.HoldsExactly(3)
	if err := m.Leave(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	m.mu.Lock()
	left := len(m.has)
	m.mu.Unlock()
	if left != 0 {
		t.Errorf("Run returned while %d partitions were held", left)
	}
	eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Source(t, groupOf(topic), rebalance, topic).Run(ctx, func(context.Context, consumer.Partition) error { return nil }); err != nil {
		t.Errorf("with a context that is done Run returned %v", err)
	}
}

// Identity identifies the partition and the topic's incarnation, and has the number of partitions.
func identity(t *testing.T, h Harness) {
	topic := h.Topic(t, 3, 0)
	want := h.Identity(t, topic)
	m := Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	for i := range int32(3) {
		want.Topic, want.Partition, want.Partitions = topic, i, 3
		x := m.Holds(topic, i)
		if x.ID != want || x.ID.ClusterID == "" {
			t.Errorf("identity is %+v, want %+v", x.ID, want)
		}
	}
}

// Committed returns what Commit committed, or -1 before any commit. Both may run beside a Fetch.
func committedOffsets(t *testing.T, h Harness) {
	topic, x := one(t, h)
	if offset, metadata, err := x.Committed(x.Ctx); offset != -1 || metadata != "" || err != nil {
		t.Errorf("before any commit: %d %q %v", offset, metadata, err)
	}
	for _, c := range []struct {
		offset   int64
		metadata string
	}{{5, "onlyonce/1 stock 5"}, {9, ""}, {7, "back, with ünicode"}} {
		if err := x.Commit(x.Ctx, c.offset, c.metadata); err != nil {
			t.Fatal(err)
		}
		if offset, metadata, err := x.Committed(x.Ctx); offset != c.offset || metadata != c.metadata || err != nil {
			t.Errorf("committed %d %q, found %d %q %v", c.offset, c.metadata, offset, metadata, err)
		}
	}
	fetched := make(chan error, 1)
	go func() {
		_, err := x.Fetch(x.Ctx, 0, fetchBytes)
		fetched <- err
	}()
	if err := x.Commit(x.Ctx, 11, "x"); err != nil {
		t.Error(err)
	}
	if err := <-fetched; err != nil {
		t.Error(err)
	}
	// Another group has offsets of its own.
	other := Join(t, h.Source(t, groupOf(topic)+"-other", rebalance, topic)).Holds(topic, 0)
	if offset, _, err := other.Committed(other.Ctx); offset != -1 || err != nil {
		t.Errorf("in another group: %d, %v", offset, err)
	}
}

// Records are read as they were written, in order, from any offset. For example, nil differs from
// empty, headers keep their order and may repeat, and times are kept.
func fetchInOrder(t *testing.T, h Harness) {
	topic := h.Topic(t, 2, 0)
	at := time.UnixMilli(1_700_000_000_123).UTC()
	want := []*consumer.Message{
		{Key: []byte("k"), Value: []byte("v"), Time: at, Headers: []consumer.Header{{Name: "a", Value: []byte("1")}, {Name: "a", Value: []byte{}}, {Name: ""}}},
		{Time: at.Add(-time.Hour)},
		{Key: []byte{}, Value: []byte{}, Time: at.Add(time.Hour)},
	}
	h.Produce(t, topic, 1, want...)
	x := Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 1)
	got := x.ReadTo(t, 0, 3)
	if len(got) != 3 {
		t.Fatalf("%d messages, want 3", len(got))
	}
	for i, m := range got {
		w := want[i]
		if m.Topic != topic || m.Partition != 1 || m.Offset != int64(i) || !m.Time.Equal(w.Time) {
			t.Errorf("message %d is %+v", i, m)
		}
		same := len(m.Headers) == len(w.Headers) && sameBytes(m.Key, w.Key) && sameBytes(m.Value, w.Value)
		for j := range m.Headers {
			same = same && m.Headers[j].Name == w.Headers[j].Name && sameBytes(m.Headers[j].Value, w.Headers[j].Value)
		}
		if !same {
			t.Errorf("message %d is %#v, want %#v", i, m, w)
		}
	}
	for from := range int64(3) {
		if f := x.MustFetch(t, from); len(f.Messages) == 0 || f.Messages[0].Offset != from || f.Next <= from || f.HighWatermark != 3 {
			t.Errorf("fetch at %d: %+v", from, f)
		}
	}
	// At the log's end Fetch returns nothing, without an error.
	if f := x.MustFetch(t, 3); len(f.Messages) != 0 || f.Next != 3 || f.HighWatermark != 3 || f.LastStable != 3 {
		t.Errorf("at the log's end: %+v", f)
	}
	if start, end := x.MustBounds(t); start != 0 || end != 3 {
		t.Errorf("bounds are %d and %d", start, end)
	}
	// A record that is written while a fetch waits is read by it or by the next.
	h.Produce(t, topic, 1, values("late", 1)...)
	wantValues(t, x.ReadTo(t, 3, 4), "late0")
}

func sameBytes(a, b []byte) bool { return string(a) == string(b) && (a == nil) == (b == nil) }

// A fetch returns at most the requested bytes, and at least one message, however the log is cut
// into batches. Fetches that continue where the previous one ended return every message once, even
// if a fetch in between read from another offset.
func fetchIsBounded(t *testing.T, h Harness) {
	topic, x := one(t, h)
	var want []string
	for i := range 3 { // each of them may become a batch
		msgs := values(fmt.Sprintf("%d-", i), 40)
		for j, m := range msgs {
			m.Headers = []consumer.Header{{Name: "pad", Value: bytes.Repeat([]byte("x"), 100*(j%7))}}
		}
		want = append(want, valuesOf(msgs)...)
		h.Produce(t, topic, 0, msgs...)
	}
	size := (&consumer.Message{Value: []byte("0-00"), Headers: []consumer.Header{{Name: "pad", Value: make([]byte, 600)}}}).Size()
	for _, most := range []int{1, size, 5 * size, 1000 * size} {
		var got []string
		for from := int64(0); from < int64(len(want)); {
			f, err := x.Fetch(x.Ctx, from, most)
			if err != nil {
				t.Fatal(err)
			}
			total := 0
			for _, m := range f.Messages {
				total += m.Size()
			}
			switch n := len(f.Messages); {
			case n == 0, f.Next <= from:
				t.Fatalf("of %d bytes at most from %d: %+v", most, from, f)
			case n > 1 && total > most:
				t.Errorf("of %d bytes at most from %d: %d messages of %d", most, from, n, total)
			case f.Messages[0].Offset != from, f.Messages[n-1].Offset != f.Next-1:
				t.Errorf("from %d: messages %d to %d, and Next is %d", from, f.Messages[0].Offset, f.Messages[n-1].Offset, f.Next)
			case f.HighWatermark != int64(len(want)), f.LastStable != f.HighWatermark:
				t.Errorf("from %d: the log ends at %d and %d", from, f.LastStable, f.HighWatermark)
			}
			got = append(got, valuesOf(f.Messages)...)
			if from = f.Next; len(got)%3 == 0 && most > 1 {
				// Like a consumer that compares a record that it has read with the log.
				_ = x.MustFetch(t, 7)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %d bytes at most: read %q, want %q", most, got, want)
		}
	}
}

// Next passes over offsets that hold nothing, also at the end of the log.
func holesArePassedOver(t *testing.T, h Harness) {
	skip := h.Skip
	if skip == nil {
		skip = func(t testing.TB, topic string, partition int32) { h.Begin(t, topic, partition, "never")(false) }
	}
	topic, x := one(t, h)
	h.Produce(t, topic, 0, values("a", 2)...)
	skip(t, topic, 0)
	h.Produce(t, topic, 0, values("b", 1)...)
	skip(t, topic, 0)
	_, end := x.MustBounds(t)
	if end <= 4 {
		t.Fatalf("the log ends at %d: nothing was left out", end)
	}
	// A coordinator writes a transaction's marker after it has reported the abort. Until then the
	// log ends before the marker.
	for f := x.MustFetch(t, end); f.Next > end; f = x.MustFetch(t, end) {
		end = f.Next
	}
	wantValues(t, x.ReadTo(t, 0, end), "a0", "a1", "b0")
	for from := range end {
		for _, m := range x.ReadTo(t, from, end) {
			if m.Offset < from {
				t.Errorf("from %d: offset %d", from, m.Offset)
			}
		}
	}
}

// Records of an aborted transaction are not returned; records of a committed one are.
func abortedArePassedOver(t *testing.T, h Harness) {
	if h.Begin == nil {
		t.Skip("this source has no transactions")
	}
	topic, x := one(t, h)
	h.Begin(t, topic, 0, "a", "b")(false)
	if f := x.MustFetch(t, 0); len(f.Messages) != 0 || f.Next != 3 || f.HighWatermark != 3 {
		t.Errorf("fetched %+v, want the position behind the marker", f)
	}
	h.Begin(t, topic, 0, "c")(true)
	h.Produce(t, topic, 0, values("d", 1)...)
	h.Begin(t, topic, 0, "e")(false)
	wantValues(t, x.ReadTo(t, 0, 8), "c", "d0")
}

// While a transaction is open, no later record is read, not even one written without a transaction.
// When it ends, all are read.
func openTransactionHoldsBack(t *testing.T, h Harness) {
	if h.Begin == nil {
		t.Skip("this source has no transactions")
	}
	topic, x := one(t, h)
	h.Produce(t, topic, 0, values("before", 1)...)
	end := h.Begin(t, topic, 0, "inside")
	h.Produce(t, topic, 0, values("behind", 1)...)
	wantValues(t, x.ReadTo(t, 0, 1), "before0")
	if f := x.MustFetch(t, 1); len(f.Messages) != 0 || f.Next != 1 || f.HighWatermark != 3 || f.LastStable != 1 {
		t.Errorf("behind an open transaction: %+v", f)
	}
	if _, stable := x.MustBounds(t); stable != 1 {
		t.Errorf("the log is stable up to %d, want 1", stable)
	}
	end(true)
	wantValues(t, x.ReadTo(t, 1, 4), "inside", "behind0")
}

// If the log does not hold the offset, Fetch returns the log's real bounds, below and above.
func outOfRange(t *testing.T, h Harness) {
	topic, x := one(t, h)
	h.Produce(t, topic, 0, values("v", 10)...)
	x.ReadTo(t, 0, 10)
	h.DeleteBefore(t, topic, 0, 4)
	for _, from := range []int64{0, 3, 11, 1000} {
		want := consumer.OutOfRangeError{Offset: from, Start: 4, End: 10}
		_, err := x.Fetch(x.Ctx, from, fetchBytes)
		var out *consumer.OutOfRangeError
		if !errors.As(err, &out) || *out != want {
			t.Errorf("fetch at %d: %v", from, err)
		}
		if _, err := x.Retained(x.Ctx, from); !errors.As(err, &out) || *out != want {
			t.Errorf("how long %d is retained: %v", from, err)
		}
	}
	if start, end := x.MustBounds(t); start != 4 || end != 10 {
		t.Errorf("bounds are %d and %d", start, end)
	}
	wantValues(t, x.ReadTo(t, 4, 10), valuesOf(values("v", 10))[4:]...)
}

// Records up to a position are found while they exist, whichever broker leads. If the log was cut
// off below the position and other records were written since, both the present reader and a
// process that takes over at that position get an error.
func logCutOff(t *testing.T, h Harness) {
	topic, x := one(t, h)
	verify := func(at int64, epoch int32, want *consumer.OutOfRangeError) {
		t.Helper()
		err := x.Verify(x.Ctx, at, epoch)
		var out *consumer.OutOfRangeError
		if errors.As(err, &out); (err == nil) != (want == nil) || err != nil && (out == nil || *out != *want) {
			t.Errorf("offset %d, read under epoch %d: %v, want %v", at, epoch, err, want)
		}
	}
	verify(0, -1, nil)
	h.Produce(t, topic, 0, values("a", 5)...)
	f := x.MustFetch(t, 0)
	if f.Next != 5 || f.Messages[0].LeaderEpoch > f.LeaderEpoch {
		t.Fatalf("fetched up to %d in epoch %d, the first message in epoch %d", f.Next, f.LeaderEpoch, f.Messages[0].LeaderEpoch)
	}
	b, err := x.Bounds(x.Ctx)
	if err != nil || f.LeaderEpoch > b.LeaderEpoch || (f.LeaderEpoch < 0) != (b.LeaderEpoch < 0) {
		t.Errorf("the leader's epoch is %d, and the log's %d: %v", b.LeaderEpoch, f.LeaderEpoch, err)
	}
	for _, epoch := range []int32{f.LeaderEpoch, b.LeaderEpoch, -1} {
		for at := range int64(6) {
			verify(at, epoch, nil)
		}
	}
	if h.Elect == nil {
		t.Log("this harness cannot have another leader elected")
	} else {
		h.Elect(t, topic, 0)
		verify(5, f.LeaderEpoch, nil)
		h.Produce(t, topic, 0, values("b", 2)...)
		wantValues(t, x.ReadTo(t, 5, 7), "b0", "b1")
		verify(5, f.LeaderEpoch, nil)
		h.Elect(t, topic, 0)
		verify(5, f.LeaderEpoch, nil)
	}
	if h.Truncate == nil {
		t.Log("this harness cannot have a log cut off")
		return
	}
	h.Produce(t, topic, 0, values("c", 3)...)
	_, end := x.MustBounds(t)
	f = x.MustFetch(t, end-3)
	h.Truncate(t, topic, 0, end-2)
	h.Produce(t, topic, 0, values("d", 6)...)
	cut := &consumer.OutOfRangeError{Offset: end, Start: 0, End: end - 2}
	if got, err := x.Fetch(x.Ctx, end, 1<<20); err == nil || !strings.Contains(err.Error(), cut.Error()) {
		t.Errorf("fetched behind what was cut off: %v, %v", valuesOf(got.Messages), err)
	}
	verify(end, f.LeaderEpoch, cut)
	verify(end-2, f.LeaderEpoch, nil)
	// A member that has read nothing.
	x = Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 0)
	verify(end, f.LeaderEpoch, cut)
	if got, err := x.Fetch(x.Ctx, end, 1<<20); err == nil || !strings.Contains(err.Error(), cut.Error()) {
		t.Errorf("fetched behind what was cut off, after the position was refused: %v, %v", valuesOf(got.Messages), err)
	}
	verify(end-2, f.LeaderEpoch, nil)
	wantValues(t, x.ReadTo(t, end-2, end+4), valuesOf(values("d", 6))...)
	h.DeleteBefore(t, topic, 0, end+1)
	verify(end, f.LeaderEpoch, nil) // deleted is not cut off
}

// A topic is deleted, created again and written to beyond the position, all between two fetches,
// and Fetch notices. Identity then returns the new topic, which is read from then on.
func incarnation(t *testing.T, h Harness) {
	topic, x := one(t, h)
	h.Produce(t, topic, 0, values("old", 5)...)
	x.ReadTo(t, 0, 5)
	h.Recreate(t, topic)
	h.Produce(t, topic, 0, values("new", 8)...)
	for range 2 {
		if f, err := x.Fetch(x.Ctx, 5, fetchBytes); !errors.Is(err, consumer.ErrIncarnation) {
			t.Fatalf("fetch from the new incarnation: %v, %v", valuesOf(f.Messages), err)
		}
	}
	id, err := x.Identity(x.Ctx)
	if err != nil || id.TopicID == x.ID.TopicID || id.ClusterID != x.ID.ClusterID {
		t.Errorf("identity is %+v after %+v, %v", id, x.ID, err)
	}
	wantValues(t, x.ReadTo(t, 0, 8), valuesOf(values("new", 8))...)
}

// Retained is the record's time plus the topic's retention.
func retained(t *testing.T, h Harness) {
	at := time.UnixMilli(time.Now().Add(-time.Hour).UnixMilli()).UTC()
	for retention, want := range map[time.Duration]time.Time{24 * time.Hour: at.Add(24 * time.Hour), 0: {}} {
		if h.KeepsNeeded {
			want = time.Time{}
		}
		topic := h.Topic(t, 1, retention)
		h.Produce(t, topic, 0, &consumer.Message{Value: []byte("v"), Time: at})
		x := Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 0)
		if until, err := x.Retained(x.Ctx, 0); !until.Equal(want) || err != nil {
			t.Errorf("with a retention of %v: %v, %v; want %v", retention, until, err, want)
		}
		if until, err := x.Retained(x.Ctx, 1); !until.IsZero() || err != nil {
			t.Errorf("at the log's end: %v, %v", until, err)
		}
		wantValues(t, x.ReadTo(t, 0, 1), "v") // asking has moved nothing
	}
}

// A source with a method Ready returns nil from it once it is a member, and not before.
func readyAsMember(t *testing.T, h Harness) {
	topic := h.Topic(t, 1, 0)
	s := h.Source(t, groupOf(topic), rebalance, topic)
	r, ok := s.(interface{ Ready() error })
	if !ok {
		t.Skip("this source has no Ready")
	}
	if r.Ready() == nil {
		t.Error("Ready before Run")
	}
	m := Join(t, s)
	m.Holds(topic, 0)
	eventually(t, "Ready", func() bool { return r.Ready() == nil })
	if err := m.Leave(); err != nil {
		t.Error(err)
	}
}

// Every partition has exactly one owner. When a member leaves, the others get its partitions.
func membersShare(t *testing.T, h Harness) {
	if !h.Shares {
		t.Skip("members of this source do not share")
	}
	topic := h.Topic(t, 4, 0)
	first := Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	first.HoldsExactly(4)
	second := Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	second.HoldsExactly(2)
	first.HoldsExactly(2)
	all := slices.Sorted(slices.Values(slices.Concat(first.Keys(), second.Keys())))
	if want := []string{Key(topic, 0), Key(topic, 1), Key(topic, 2), Key(topic, 3)}; !slices.Equal(all, want) {
		t.Errorf("together they hold %v", all)
	}
	for _, m := range []*Member{first, second} {
		for _, x := range m.All() {
			if err := x.Commit(x.Ctx, 1, ""); err != nil {
				t.Errorf("commit of an owner: %v", err)
			}
		}
	}
	if err := second.Leave(); err != nil {
		t.Error(err)
	}
	first.HoldsExactly(4)
}

// Run lets a partition go only when own has returned. No other member has it before.
func handedOverAfterReturn(t *testing.T, h Harness) {
	if !h.Shares {
		t.Skip("members of this source do not share")
	}
	topic := h.Topic(t, 2, 0)
	first := NewMember(t)
	first.Drain = func(x *Held) {
		// own works for a while, within the rebalance timeout, and meanwhile no other member has
		// the partition.
		ctx := context.WithoutCancel(x.Ctx)
		for range 3 {
			if _, err := x.Fetch(ctx, 0, fetchBytes); err != nil {
				t.Error(err)
			}
		}
		if err := x.Commit(ctx, 3, "the last"); err != nil {
			t.Errorf("commit of a partition that is being let go: %v", err)
		}
	}
	first.Start(h.Source(t, groupOf(topic), rebalance, topic))
	first.StopAtEnd()
	first.HoldsExactly(2)
	second := NewMember(t)
	second.Taken = func(k string) {
		if first.HoldsNow(k) {
			t.Errorf("%s was handed over while another own had not returned", k)
		}
	}
	second.Start(h.Source(t, groupOf(topic), rebalance, topic))
	second.StopAtEnd()
	second.HoldsExactly(1)
	for _, x := range second.All() {
		if offset, metadata, err := x.Committed(x.Ctx); offset != 3 || metadata != "the last" || err != nil {
			t.Errorf("the next owner finds %d %q %v", offset, metadata, err)
		}
	}
	first.HoldsExactly(1)
}

// A member that does not give a partition up in time is replaced, and its commits are refused from
// then on.
func commitIsFenced(t *testing.T, h Harness) {
	topic := h.Topic(t, 2, 0)
	first := NewMember(t)
	release := make(chan struct{})
	first.Drain = func(*Held) { <-release }
	first.Start(h.Source(t, groupOf(topic), 2*time.Second, topic))
	first.StopAtEnd()
	defer close(release)
	first.HoldsExactly(2)
	stale := map[string]*Held{}
	for _, x := range first.All() {
		stale[Key(topic, x.ID.Partition)] = x
	}
	second := Join(t, h.Source(t, groupOf(topic), 2*time.Second, topic))
	second.Until("a partition", func(has map[string]*Held, _ int) bool { return len(has) > 0 })
	for _, x := range second.All() {
		if err := x.Commit(x.Ctx, 7, "mine"); err != nil {
			t.Errorf("commit of the owner: %v", err)
		}
		old := stale[Key(topic, x.ID.Partition)]
		if err := old.Commit(context.WithoutCancel(old.Ctx), 2, "stale"); !errors.Is(err, consumer.ErrOwnershipLost) {
			t.Errorf("commit of the one before: %v", err)
		}
		if offset, metadata, err := x.Committed(x.Ctx); offset != 7 || metadata != "mine" || err != nil {
			t.Errorf("committed is %d %q, %v", offset, metadata, err)
		}
	}
	for _, x := range stale {
		x.GiveUp(consumer.ErrOwnershipLost) // for a source that does not report who was replaced
	}
}

// After own returned ErrOwnershipLost, the partition comes back only with a new proof of
// membership: a partition handed over before cannot commit.
func ownershipLostJoinsAnew(t *testing.T, h Harness) {
	topic := h.Topic(t, 2, 0)
	m := Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	m.HoldsExactly(2)
	old := m.Holds(topic, 1)
	old.GiveUp(fmt.Errorf("fenced: %w", consumer.ErrOwnershipLost))
	m.Until("the partition again", func(has map[string]*Held, _ int) bool {
		x := has[Key(topic, 1)]
		return x != nil && x != old && len(has) == 2
	})
	if err := old.Commit(context.WithoutCancel(old.Ctx), 1, "stale"); !errors.Is(err, consumer.ErrOwnershipLost) {
		t.Errorf("commit with what was handed over before: %v", err)
	}
	for i := range int32(2) {
		x := m.Holds(topic, i)
		if err := x.Commit(x.Ctx, 1, ""); err != nil {
			t.Errorf("commit of partition %d afterwards: %v", i, err)
		}
	}
}

// Any other error of own ends Run, which returns it when every own has returned.
func ownErrorEndsRun(t *testing.T, h Harness) {
	topic := h.Topic(t, 2, 0)
	boom := errors.New("boom")
	m := NewMember(t)
	m.Start(h.Source(t, groupOf(topic), rebalance, topic))
	m.HoldsExactly(2)
	m.Holds(topic, 0).GiveUp(boom)
	if err := m.Wait(); !errors.Is(err, boom) {
		t.Errorf("Run returned %v", err)
	}
	if left := m.Keys(); len(left) != 0 {
		t.Errorf("Run returned while %v were held", left)
	}
}

func topicMissing(t *testing.T, h Harness) {
	if h.Missing == nil {
		t.Skip("this source cannot name a topic that does not exist")
	}
	s, topic := h.Missing(t)
	wantFailure(t, s, topic)
}

func unreachable(t *testing.T, h Harness) {
	if h.Unreachable == nil {
		t.Skip("this source needs no network")
	}
	s, address := h.Unreachable(t)
	wantFailure(t, s, address)
}

// wantFailure runs a source that must fail before it owns anything, with an error that names what
// is wrong.
func wantFailure(t *testing.T, s consumer.Source, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := s.Run(ctx, func(context.Context, consumer.Partition) error {
		t.Error("a partition was handed over")
		return nil
	})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), name) {
		t.Errorf("Run returned %v, want an error that names %q", err, name)
	}
}
