package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func replayArgs(more ...string) []string {
	return append([]string{"replay", "-scope", "stock", "-topic", "orders", "-partition", "0", "-reason", "INC-7"}, more...)
}

// times fails the test unless each offset took effect as often as given; offsets that are left out,
// never.
func (s *shop) times(want map[int64]int) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `select off, count(*) from effects group by off`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	got := map[int64]int{}
	for rows.Next() {
		var off int64
		var n int
		if err := rows.Scan(&off, &n); err != nil {
			s.t.Fatal(err)
		}
		got[off] = n
	}
	for off, n := range want {
		if got[off] != n {
			s.t.Errorf("offset %d took effect %d times, want %d", off, got[off], n)
		}
		delete(got, off)
	}
	if len(got) > 0 {
		s.t.Errorf("effects that nobody asked for: %v", got)
	}
}

// F10: a replay applies its range once more, and nothing else. That holds with ids and without,
// with a consumer that has nothing to do, without one, and for a second replay.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, positions := range []bool{false, true} {
		t.Run(fmt.Sprintf("positions only %t", positions), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			config := func(c *consumer.Config) {
				if positions {
					c.Key = nil
					c.PositionsOnly = true
				}
			}
			s.keyed("a", "v0", "v1", "v2", "v3")
			s.keyed("b", "v3") // at offset 4: a copy within the range
			s.keyed("a", "v5", "v6")
			s.log.Skip(0, 2) // the range ends in a hole
			s.keyed("a", "v9")
			want := map[int64]int{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 9: 1}
			if !positions {
				delete(want, 4)
			}
			again := func(offsets ...int64) {
				for _, off := range offsets {
					if want[off] > 0 {
						want[off]++
					}
				}
			}
			stop := s.start(effect, config)
			s.reaches(10)
			s.times(want)

			r := s.run(replayArgs("-from", "2", "-to", "8", "-yes")...).want(
				t,
				statusGood,
				"Applied AGAIN",
				"offset 2 to 7",
				"Done: replay 1 from offset 2 up to 8, then on from 10",
			)
			t.Log("\n" + r.out)
			s.reaches(10)
			again(2, 3, 4, 5, 6)
			s.times(want)
			if n := one[int](s.fixture, `select count(*) from onlyonce.audit where action = 'replay' and reason = 'INC-7'
				and detail->>'from' = '2' and detail->>'to' = '8' and detail->>'resume' = '10'
				and detail->'before'->>'position' = '10'`); n != 1 {
				t.Error("no audit row")
			}

			s.keyed("a", "v10", "v5") // new ones, and a copy of what was handled twice
			s.reaches(12)
			want[10] = 1
			if positions {
				want[11] = 1
			}
			s.times(want)
			stop()

			s.run(replayArgs("-from", "0", "-yes")...).want(t, statusGood, "Done: replay 2 from offset 0 up to 12")
			s.run("cursor", "show").want(t, statusGood, "replay 2 to 12")
			s.run("status").want(t, statusGood, "1 replaying")
			s.run("status", "-v").want(t, statusGood, "replay 2 to 12")
			s.run(replayArgs("-from", "0", "-yes")...).want(
				t,
				statusFailed,
				"replay 2 is under way, at offset 0 of up to 12",
				"-at 12",
			).lines(
				t,
				1,
			)
			s.keyed("a", "v12")
			stop = s.start(effect, config)
			s.reaches(13)
			again(0, 1, 2, 3, 4, 5, 6, 9, 10)
			if positions {
				again(11)
			}
			want[12] = 1
			s.times(want)

			s.run(replayArgs("-from", "12", "-yes")...).want(t, statusGood, "Done: replay 3")
			s.reaches(13)
			again(12)
			s.times(want)
			stop()
		})
	}
}

// F10: a replay may handle a message for the first time, because its offset is below the start or
// was skipped by an adoption. From then on its copies are duplicates.
func TestF10CopyOfWhatOnlyAReplayHandled(t *testing.T) {
	t.Parallel()
	t.Run("below the start", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.keyed("a", "v0", "v1", "v2")
		stop := s.start(effect, func(c *consumer.Config) { c.Start = consumer.Latest() })
		s.reaches(3)
		s.keyed("a", "v3")
		s.reaches(4)
		s.times(map[int64]int{3: 1})
		s.run(replayArgs("-from", "0", "-to", "3", "-yes")...).want(t, statusGood, "handled for the first time")
		s.reaches(4)
		s.times(map[int64]int{0: 1, 1: 1, 2: 1, 3: 1})
		s.keyed("a", "v0", "v3") // copies of what was handled in the replay, and in the ordinary way
		s.reaches(6)
		stop()
		s.times(map[int64]int{0: 1, 1: 1, 2: 1, 3: 1})
	})
	t.Run("passed over", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.keyed("a", "v0", "v1")
		stop := s.start(effect, nil)
		s.reaches(2)
		stop()
		s.keyed("a", "v2", "v3")
		s.run(adoptArgs("-at", "4", "-yes")...).want(t, statusGood)
		stop = s.start(effect, nil)
		s.keyed("a", "v4")
		s.reaches(5)
		s.run(replayArgs("-from", "2", "-to", "4", "-yes")...).want(t, statusGood)
		s.reaches(5)
		s.keyed("a", "v3")
		s.reaches(6)
		stop()
		s.times(map[int64]int{0: 1, 1: 1, 2: 1, 3: 1, 4: 1})
	})
}

// K7: a copy of a message that was parked in a replay is a duplicate, even if its key is forgotten,
// and in another replay.
func TestK7CopyOfWhatWasParkedInAReplay(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.keyed("a", "v0", "v1", "v2")
	var well atomic.Bool
	stop := s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "v1" && !well.Load() {
			return consumer.Permanent(errors.New("not yet"))
		}
		return effect(ctx, tx, m)
	}, func(c *consumer.Config) { c.Start = consumer.Latest() })
	s.reaches(3)
	s.run(replayArgs("-from", "0", "-to", "3", "-yes")...).want(t, statusGood)
	s.until(`select count(*) = 1 from onlyonce.parked where state = 'waiting'`)
	s.reaches(3)
	well.Store(true)
	s.keyed("a", "v1") // offset 3
	s.reaches(4)
	s.times(map[int64]int{0: 1, 2: 1})
	s.exec(`delete from onlyonce_segments.consumer_keys_0`) // forgotten
	s.keyed("a", "v1")                                      // offset 4
	s.reaches(5)
	s.times(map[int64]int{0: 1, 2: 1})
	s.run(replayArgs("-from", "3", "-to", "5", "-yes")...).want(t, statusGood) // of the copies alone
	s.reaches(5)
	s.times(map[int64]int{0: 1, 2: 1})
	s.run("parked", "redrive", "-scope", "stock", "-reason", "x", "-yes").want(t, statusGood)
	s.until(`select count(*) = 1 from onlyonce.parked where state = 'resolved'`)
	stop()
	s.times(map[int64]int{0: 1, 1: 1, 2: 1})
}

// K8: if ids count within topics, explain asks for the topic.
func TestK8ExplainAsksForTheTopic(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec(`insert into onlyonce.scopes (scope, topics, copies, first_topic) values ('stock', '{orders,paid}', 'within', '')`)
	s.run("explain", "-scope", "stock", "a-1").want(t, statusEnvironment, "choose one with -topic (orders, paid)")
	s.run("explain", "-topic", "paid", "a-1").want(t, statusEnvironment, "missing: -scope")
}

// K8: a partition is not brought to a database in which ids mean something else. If nothing is
// known of the scope there, their meaning is brought along.
func TestK8AdoptFromBringsWhatIdsMean(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	s.handleOne()
	s.a.exec(`update onlyonce.scopes set copies = 'within', topics = '{orders,paid}'`)
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	for _, other := range []string{`'{orders}', null, ''`, `'{orders}', 'across', 'orders'`} {
		s.b.exec(`delete from onlyonce.scopes`)
		s.b.exec(`insert into onlyonce.scopes (scope, topics, copies, first_topic) values ('stock', ` + other + `)`)
		s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(
			t,
			statusFailed,
			"ids of the scope do not mean here what they mean in",
			"nothing was done",
		)
	}
	s.b.exec(`delete from onlyonce.scopes`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusGood)
	if n := one[int](
		s.b,
		`select count(*) from onlyonce.scopes where copies = 'within' and first_topic = 'orders' and topics = '{orders,paid}'`,
	); n != 1 {
		t.Error("b does not know what ids mean")
	}
}

// K9: a partition that moves takes along until when keys were forgotten where it comes from, and
// explain says there what that means for an id of such a time.
func TestK9MoveBringsWhatIsForgotten(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	s.handleOne()
	const old = "0167bf1e-8c00-7000-8000-000000000000" // of December 2018
	s.a.exec(`update onlyonce.scopes set created_at = '2018-01-01Z'`)
	s.a.exec(`update onlyonce.rings set forgotten = '2019-01-01Z' where name = 'consumer_keys'`)
	s.b.exec(`update onlyonce.rings set horizon = '10 minutes' where name = 'consumer_keys'`)
	s.a.run("explain", "-scope", "stock", old).want(t, statusGood, "unless a copy is a duplicate, a "+
		"consumer with ParkTooOld parks it as too-old")
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusGood)
	if got := one[string](
		s.b,
		`select coalesce((onlyonce.forgotten('stock') at time zone 'UTC')::text, 'nothing')`,
	); got != "2019-01-01 00:00:00" {
		t.Errorf("forgotten in b: %s", got)
	}
	if got := one[string](s.b, `select (onlyonce.too_old('stock') at time zone 'UTC')::text`); got != "2019-01-01 16:48:00" {
		t.Errorf("too old in b: %s, want a tenth of the horizon in a later", got)
	}
	s.b.run("explain", "-scope", "stock", old).want(t, statusGood, "parks it as too-old")
}

// K9: a segment is emptied in the origin while the adoption begins. The adoption waits for that,
// and then takes along until when keys are forgotten.
func TestK9MoveBesideARotation(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	s.handleOne()
	s.a.exec(`update onlyonce.scopes set created_at = '2018-01-01Z'`)
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	rotation, err := s.a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rotation.Rollback(context.WithoutCancel(t.Context())) }()
	for _, sql := range []string{
		`do $$ declare of text;
			begin foreach of in array (select array_agg(distinct segment) from onlyonce.inbox) loop
			execute format('truncate onlyonce_segments.%I', of);
			end loop;
			end $$`,
		`update onlyonce.rings set forgotten = '2019-01-01Z' where name = 'consumer_keys'`,
	} {
		if _, err := rotation.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan result, 1)
	go func() { done <- s.b.run(moveArgs("adopt", "-from", s.a.url)...) }()
	s.a.until(`select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	if err := rotation.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-done).want(t, statusGood)
	if got := one[string](
		s.b,
		`select coalesce((onlyonce.forgotten('stock') at time zone 'UTC')::text, 'nothing')`,
	); got != "2019-01-01 00:00:00" {
		t.Errorf("forgotten in b: %s", got)
	}
}

// F10: a copy in the range whose original is outside of it is applied, and the command says so
// before it asks.
func TestF10CopyFromOutsideOfTheRange(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.keyed("a", "v0", "v1", "v2", "v0") // 3 is a copy of 0
	stop := s.start(effect, nil)
	s.reaches(4)
	s.times(map[int64]int{0: 1, 1: 1, 2: 1})
	s.run(replayArgs("-from", "2", "-to", "4", "-yes")...).want(t, statusGood, "a copy whose original lies "+
		"outside of the range is applied too")
	s.reaches(4)
	s.times(map[int64]int{0: 1, 1: 1, 2: 2, 3: 1})
	stop()
}

// A replay outlasts the consumers that work on it (F10).
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	for _, positions := range []bool{false, true} {
		t.Run(fmt.Sprintf("positions only %t", positions), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			config := func(c *consumer.Config) {
				c.BatchSize = 2
				if positions {
					c.Key = nil
					c.PositionsOnly = true
				}
			}
			want := map[int64]int{}
			for i := range int64(12) {
				s.keyed("a", fmt.Sprintf("v%d", i))
				want[i] = 1
			}
			stop := s.start(effect, config)
			s.reaches(12)
			stop()
			s.run(replayArgs("-from", "1", "-to", "9", "-yes")...).want(t, statusGood)
			for i := int64(1); i < 9; i++ {
				want[i] = 2
			}
			for _, at := range []int64{1, 4, 5, 8} { // in each of them a consumer is stopped in the middle
				there := make(chan struct{})
				var once sync.Once
				stop := s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					if err := effect(ctx, tx, m); err != nil || m.Offset != at {
						return err
					}
					once.Do(func() { close(there) })
					<-ctx.Done()
					return ctx.Err()
				}, config)
				select {
				case <-there:
				case <-time.After(testPatience):
					pgtest.GaveUp(t, testPatience, "the replay, at its offset")
				}
				stop()
				if got := s.shown(); got.Position > at || *got.ReplayUntil != 9 || *got.ReplayResume != 12 {
					t.Errorf("stopped at %d, the cursor stands at %+v", at, got)
				}
			}
			s.start(effect, config)
			s.reaches(12)
			s.times(want)
		})
	}
}

// Calls keep their keys, unless the operator asks for new ones (F10).
func TestReplayCalls(t *testing.T) {
	t.Parallel()
	for _, positions := range []bool{false, true} {
		t.Run(fmt.Sprintf("positions only %t", positions), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			var mu sync.Mutex
			suffix := ""
			config := func(c *consumer.Config) {
				if positions {
					c.Key = nil
					c.PositionsOnly = true
				}
			}
			s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				mu.Lock()
				body := string(m.Value) + suffix
				mu.Unlock()
				if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "pay", Name: "charge", Body: []byte(body)}); err != nil {
					return err
				}
				return effect(ctx, tx, m)
			}, config)
			s.keyed("a", "v0", "v1", "v2", "v3")
			s.reaches(4)
			calls := func() int { return one[int](s.fixture, `select count(*) from onlyonce.outbox_log`) }
			if n := calls(); n != 4 {
				t.Fatalf("%d calls", n)
			}
			r := s.run(replayArgs("-from", "1", "-to", "3", "-yes")...).want(t, statusGood, "keep their keys")
			if strings.Contains(r.out, "NEW keys") {
				t.Errorf("it says that calls are made again:\n%s", r.out)
			}
			s.reaches(4)
			s.times(map[int64]int{0: 1, 1: 2, 2: 2, 3: 1})
			if n := calls(); n != 4 {
				t.Errorf("%d calls after a replay", n)
			}
			r = s.run(replayArgs("-from", "1", "-to", "3", "-resend", "-yes")...).want(t, statusGood, "NEW keys", "applies them AGAIN")
			t.Log("\n" + r.out)
			s.reaches(4)
			if n := calls(); n != 6 {
				t.Errorf("%d calls after a replay that makes them again", n)
			}
			s.keyed("a", "v4")
			s.reaches(5)
			s.run(replayArgs("-from", "0", "-yes")...).want(t, statusGood)
			s.reaches(5)
			if n := calls(); n != 7 {
				t.Errorf("%d calls: -resend outlasted its replay", n)
			}
			mu.Lock()
			suffix = "?"
			mu.Unlock()
			s.run(replayArgs("-from", "2", "-to", "3", "-yes")...).want(t, statusGood)
			s.reaches(5)
			if got := s.states(); got != "v2:waiting" {
				t.Errorf("a call with other bytes: parked %q", got)
			}
			if n := calls(); n != 7 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// F10: a replay of what is not handled is refused and changes nothing. One of messages that are
// parked says how many it passes over (K7).
func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(replayArgs("-from", "0", "-yes")...).want(t, statusEnvironment, "there is no cursor").lines(t, 2)
	f.populate()
	before := f.shown()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-from", "17"}, "-from: offset 17 was not handled yet"},
		{[]string{"-from", "2", "-to", "18"}, "-to: must not be above the position, 17"},
	} {
		f.run(replayArgs(append(c.args, "-yes")...)...).want(t, statusFailed, c.want).lines(t, 1)
	}
	f.run(replayArgs("-from", "2", "-to", "13", "-dry-run")...).want(
		t,
		statusGood,
		"Of these messages 1 are parked and not settled: they are passed over",
	)
	f.run(replayArgs("-from", "2", "-dry-run")...).want(t, statusGood, "Of these messages 2 are parked and not settled")
	f.run(adoptArgs("-at", "2", "-dry-run")...).want(t, statusGood, "Of these messages 2 are parked and not settled")
	f.untouched(before)
	f.run(replayArgs("-from", "14", "-yes")...).want(t, statusGood)
	c := f.shown()
	good := c.Position == 14 &&
		c.Run == 1 &&
		c.Epoch == 5 &&
		c.Replay == 1 &&
		*c.ReplayUntil == 17 &&
		*c.ReplayResume == 17 &&
		c.Attempts == 0 &&
		c.AnchorOffset == nil &&
		*c.TopicID == *before.TopicID
	if !good {
		t.Errorf("cursor: %+v", c)
	}
	// Another partition's replay has a number of its own, because copies may be in both.
	f.exec(`update onlyonce.cursors set run_start = 9 where partition = 1`)
	f.run("replay", "-scope", "stock", "-topic", "orders", "-partition", "1", "-from", "3", "-reason", "x", "-yes").
		want(t, statusGood, "Done: replay 2", "Offsets below 5, where this cursor began")
	// An adoption with an offset ends the replay. The position that was interrupted counts, not how
	// far the replay was.
	f.run(adoptArgs("-at", "17", "-yes")...).want(t, statusGood, "The replay that is under way up to offset 17 ends here",
		"Nothing is skipped")
	c = f.shown()
	good = c.Position == 17 &&
		c.ReplayUntil == nil &&
		c.ReplayResume == nil &&
		c.Replay == 1
	if !good {
		t.Errorf("cursor: %+v", c)
	}
}

// The command does what the operator agreed to, although the owner goes on meanwhile.
func TestReplayAsks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	f.exec(`delete from onlyonce.parked`)
	f.terminal = true
	f.stdin = strings.NewReader("n\n")
	before := f.shown()
	f.run(replayArgs("-from", "3")...).want(t, statusFailed, "the answer was no")
	f.untouched(before)
	f.stdin = &reader{func() { f.progress("cursor/stock/orders/0", 0, 17, 20) }, strings.NewReader("y\n")}
	f.run(replayArgs("-from", "3")...).want(t, statusGood, "offset 3 to 16", "from offset 3 up to 17, then on from 20")
	f.run(adoptArgs("-at", "20", "-yes")...).want(t, statusGood)
	f.stdin = &reader{func() {
		f.exec(`update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid() where name = 'cursor/stock/orders/0'`)
	}, strings.NewReader("y\n")}
	f.run(replayArgs("-from", "3")...).want(t, statusFailed, "the cursor changed while you were asked")
}

// A message that is parked in a replay is redriven as a part of that replay.
func TestReplayParksAndRedrives(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	b := breaks()
	s.start(b.handle, nil)
	s.keyed("a", "v0", "v1", "v2")
	s.reaches(3)
	b.mu.Lock()
	b.sick["v1"] = true
	b.mu.Unlock()
	s.run(replayArgs("-from", "0", "-yes")...).want(t, statusGood)
	s.reaches(3)
	s.times(map[int64]int{0: 2, 1: 1, 2: 2})
	b.mend()
	s.run("parked", "show", "-id", s.parkedID("v1")).want(t, statusGood, "replay          1, calls under keys of their own: no")
	s.run("parked", "redrive", "-id", s.parkedID("v1"), "-reason", "mended", "-yes").want(t, statusGood)
	s.until(`select count(*) = 6 from effects`)
	s.times(map[int64]int{0: 2, 1: 2, 2: 2})
}
