package consumertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// Run returns nil once ctx is done and every own has returned, and leaves nothing running.
func runReturnsNil(t *testing.T, h Harness) {
	topic := h.Topic(t, 3, 0)
	s := h.Source(t, groupOf(topic), rebalance, topic)
	if s.Group() != groupOf(topic) {
		t.Errorf("Group is %q, want %q", s.Group(), groupOf(topic))
	}
	before := runtime.NumGoroutine()
	m := memlog.NewMember(t)
	m.Drain = func(x *memlog.Held) {
		// Work in progress is finished and committed before Run returns.
		ctx := context.WithoutCancel(x.Ctx)
		if _, err := x.Fetch(ctx, 0, memlog.FetchBytes); err != nil {
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
	if left := len(m.All()); left != 0 {
		t.Errorf("Run returned while %d partitions were held", left)
	}
	memlog.Eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Source(t, groupOf(topic), rebalance, topic).Run(
		ctx,
		func(context.Context, source.Partition[*consumer.Message]) error { return nil },
	); err != nil {
		t.Errorf("with a context that is done Run returned %v", err)
	}
}

// Identity identifies the partition and the topic's incarnation, and has the number of partitions.
func identity(t *testing.T, h Harness) {
	topic := h.Topic(t, 3, 0)
	want := h.Identity(t, topic)
	m := memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	for i := range int32(3) {
		want.Topic = topic
		want.Partition = i
		want.Partitions = 3
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
	// A source that reads its group's metadata sees every commit that has returned, of any member.
	if reader, can := h.Source(t, groupOf(topic), rebalance, topic).(interface {
		GroupMetadata(ctx context.Context) (map[source.TopicPartition]string, error)
	}); can {
		got, err := reader.GroupMetadata(t.Context())
		if want := map[source.TopicPartition]string{{Topic: topic}: "back, with ünicode"}; err != nil ||
			!maps.Equal(got, want) {
			t.Errorf("metadata of the group is %q, %v", got, err)
		}
	}
	fetched := make(chan error, 1)
	go func() {
		_, err := x.Fetch(x.Ctx, 0, memlog.FetchBytes)
		fetched <- err
	}()
	if err := x.Commit(x.Ctx, 11, "x"); err != nil {
		t.Error(err)
	}
	if err := <-fetched; err != nil {
		t.Error(err)
	}
	// Another group has offsets of its own.
	other := memlog.Join(t, h.Source(t, groupOf(topic)+"-other", rebalance, topic)).Holds(topic, 0)
	if offset, _, err := other.Committed(other.Ctx); offset != -1 || err != nil {
		t.Errorf("in another group: %d, %v", offset, err)
	}
}

// Every partition has exactly one owner. When a member leaves, the others get its partitions.
func membersShare(t *testing.T, h Harness) {
	if !h.Shares {
		t.Skip("members of this source do not share")
	}
	topic := h.Topic(t, 4, 0)
	first := memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	first.HoldsExactly(4)
	second := memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	second.HoldsExactly(2)
	first.HoldsExactly(2)
	all := slices.Sorted(slices.Values(slices.Concat(first.Keys(), second.Keys())))
	if want := []string{
		memlog.KeyOf(topic, 0),
		memlog.KeyOf(topic, 1),
		memlog.KeyOf(topic, 2),
		memlog.KeyOf(topic, 3),
	}; !slices.Equal(all, want) {
		t.Errorf("together they hold %v", all)
	}
	for _, m := range []*memlog.Member{first, second} {
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
	first := memlog.NewMember(t)
	first.Drain = func(x *memlog.Held) {
		// own works for a while, within the rebalance timeout, and meanwhile no other member has
		// the partition.
		ctx := context.WithoutCancel(x.Ctx)
		for range 3 {
			if _, err := x.Fetch(ctx, 0, memlog.FetchBytes); err != nil {
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
	second := memlog.NewMember(t)
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
	first := memlog.NewMember(t)
	release := make(chan struct{})
	first.Drain = func(*memlog.Held) { <-release }
	first.Start(h.Source(t, groupOf(topic), 2*time.Second, topic))
	first.StopAtEnd()
	defer close(release)
	first.HoldsExactly(2)
	stale := map[string]*memlog.Held{}
	for _, x := range first.All() {
		stale[memlog.KeyOf(topic, x.ID.Partition)] = x
	}
	second := memlog.Join(t, h.Source(t, groupOf(topic), 2*time.Second, topic))
	second.Until("a partition", func(has map[string]*memlog.Held, _ int) bool { return len(has) > 0 })
	for _, x := range second.All() {
		if err := x.Commit(x.Ctx, 7, "mine"); err != nil {
			t.Errorf("commit of the owner: %v", err)
		}
		old := stale[memlog.KeyOf(topic, x.ID.Partition)]
		if err := old.Commit(context.WithoutCancel(old.Ctx), 2, "stale"); !errors.Is(err, source.ErrOwnershipLost) {
			t.Errorf("commit of the one before: %v", err)
		}
		if offset, metadata, err := x.Committed(x.Ctx); offset != 7 || metadata != "mine" || err != nil {
			t.Errorf("committed is %d %q, %v", offset, metadata, err)
		}
	}
	for _, x := range stale {
		x.GiveUp(source.ErrOwnershipLost) // for a source that does not report who was replaced
	}
}

// After own returned ErrOwnershipLost, the partition comes back only with a new proof of
// membership: a partition handed over before cannot commit.
func ownershipLostJoinsAnew(t *testing.T, h Harness) {
	topic := h.Topic(t, 2, 0)
	m := memlog.Join(t, h.Source(t, groupOf(topic), rebalance, topic))
	m.HoldsExactly(2)
	old := m.Holds(topic, 1)
	old.GiveUp(fmt.Errorf("fenced: %w", source.ErrOwnershipLost))
	m.Until("the partition again", func(has map[string]*memlog.Held, _ int) bool {
		x := has[memlog.KeyOf(topic, 1)]
		return x != nil && x != old && len(has) == 2
	})
	if err := old.Commit(context.WithoutCancel(old.Ctx), 1, "stale"); !errors.Is(err, source.ErrOwnershipLost) {
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
	m := memlog.NewMember(t)
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
	ctx, cancel := context.WithTimeout(t.Context(), memlog.Patience)
	defer cancel()
	err := s.Run(ctx, func(context.Context, source.Partition[*consumer.Message]) error {
		t.Error("a partition was handed over")
		return nil
	})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), name) {
		t.Errorf("Run returned %v, want an error that names %q", err, name)
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
	m := memlog.Join(t, s)
	m.Holds(topic, 0)
	memlog.Eventually(t, "Ready", func() bool { return r.Ready() == nil })
	if err := m.Leave(); err != nil {
		t.Error(err)
	}
}
