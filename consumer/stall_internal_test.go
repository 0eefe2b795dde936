package consumer

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// A partition waits from the first fetch that finds records above the last stable offset and
// nothing to read below it, until that moves (F8).
func TestWaitingAtTheLastStableOffset(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var w *stall
	for _, c := range []struct {
		what        string
		from        int64
		got         fetched
		after       time.Duration
		since       time.Duration // -1: it does not wait
		told, begun bool
	}{
		{"records", 0, fetched{Next: 5, HighWatermark: 9, LastStable: 5}, 0, -1, false, false},
		{"nothing stable left", 5, fetched{Next: 5, HighWatermark: 9, LastStable: 5}, time.Second, time.Second, false, true},
		{"the same", 5, fetched{Next: 5, HighWatermark: 10, LastStable: 5}, time.Minute, time.Second, false, false},
		{"for a minute", 5, fetched{Next: 5, HighWatermark: 10, LastStable: 5}, time.Minute + time.Second, time.Second, true, false},
		{"still", 5, fetched{Next: 5, HighWatermark: 10, LastStable: 5}, time.Hour, time.Second, true, false},
		{"the next one is open already", 5, fetched{Next: 7, HighWatermark: 10, LastStable: 7}, time.Hour, -1, false, false},
		{"and is waited for", 7, fetched{Next: 7, HighWatermark: 10, LastStable: 7}, 2 * time.Hour, 2 * time.Hour, false, true},
		{
			"an empty answer below the last stable offset",
			7,
			fetched{Next: 7, HighWatermark: 12, LastStable: 9},
			2 * time.Hour,
			-1,
			false,
			false,
		},
		{"marker and end", 7, fetched{Next: 12, HighWatermark: 12, LastStable: 12}, 2 * time.Hour, -1, false, false},
		{"the log's end", 12, fetched{Next: 12, HighWatermark: 12, LastStable: 12}, 2 * time.Hour, -1, false, false},
		{"a source that says nothing of transactions", 12, fetched{Next: 12, HighWatermark: 15}, 2 * time.Hour, -1, false, false},
	} {
		was := w
		w = w.after(c.from, c.got, start.Add(c.after))
		switch {
		case w == nil:
			if c.since >= 0 {
				t.Errorf("%s: it does not wait", c.what)
			}
		case c.since < 0 || !w.since.Equal(start.Add(c.since)) || w.logged != c.told:
			t.Errorf("%s: since %v, logged: %v", c.what, w.since, w.logged)
		case w.offset != c.got.LastStable || (was == nil) != c.begun:
			t.Errorf("%s: %+v", c.what, w)
		}
	}
}

// A partition that waits is logged once, with how to find out for which transaction. That it
// continues is logged once too.
func TestWaitingForATransactionIsLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &Consumer{cfg: Config{Scope: "stock", Logger: slog.New(slog.NewTextHandler(&out, nil))}}
	var state partitionState
	id := source.Identity{TopicPartition: source.TopicPartition{Topic: "orders", Partition: 3}}
	open := fetched{Next: 5, HighWatermark: 9, LastStable: 5}
	c.reportStall(id, &state, 5, open)
	if out.Len() > 0 || state.snapshot().WaitingSince.IsZero() {
		t.Errorf("at first: %s, %+v", &out, state.snapshot())
	}
	w := state.stall.Load()
	w.since = w.since.Add(-stallAfter)
	c.reportStall(id, &state, 5, open)
	c.reportStall(id, &state, 5, open)
	text := out.String()
	for _, want := range []string{
		"level=WARN",
		"topic=orders",
		"partition=3",
		"last_stable_offset=5",
		"high_watermark=9",
		"since=",
		"describe-producers --topic orders --partition 3",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("after a minute: %s; want %q once", text, want)
		}
	}
	out.Reset()
	c.reportStall(id, &state, 5, fetched{Next: 9, HighWatermark: 9, LastStable: 9})
	if text := out.String(); strings.Count(text, "partition continues") != 1 || !state.snapshot().WaitingSince.IsZero() {
		t.Errorf("at its end: %s, %+v", text, state.snapshot())
	}
}
