package consumer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// grouped is a source of which only the group is asked.
type grouped struct{ Source }

func (grouped) Group() string { return "g" }

// logged returns a logger, and a function that returns what was logged since it was called last.
func logged() (*slog.Logger, func() string) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return log, func() string {
		defer out.Reset()
		return out.String()
	}
}

// has adds a partition that a process owns.
func (c *Consumer) has(topic string, n int32, shard string, epoch, takenAt int64) *partitionState {
	s := c.partitions.add()
	c.partitions.setName(s, source.Identity{TopicPartition: source.TopicPartition{Topic: topic, Partition: n}}, shard)
	s.epoch.Store(epoch)
	s.takenAt.Store(takenAt)
	return s
}

// Each partition that is taken over and given up is logged once, those of this database.
func TestPartitionsAreAnnounced(t *testing.T) {
	t.Parallel()
	log, said := logged()
	c := &Consumer{cfg: Config{Scope: "stock", Logger: log}, source: grouped{}, shard: "eu", shared: &shared{}}
	p := &poller{c: c}
	say := func() string {
		p.announcedAt = time.Time{}
		p.announce()
		return said()
	}
	const line = `level=INFO msg="onlyonce: partitions of this process" scope=stock group=g owned=`
	if got := say(); got != "" {
		t.Errorf("without partitions: %s", got)
	}
	one := c.has("orders", 1, "eu", 3, 40)
	c.has("orders", 2, "us", 3, 0) // another database's
	none := c.has("orders", 3, "eu", 0, 0)
	if got := say(); got != line+"1 taken=\"orders/1 from 40\"\n" {
		t.Errorf("taken over: %s", got)
	}
	if got := say(); got != "" {
		t.Errorf("nothing has changed: %s", got)
	}
	none.epoch.Store(1)
	p.announce()
	if got := said(); got != "" {
		t.Errorf("a second time within a second: %s", got)
	}
	if got := say(); got != line+"2 taken=\"orders/3 from 0\"\n" {
		t.Errorf("another one: %s", got)
	}
	one.epoch.Store(4)
	one.takenAt.Store(50)
	c.partitions.remove(none)
	if got := say(); got != line+"1 taken=\"orders/1 from 50\" given_up=orders/3\n" {
		t.Errorf("taken over once more: %s", got)
	}
	c.partitions.remove(one)
	for n := range int32(mostAnnounced + 2) {
		c.has("orders", 100+n, "eu", 1, 0)
	}
	got := say()
	if !strings.Contains(got, "owned=22") || strings.Count(got, " from ") != mostAnnounced ||
		!strings.Contains(got, `, 2 more" given_up=orders/1`) {
		t.Errorf("many: %s", got)
	}
}

// A parked message is a line. Those behind it are one a minute, which says how many it stands for.
func TestParkedMessagesAreLogged(t *testing.T) {
	t.Parallel()
	log, said := logged()
	c := &Consumer{cfg: Config{Scope: "stock", Logger: log}, shared: &shared{}}
	event := ParkedEvent{
		TopicPartition: source.TopicPartition{Topic: "orders", Partition: 1}, Offset: 7,
		Reason: ParkedFailed, State: "waiting", Err: errors.New("bad"),
	}
	const of = " scope=stock topic=orders partition=1 offset=7"
	want := `level=WARN msg="onlyonce: message parked"` + of + " reason=failed state=waiting error=bad\n"
	for range 2 {
		c.emitParked(event)
		if got := said(); got != want {
			t.Errorf("%swant\n%s", got, want)
		}
	}
	event.Reason = ParkedBehind
	want = `level=INFO msg="onlyonce: messages wait behind a parked one of their ordering key"` + of + " not_logged=0\n"
	c.emitParked(event)
	if got := said(); got != want {
		t.Errorf("%swant\n%s", got, want)
	}
	for range 2 {
		c.emitParked(event)
		if got := said(); got != "" {
			t.Errorf("within a minute: %s", got)
		}
	}
	event.Partition = 2
	c.emitParked(event)
	if got := said(); !strings.Contains(got, "partition=2") {
		t.Errorf("another partition: %s", got)
	}
}

// An unchanged halt is logged again after five minutes, and a changed one at once.
func TestHaltsAreLogged(t *testing.T) {
	t.Parallel()
	l := &haltLog{}
	first := &HaltError{Reason: HaltBlocked, Detail: "d", Position: 1}
	is := func(name string, halt *HaltError, want bool) {
		t.Helper()
		if got := l.due(halt); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
	is("the first", first, true)
	is("the same", first, false)
	is("one that is equal", &HaltError{Reason: HaltBlocked, Detail: "d", Position: 1}, false)
	for _, changed := range []*HaltError{
		{Reason: HaltRetired, Detail: "d", Position: 1},
		{Reason: HaltRetired, Detail: "e", Position: 1},
		{Reason: HaltRetired, Detail: "e", Position: 2},
	} {
		is(fmt.Sprintf("%+v", changed), changed, true)
		is("the same again", changed, false)
	}
	last := &HaltError{Reason: HaltRetired, Detail: "e", Position: 2}
	l.at = time.Now().Add(-logHaltEvery - time.Second)
	is("after five minutes", last, true)
	is("right after that", last, false)
}

// What a process reports about its partitions, every field; and that a report is only made again if
// what is urgent has changed.
func TestReportOfAProcess(t *testing.T) {
	t.Parallel()
	c := &Consumer{cfg: Config{Scope: "stock"}, shard: "eu", shared: &shared{}}
	c.has("orders", 9, "us", 1, 0)
	s := c.has("orders", 1, "eu", 3, 40)
	plain := c.has("orders", 2, "eu", 5, 0)
	plain.position.Store(6)
	s.position.Store(50)
	s.logStart.Store(2)
	s.highWatermark.Store(90)
	s.lastStable.Store(80)
	s.paused.Store(true)
	ago := time.Now().Add(-time.Hour)
	s.stall.Store(&stall{offset: 80, since: ago})
	s.lastBatch.Store(&ago)
	s.ignored.Store(&ignoredOffset{offset: 1, position: 2, at: ago})
	s.blockedBy.Store(&BlockedBy{Offset: 51, Key: "k", Since: ago, Done: 4})
	s.halted.Store(&HaltError{
		Scope:          "stock",
		TopicPartition: source.TopicPartition{Topic: "orders", Partition: 1},
		Reason:         HaltBlocked,
		Detail:         "why",
	})
	s.haltedSince.Store(&ago)
	var group, handlers ready.Link
	report, err := c.statusReport(&group, &handlers, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []reportedPartition
	if err := json.Unmarshal([]byte(report.partitions), &got); err != nil || len(got) != 2 {
		t.Fatalf("%s: %v", report.partitions, err)
	}
	hours := func(name string, seconds float64) {
		if h := (time.Duration(seconds) * time.Second).Round(time.Hour); h != time.Hour {
			t.Errorf("%s: %v, want some hour", name, h)
		}
	}
	p := &got[0]
	hours("waiting_for", p.WaitingFor)
	hours("halted_for", p.HaltedFor)
	hours("last_batch_age", *p.LastBatchAge)
	hours("ignored.for", p.Ignored.For)
	hours("blocked_by.for", p.BlockedBy.For)
	if p.Resolve == "" || len(p.Commands) == 0 {
		t.Errorf("a halt without a way out: %+v", p)
	}
	want := []reportedPartition{
		{
			Topic: "orders", Partition: 1, Epoch: 3, Position: 50, LogStart: 2, HighWatermark: 90, Lag: 40, LastStable: 80,
			Paused: true, Halted: string(HaltBlocked), Detail: "why", WaitingFor: p.WaitingFor, HaltedFor: p.HaltedFor,
			Resolve: p.Resolve, Remedy: p.Remedy, Commands: p.Commands, ForTopic: p.ForTopic, LastBatchAge: p.LastBatchAge,
			Ignored:   &reportedIgnored{Offset: 1, Position: 2, For: p.Ignored.For},
			BlockedBy: &reportedBlocker{Offset: 51, Key: "k", For: p.BlockedBy.For, Done: 4},
		},
		{Topic: "orders", Partition: 2, Epoch: 5, Position: 6},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	again, err := c.statusReport(&group, &handlers, &report.shape)
	if again != nil || err != nil {
		t.Errorf("nothing has changed: %+v, %v", again, err)
	}
	for name, change := range map[string]func(){
		"epoch":   func() { plain.epoch.Store(6) },
		"paused":  func() { plain.paused.Store(true) },
		"waiting": func() { plain.stall.Store(&stall{since: ago}) },
		"halted":  func() { plain.halted.Store(&HaltError{Reason: HaltRetired}) },
	} {
		known := report.shape
		change()
		if report, err = c.statusReport(&group, &handlers, &known); report == nil || err != nil {
			t.Fatalf("%s has changed: %+v, %v", name, report, err)
		}
	}
	plain.position.Store(7)
	if again, err := c.statusReport(&group, &handlers, &report.shape); again != nil || err != nil {
		t.Errorf("only a position has changed: %+v, %v", again, err)
	}
}
