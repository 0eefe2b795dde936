package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

func asError[T error](err error, target *T) bool { return errors.As(err, target) }

// consume runs a consumer on the log until it is stopped, and returns its halts.
func (f *fixture) consume(log *memlog.Log, group string) (halts <-chan *consumer.HaltError, stop func()) {
	f.t.Helper()
	halted := make(chan *consumer.HaltError, 100)
	c, err := consumer.New(f.pool, &memlog.Source{Log: log, GroupID: group},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `insert into effects values ($1)`, string(m.Value))
			return err
		}),
		consumer.Config{Scope: "stock", PositionsOnly: true, BatchSize: 10, Linger: time.Millisecond,
			Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
			Hooks:   consumer.Hooks{Halted: func(e *consumer.HaltError) { halted <- e }}})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(apart(f.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("Run: %v", err)
		}
	})
	f.t.Cleanup(stop)
	return halted, stop
}

// next returns the next halt.
func next(t *testing.T, halts <-chan *consumer.HaltError) *consumer.HaltError {
	t.Helper()
	deadline := time.NewTimer(testPatience)
	defer deadline.Stop()
	select {
	case h := <-halts:
		return h
	case <-deadline.C:
		t.Fatal("no halt")
		return nil
	}
}

// split splits a command into words as a shell does, as far as HaltError quotes.
func split(t *testing.T, command string) (words []string) {
	t.Helper()
	for command = strings.TrimSpace(command); command != ""; command = strings.TrimSpace(command) {
		if quoted, err := strconv.QuotedPrefix(command); err == nil {
			word, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatal(err)
			}
			words = append(words, word)
			command = command[len(quoted):]
			continue
		}
		word, rest, _ := strings.Cut(command, " ")
		words = append(words, word)
		command = rest
	}
	return words
}

// Every halt prints a command. The command, as printed, resolves the halt, and the consumer goes on
// by itself.
func TestAdoptResolvesEveryHalt(t *testing.T) {
	t.Parallel()
	recreate := func(_ *fixture, l *memlog.Log) {
		l.Recreate()
		for i := range 8 {
			l.Append(0, fmt.Sprintf("new%d", i))
		}
	}
	for _, c := range []struct {
		reason consumer.HaltReason
		breaks func(f *fixture, l *memlog.Log)
		group  string
		offset string
		want   int64  // position in the end
		values string // all effects, in order
	}{
		{consumer.HaltForeignGroup, func(_ *fixture, l *memlog.Log) { l.Append(0, "v5") }, "g2", "", 6, "v0 v1 v2 v3 v4 v5"},
		{
			consumer.HaltForeignScope,
			func(_ *fixture, l *memlog.Log) { l.Append(0, "v5"); l.SetCommitted("g1", 0, 5, names.Mark("mail", 5)) },
			"g1",
			"5",
			6,
			"v0 v1 v2 v3 v4 v5",
		},
		{consumer.HaltForeignCluster, func(f *fixture, l *memlog.Log) { f.exec(`update onlyonce.cursors set cluster_id = 'other'`) },
			"g1", "3", 5, "v0 v1 v2 v3 v4 v3 v4"},
		{consumer.HaltNewTopic, recreate, "g1", "0", 8, "v0 v1 v2 v3 v4 new0 new1 new2 new3 new4 new5 new6 new7"},
		{
			consumer.HaltHistoryLost,
			func(f *fixture, _ *memlog.Log) { f.exec(`delete from onlyonce.leases`) },
			"g1",
			"4",
			5,
			"v0 v1 v2 v3 v4 v4",
		},
		{
			consumer.HaltTruncated,
			func(_ *fixture, l *memlog.Log) { l.Truncate(0, 3); l.Append(0, "x3") },
			"g1",
			"3",
			4,
			"v0 v1 v2 v3 v4 x3",
		},
		{consumer.HaltGap, func(_ *fixture, l *memlog.Log) { l.Append(0, "lost"); l.Append(0, "v6"); l.DeleteBefore(0, 6) },
			"g1", "6", 7, "v0 v1 v2 v3 v4 v6"},
	} {
		t.Run(string(c.reason), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(`create table effects (value text, n bigint generated always as identity)`)
			log := memlog.NewLog("orders", 1)
			for i := range 5 {
				log.Append(0, fmt.Sprintf("v%d", i))
			}
			_, stop := f.consume(log, "g1")
			f.until(`select coalesce(max(next_offset), 0) = 5 from onlyonce.positions`)
			stop()
			c.breaks(f, log)
			halts, stop := f.consume(log, c.group)
			h := next(t, halts)
			if h.Reason != c.reason {
				t.Errorf("halted for %s: %v", h.Reason, h)
			}
			command := strings.NewReplacer("OFFSET", c.offset, "WHY", `"because of `+string(c.reason)+`"`).Replace(h.Command())
			words := split(t, command)
			if words[0] != "onlyonce" {
				t.Fatalf("command: %s", command)
			}
			f.until(fmt.Sprintf(`select exists (select from onlyonce.owners where partitions->0->>'halted' = '%s')`, c.reason))
			f.run(append(words[1:], "-yes")...).want(t, statusGood)
			f.until(fmt.Sprintf(`select coalesce(max(next_offset), 0) = %d and bool_and(group_id = '%s' and cluster_id = 'cluster-1')
				from onlyonce.positions where topic_id is not null`, c.want, c.group))
			stop()
			if got := one[string](f, `select string_agg(value, ' ' order by n) from effects`); got != c.values {
				t.Errorf("effects: %s\nwant:    %s", got, c.values)
			}
			f.audited("because of " + string(c.reason))
		})
	}
}

// F10: a replay halts because retention has deleted the beginning of its range. The command, as
// printed, ends the replay where it interrupted the work: a lower offset would handle what lies
// behind the range as if it were new.
func TestF10HaltInAReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table effects (value text, n bigint generated always as identity)`)
	log := memlog.NewLog("orders", 1)
	for i := range 5 {
		log.Append(0, fmt.Sprintf("v%d", i))
	}
	halts, stop := f.consume(log, "g1")
	f.until(`select coalesce(max(next_offset), 0) = 5 from onlyonce.positions`)
	log.DeleteBefore(0, 2)
	f.run(replayArgs("-from", "0", "-to", "3", "-yes")...).want(t, statusGood)
	h := next(t, halts)
	if h.Reason != consumer.HaltGap {
		t.Errorf("halt: %v", h)
	}
	f.until(`select exists (select from onlyonce.owners where partitions->0->>'halted' = 'gap')`)
	f.run("cursor", "adopt", "-scope", "stock", "-topic", "orders", "-halted", "gap", "-at", "first", "-reason", "OPS-7", "-yes").
		want(t, statusFailed, "a replay is under way on partition 0, and nothing was done", "-at 5")
	f.run(append(split(t, strings.NewReplacer("WHY", "OPS-7").Replace(h.Command()))[1:], "-yes")...).want(t, statusGood)
	log.Append(0, "v5")
	f.until(`select coalesce(max(next_offset), 0) = 6 from onlyonce.positions`)
	stop()
	if got := one[string](f, `select string_agg(value, ' ' order by n) from effects`); got != "v0 v1 v2 v3 v4 v5" {
		t.Errorf("effects: %s", got)
	}
}

// A foreign group is admitted without an offset, the topic was made anew as well, and retention has
// removed the record that would show it. The ids stay on the cursor, so the new topic is not read
// from the old one's position.
func TestAdoptWithoutOffsetDoesNotAdmitANewTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table effects (value text)`)
	log := memlog.NewLog("orders", 1)
	for range 5 {
		log.Append(0, "old")
	}
	_, stop := f.consume(log, "g1")
	f.until(`select coalesce(max(next_offset), 0) = 5 from onlyonce.positions`)
	stop()
	log.Recreate()
	for range 8 {
		log.Append(0, "new")
	}
	log.DeleteBefore(0, 5)
	halts, stop := f.consume(log, "g2")
	if h := next(t, halts); h.Reason != consumer.HaltForeignGroup {
		t.Fatalf("halt: %v", h)
	}
	f.run(adoptArgs("-yes")...).want(t, statusGood)
	h := next(t, halts)
	for h.Reason == consumer.HaltForeignGroup { // it checked again before it was admitted
		h = next(t, halts)
	}
	stop()
	if h.Reason != consumer.HaltNewTopic {
		t.Errorf("halt: %v", h)
	}
	if n := one[int](f, `select count(*) from effects where value = 'new'`); n != 0 {
		t.Errorf("%d messages of the new topic were read from the old one's position", n)
	}
}
