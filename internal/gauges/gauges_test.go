package gauges

import (
	"slices"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// value returns the value of a metric for a scope, a topic and so on; -1 if there is none.
func value(all []metrics.Sample, m *metrics.Metric, values ...string) float64 {
	for _, s := range all {
		if s.Metric == m && slices.Equal(s.Values[1:], values) {
			return s.Value
		}
	}
	return -1
}

func TestPartitionsByState(t *testing.T) {
	t.Parallel()
	why := "INC-1"
	now := time.Now()
	cursors := make([]ops.Cursor, 6)
	for i := range cursors {
		cursors[i] = ops.Cursor{Scope: "s", Topic: "t", Partition: int32(i)}
	}
	cursors[3].Paused = &why
	cursors[4].RetiredAt = &now
	owner := ops.Owner{Scope: "s", Partitions: []ops.OwnedPartition{{Topic: "t", Partition: 0}, {Topic: "t", Partition: 1, Halted: "gap"},
		{Topic: "t", Partition: 2, WaitingFor: 3}, {Topic: "new", Partition: 0, Halted: "copies"}}}
	silent := ops.Owner{Scope: "s", SeenAgeSeconds: 31, Partitions: []ops.OwnedPartition{{Topic: "t", Partition: 5, Lag: 7}}}
	all := Of("shop", &Measures{Status: &ops.StatusReport{Cursors: cursors, Owners: []ops.Owner{owner, silent}}})
	for of, want := range map[[2]string]float64{
		{"working"}:          1,
		{"halted", "gap"}:    1,
		{"halted", "copies"}: 1,
		{"halted", ""}:       0,
		{"waiting"}:          1,
		{"paused"}:           1,
		{"unowned"}:          1,
	} {
		if got := value(all, metrics.ConsumerPartitions, "s", of[0], of[1]); got != want {
			t.Errorf("%v: %v partitions, want %v", of, got, want)
		}
	}
	if got := value(all, metrics.ConsumerProcesses, "s"); got != 1 {
		t.Errorf("%v processes, want 1", got)
	}
	if got := value(all, metrics.ConsumerLag, "s", "t", "5"); got != -1 {
		t.Errorf("a silent process's partition has the lag %v, want none", got)
	}
}

func TestStalled(t *testing.T) {
	t.Parallel()
	ten := 10.0
	now := time.Now()
	o := ops.Owner{Scope: "s", StartedAt: now.Add(-time.Minute), SeenAt: now, SeenAgeSeconds: 2, Partitions: []ops.OwnedPartition{
		{Topic: "t", Partition: 0, LastBatchAge: &ten},
		{Topic: "t", Partition: 1, Lag: 1, LastBatchAge: &ten, BlockedBy: &ops.Blocker{Offset: 7, For: 5}},
		{Topic: "t", Partition: 2, Lag: 1},
		{Topic: "t", Partition: 3, Lag: 1, Paused: true},
	}}
	all := Of("shop", &Measures{Status: &ops.StatusReport{Owners: []ops.Owner{o}}})
	for partition, want := range map[string]float64{"0": 0, "1": 12, "2": 62, "3": 0} {
		if got := value(all, metrics.ConsumerStalled, "s", "t", partition); got != want {
			t.Errorf("partition %s: %v s, want %v", partition, got, want)
		}
	}
	for partition, want := range map[string]float64{"0": 0, "1": 7} {
		if got := value(all, metrics.ConsumerBlocked, "s", "t", partition); got != want {
			t.Errorf("partition %s is blocked for %v s, want %v", partition, got, want)
		}
	}
}

// Ten thousand partitions are one value.
func TestPartitionsOfALargeTopicAreFolded(t *testing.T) {
	t.Parallel()
	o := ops.Owner{Scope: "s"}
	for i := range 10_000 {
		age := float64(i)
		o.Partitions = append(o.Partitions, ops.OwnedPartition{Topic: "large", Partition: int32(i), Lag: 2, LastBatchAge: &age})
	}
	for i := range MostPartitions {
		o.Partitions = append(o.Partitions, ops.OwnedPartition{Topic: "small", Partition: int32(i), Lag: 1})
	}
	all := Of("shop", &Measures{Status: &ops.StatusReport{Owners: []ops.Owner{o}}})
	if got := value(all, metrics.ConsumerLag, "s", "large", "all"); got != 20_000 {
		t.Errorf("the lag is %v, want 20000", got)
	}
	if got := value(all, metrics.ConsumerStalled, "s", "large", "all"); got != 9999 {
		t.Errorf("stalled for %v, want 9999", got)
	}
	if got := value(all, metrics.ConsumerLag, "s", "small", "99"); got != 1 {
		t.Errorf("a partition of the small topic has the lag %v, want 1", got)
	}
	if len(all) > 4*MostPartitions { // three for each partition of the small topic, and some for all
		t.Errorf("%d values", len(all))
	}
}

func TestUnlistedSinks(t *testing.T) {
	t.Parallel()
	all := Of("shop", &Measures{Oldest: []reports.OldestCall{{Sink: "wrong", AgeSeconds: 60}},
		Status: &ops.StatusReport{OutboxCounted: true, Outbox: []reports.PendingCalls{{Sink: "wrong", Count: 3, Log: 3}}}})
	for m, want := range map[*metrics.Metric]float64{metrics.OutboxOldest: 60, metrics.OutboxRelays: 0} {
		if got := value(all, m, "wrong"); got != want {
			t.Errorf("%s is %v, want %v", m.Name, got, want)
		}
	}
	if got := value(all, metrics.OutboxPending, "wrong", "log"); got != 3 {
		t.Errorf("%v calls are in the log, want 3", got)
	}
}

// A ring opens a segment each seventh of its horizon. One that nothing was written to has no need
// to, and is never late.
func TestHorizonLeft(t *testing.T) {
	t.Parallel()
	week := 604800.0
	hour := 90000.0
	ring := func(bytes int64) *Measures {
		return &Measures{
			Status: &ops.StatusReport{},
			Keys: []reports.KeyRing{
				{Ring: "r", Horizon: &week, Segments: []reports.KeySegment{{State: "current", Bytes: bytes, Opened: &hour}}},
				{Ring: "forever", Segments: []reports.KeySegment{{State: "current", Bytes: 1, Opened: &hour}}},
			},
		}
	}
	if got := value(Of("shop", ring(1)), metrics.InboxHorizonLeft, "r"); got != -3600 {
		t.Errorf("%v s are left, want -3600", got)
	}
	if got := value(Of("shop", ring(0)), metrics.InboxHorizonLeft, "r"); got != 86400 {
		t.Errorf("an empty ring has %v s left, want 86400", got)
	}
	if got := value(Of("shop", ring(1)), metrics.InboxHorizonLeft, "forever"); got != -1 {
		t.Errorf("a ring that keeps keys forever has %v s left, want no value", got)
	}
}

// Two processes report a partition while it changes its owner: two values would fail the scrape.
func TestPartitionsOfTwoOwners(t *testing.T) {
	t.Parallel()
	owner := func(epoch, lag int64) ops.Owner {
		return ops.Owner{Scope: "stock", Partitions: []ops.OwnedPartition{{Topic: "orders", Epoch: epoch, Lag: lag}}}
	}
	values := 0
	for _, s := range Of("shop", &Measures{Status: &ops.StatusReport{Owners: []ops.Owner{owner(2, 7), owner(1, 50)}}}) {
		if s.Metric == metrics.ConsumerLag {
			values++
			if s.Value != 7 {
				t.Errorf("a lag of %v", s.Value)
			}
		}
	}
	if values != 1 {
		t.Errorf("%d values", values)
	}
}
