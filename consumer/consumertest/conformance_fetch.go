package consumertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// The offset at a time is that of the first record that is as young, and otherwise the log's end.
func offsetAtATime(t *testing.T, h Harness) {
	topic, x := one(t, h)
	at := time.UnixMilli(1_700_000_000_123).UTC()
	want := func(of time.Time, want int64) {
		t.Helper()
		if got, err := x.OffsetAt(x.Ctx, of); err != nil || got != want {
			t.Errorf("offset at %v is %d, want %d: %v", of, got, want, err)
		}
	}
	want(at, 0)
	for _, d := range []time.Duration{0, time.Second, 3 * time.Second} {
		h.Produce(t, topic, 0, &consumer.Message{Value: []byte("v"), Time: at.Add(d)})
	}
	want(at.Add(-time.Hour), 0)
	want(at, 0)
	want(at.Add(time.Millisecond), 1)
	want(at.Add(time.Second+time.Microsecond), 1)
	want(at.Add(2*time.Second), 2)
	want(at.Add(3*time.Second), 2)
	want(at.Add(time.Hour), 3)
}

// Records are read as they were written, in order, from any offset. For example, nil differs from
// empty, headers keep their order and may repeat, and times are kept.
func fetchInOrder(t *testing.T, h Harness) {
	topic := h.Topic(t, 2, 0)
	at := time.UnixMilli(1_700_000_000_123).UTC()
	want := []*consumer.Message{
		{
			Key:     []byte("k"),
			Value:   []byte("v"),
			Time:    at,
			Headers: []consumer.Header{{Name: "a", Value: []byte("1")}, {Name: "a", Value: []byte{}}, {Name: ""}},
		},
		{Time: at.Add(-time.Hour)},
		{Key: []byte{}, Value: []byte{}, Time: at.Add(time.Hour)},
	}
	h.Produce(t, topic, 1, want...)
	x := memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 1)
	got := x.ReadTo(t, 0, 3)
	if len(got) != 3 {
		t.Fatalf("%d messages, want 3", len(got))
	}
	for i, m := range got {
		w := want[i]
		there := m.Topic == topic && m.Partition == 1 && m.Offset == int64(i)
		if !there || !m.Time.Equal(w.Time) {
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
		f := x.MustFetch(t, from)
		begins := len(f.Messages) > 0 && f.Messages[0].Offset == from
		if !begins || f.Next <= from || f.HighWatermark != 3 {
			t.Errorf("fetch at %d: %+v", from, f)
		}
	}
	// At the log's end Fetch returns nothing, without an error.
	end := x.MustFetch(t, 3)
	ends := end.Next == 3 && end.HighWatermark == 3 && end.LastStable == 3
	if len(end.Messages) != 0 || !ends {
		t.Errorf("at the log's end: %+v", end)
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
	size := (&consumer.Message{
		Value:   []byte("0-00"),
		Headers: []consumer.Header{{Name: "pad", Value: make([]byte, 600)}},
	}).Size()
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
			if n := len(f.Messages); n > 1 { // how many headers the next record has is not known before it is read
				total -= f.Messages[n-1].Size() - (&consumer.Message{
					Key:   f.Messages[n-1].Key,
					Value: f.Messages[n-1].Value,
				}).Size() - bytesOf(
					f.Messages[n-1].Headers,
				)
			}
			switch n := len(f.Messages); {
			case n == 0, f.Next <= from:
				t.Fatalf("of %d bytes at most from %d: %+v", most, from, f)
			case n > 1 && total > most:
				t.Errorf("of %d bytes at most from %d: %d messages of %d", most, from, n, total)
			case f.Messages[0].Offset != from, f.Messages[n-1].Offset != f.Next-1:
				t.Errorf("from %d: messages %d to %d, and Next is %d",
					from, f.Messages[0].Offset, f.Messages[n-1].Offset, f.Next)
			case f.HighWatermark != int64(len(want)), f.LastStable != f.HighWatermark:
				t.Errorf("from %d: the log ends at %d and %d", from, f.LastStable, f.HighWatermark)
			}
			got = append(got, valuesOf(f.Messages)...)
			from = f.Next
			if len(got)%3 == 0 && most > 1 {
				// Like a consumer that compares a record that it has read with the log.
				_ = x.MustFetch(t, 7)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %d bytes at most: read %q, want %q", most, got, want)
		}
	}
}

// bytesOf is how long the names and values of headers are.
func bytesOf(headers []consumer.Header) (n int) {
	for _, h := range headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
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
	// A coordinator writes a transaction's marker after it has reported the abort. Until then the
	// log ends before the transaction, or before the marker.
	_, end := x.MustBounds(t)
	for late := time.After(time.Minute); end <= 4; _, end = x.MustBounds(t) {
		select {
		case <-late:
			t.Fatalf("the log ends at %d: nothing was left out", end)
		case <-time.After(10 * time.Millisecond):
		}
	}
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
	held := x.MustFetch(t, 1)
	waits := held.Next == 1 && held.HighWatermark == 3 && held.LastStable == 1
	if len(held.Messages) != 0 || !waits {
		t.Errorf("behind an open transaction: %+v", held)
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
		want := source.OutOfRangeError{Offset: from, Start: 4, End: 10}
		_, err := x.Fetch(x.Ctx, from, memlog.FetchBytes)
		var out *source.OutOfRangeError
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
	verify := func(at int64, epoch int32, want *source.OutOfRangeError) {
		t.Helper()
		err := x.Verify(x.Ctx, at, epoch)
		var out *source.OutOfRangeError
		errors.As(err, &out)
		same := out != nil && want != nil && *out == *want
		if (err == nil) != (want == nil) || err != nil && !same {
			t.Errorf("offset %d, read under epoch %d: %v, want %v", at, epoch, err, want)
		}
	}
	verify(0, -1, nil)
	h.Produce(t, topic, 0, values("a", 5)...)
	f := x.MustFetch(t, 0)
	if f.Next != 5 || f.Messages[0].LeaderEpoch > f.LeaderEpoch {
		t.Fatalf("fetched up to %d in epoch %d, the first message in epoch %d",
			f.Next, f.LeaderEpoch, f.Messages[0].LeaderEpoch)
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
	cut := &source.OutOfRangeError{Offset: end, Start: 0, End: end - 2}
	if got, err := x.Fetch(x.Ctx, end, 1<<20); err == nil || !strings.Contains(err.Error(), cut.Error()) {
		t.Errorf("fetched behind what was cut off: %v, %v", valuesOf(got.Messages), err)
	}
	verify(end, f.LeaderEpoch, cut)
	verify(end-2, f.LeaderEpoch, nil)
	// A member that has read nothing.
	x = memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 0)
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
		if f, err := x.Fetch(x.Ctx, 5, memlog.FetchBytes); !errors.Is(err, source.ErrIncarnation) {
			t.Fatalf("fetch from the new incarnation: %v, %v", valuesOf(f.Messages), err)
		}
	}
	id, err := x.Identity(x.Ctx)
	if err != nil || id.TopicID == x.ID.TopicID || id.ClusterID != x.ID.ClusterID {
		t.Errorf("identity is %+v after %+v, %v", id, x.ID, err)
	}
	wantValues(t, x.ReadTo(t, 0, 8), valuesOf(values("new", 8))...)
}

// Retained is the record's time plus the topic's retention. With or without one, an offset that the
// log does not hold is an error.
func retained(t *testing.T, h Harness) {
	at := time.UnixMilli(time.Now().Add(-time.Hour).UnixMilli()).UTC()
	for retention, want := range map[time.Duration]time.Time{24 * time.Hour: at.Add(24 * time.Hour), 0: {}} {
		if h.KeepsNeeded {
			want = time.Time{}
		}
		topic := h.Topic(t, 1, retention)
		h.Produce(t, topic, 0, &consumer.Message{Value: []byte("v"), Time: at})
		x := memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic)).Holds(topic, 0)
		if until, err := x.Retained(x.Ctx, 0); !until.Equal(want) || err != nil {
			t.Errorf("with a retention of %v: %v, %v; want %v", retention, until, err, want)
		}
		if until, err := x.Retained(x.Ctx, 1); !until.IsZero() || err != nil {
			t.Errorf("at the log's end: %v, %v", until, err)
		}
		var out *source.OutOfRangeError
		beyond := source.OutOfRangeError{Offset: 2, Start: 0, End: 1}
		if _, err := x.Retained(x.Ctx, 2); !errors.As(err, &out) || *out != beyond {
			t.Errorf("beyond the log's end, with a retention of %v: %v", retention, err)
		}
		wantValues(t, x.ReadTo(t, 0, 1), "v") // asking has moved nothing
	}
}
