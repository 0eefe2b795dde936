package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// twoShards are the databases a and b, and a topic of two partitions.
type twoShards struct {
	a, b *fixture
	log  *memlog.Log
	t    *testing.T
}

// handleOne lets a consumer handle the first message of partition 1 in a.
func (s *twoShards) handleOne() {
	s.t.Helper()
	s.append(1, "m0")
	_, stop := s.start("a", effect, nil)
	s.a.until(`select coalesce(bool_and(next_offset = 1), false) from onlyonce.positions where partition = 1`)
	stop()
}

func newTwoShards(t *testing.T) *twoShards {
	t.Helper()
	s := &twoShards{newFixture(t), newFixture(t), memlog.NewLog("orders", 2), t}
	for _, f := range []*fixture{s.a, s.b} {
		f.exec(`create table effects (value text, off bigint, n bigint generated always as identity)`)
	}
	return s
}

// start runs a consumer that has just joined, with partition 1 in the named shard, and 0 in a.
func (s *twoShards) start(
	one string,
	h consumer.HandlerFunc,
	change func(*consumer.Config),
) (halts <-chan *consumer.HaltError, stop func()) {
	s.t.Helper()
	halted := make(chan *consumer.HaltError, 1000)
	cfg := consumer.Config{
		Scope:        "stock",
		Key:          consumer.HeaderKey("message-id"),
		BatchSize:    10,
		Linger:       time.Millisecond,
		Backoff:      dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
		DrainTimeout: 50 * time.Millisecond,
		Timeouts:     dedupe.Timeouts{Lock: 2 * time.Second},
		Hooks:        consumer.Hooks{Halted: func(e *consumer.HaltError) { halted <- e }},
	}
	if change != nil {
		change(&cfg)
	}
	ofPartition := []string{"a", one}
	shards, err := shard.New(shard.Config{
		Pools:       map[string]*pgxpool.Pool{"a": s.a.pool, "b": s.b.pool},
		OfPartition: func(_ string, partition int32) string { return ofPartition[partition] },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := consumer.NewSharded(shards, &memlog.Source{Log: s.log, GroupID: "g1"}, h, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(apart(s.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("Run: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return halted, stop
}

func moveArgs(verb string, more ...string) []string {
	return append([]string{"cursor", verb, "-scope", "stock", "-topic", "orders", "-partition", "1", "-reason", "OPS-40", "-yes"}, more...)
}

// named runs the command that a halt prints.
func (s *twoShards) named(h *consumer.HaltError) result {
	s.t.Helper()
	words := split(s.t, strings.NewReplacer("URL-OF-a", s.a.url, "URL-OF-b", s.b.url, "WHY", "OPS-40").Replace(h.Command()))
	return session{t: s.t}.run(append(words[1:], "-yes")...)
}

func (s *twoShards) append(partition int32, value string) (offset int64) {
	return s.log.AppendMessage(partition, &consumer.Message{Value: []byte(value), Headers: []consumer.Header{id(value)}})
}

// F12, F13: a partition moves from a to b while messages and copies keep arriving, in the order
// that docs/scaling.md has. A process of the old Shards that was stopped in mid-batch commits
// nothing when it goes on. New processes wait until the partition is theirs. Copies of what was
// applied in a are recognized in b. Each message has one effect, in one of the two.
func TestF13MoveBetweenShards(t *testing.T) {
	t.Parallel()
	for _, positions := range []bool{false, true} {
		t.Run(fmt.Sprintf("positions only %t", positions), func(t *testing.T) {
			t.Parallel()
			s := newTwoShards(t)
			config := func(c *consumer.Config) {
				if positions {
					c.Key = nil
					c.PositionsOnly = true
				}
			}
			// Traffic, with copies of any earlier message of the partition, unless there are only
			// positions.
			var produced [2]int
			var end [2]int64
			var mu sync.Mutex
			produce := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				for range n {
					p := rand.IntN(2)
					i := produced[p]
					if !positions && i > 0 && rand.IntN(4) == 0 {
						i = rand.IntN(i)
					} else {
						produced[p]++
					}
					end[p] = 1 + s.append(int32(p), fmt.Sprintf("p%d-%d", p, i))
				}
			}
			running, quiet := context.WithCancel(t.Context())
			var traffic sync.WaitGroup
			traffic.Go(func() {
				tick := time.NewTicker(2 * time.Millisecond)
				defer tick.Stop()
				for running.Err() == nil {
					produce(3)
					<-tick.C
				}
			})
			defer func() { quiet(); traffic.Wait() }()

			_, stopOld := s.start("a", effect, config)
			s.a.until(`select coalesce(min(next_offset), 0) > 50 from onlyonce.positions`)
			stopOld()

			// The zombie: a process of the old Shards, with the whole batch queued and nothing
			// sent.
			entered := make(chan struct{})
			resume := make(chan struct{})
			var once sync.Once
			_, stopZombie := s.start("a", func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
				if m.Partition == 1 {
					once.Do(func() { close(entered); <-resume })
				}
				tx.Queue(`insert into effects (value, off) values ($1, $2)`, string(m.Value), m.Offset)
				return nil
			}, config)
			select {
			case <-entered:
			case <-time.After(testPatience):
				pgtest.GaveUp(t, testPatience, "a message for the zombie")
			}

			// New processes, of the new Shards. Partition 0 goes on; 1 waits.
			halts, stopNew := s.start("b", effect, config)
			h := next(t, halts)
			if h.Reason != consumer.HaltOtherShard || h.Partition != 1 {
				t.Errorf("halt: %v", h)
			}
			adopt := moveArgs("adopt", "-postgres", s.b.url, "-from", s.a.url)
			s.a.run(adopt...).want(t, statusFailed, "is in use, at offset", "retire it first")
			s.named(h).want(t, statusGood, "Done: retired at offset")
			for h.Detail = ""; !strings.Contains(h.Detail, "which was retired"); {
				h = next(t, halts)
			}
			at := one[int64](s.a, `select next_offset from onlyonce.positions where partition = 1`)
			r := s.named(h).want(t, statusGood, "nothing is handled again", fmt.Sprintf("Done: the next offset is %d", at))
			t.Log("\n" + r.out)
			s.a.run(adopt...).want(t, statusFailed, "the cursor is in use here")
			s.b.until(fmt.Sprintf(`select coalesce(max(next_offset), 0) > %d from onlyonce.positions`, at+50))
			close(resume)
			stopZombie()

			// A late process of the old Shards.
			stopNew()
			halts, stopOld = s.start("a", effect, config)
			if h := next(t, halts); h.Reason != consumer.HaltRetired ||
				h.Partition != 1 ||
				!strings.Contains(h.Error(), "moved to another shard") {
				t.Errorf("halt: %v", h)
			}
			stopOld()
			_, stopNew = s.start("b", effect, config)
			quiet()
			traffic.Wait()
			produce(50)
			for f, p := range map[*fixture]int32{s.a: 0, s.b: 1} {
				f.until(fmt.Sprintf(`select bool_and(next_offset = %d) from onlyonce.positions where retired_at is null and partition = %d`,
					end[p], p))
			}
			stopNew()

			effects := map[string]int{}
			for _, f := range []*fixture{s.a, s.b} {
				var all []string
				if err := json.Unmarshal(one[[]byte](f, `select coalesce(json_agg(value), '[]') from effects`), &all); err != nil {
					t.Fatal(err)
				}
				for _, v := range all {
					effects[v]++
				}
			}
			missing := 0
			doubled := 0
			for p := range 2 {
				for i := range produced[p] {
					switch n := effects[fmt.Sprintf("p%d-%d", p, i)]; {
					case n == 0:
						missing++
					case n > 1:
						doubled++
					}
				}
			}
			if missing+doubled > 0 || len(effects) != produced[0]+produced[1] {
				t.Errorf("of %v messages %d are missing, %d have more than one effect, and there are %d effects",
					produced, missing, doubled, len(effects))
			}
			if n := one[int](s.a, `select count(*) from onlyonce.parked`) + one[int](s.b, `select count(*) from onlyonce.parked`); n > 0 {
				t.Errorf("%d messages parked", n)
			}
			if n := one[int](s.b, `select count(*) from effects`); n == 0 {
				t.Error("no effect in b: nothing has moved")
			}
		})
	}
}

// F13: what the position means comes with it. If something would be left in the old database, the
// move is refused.
func TestF13AdoptFrom(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"-from and -at", []string{"-from", s.a.url, "-at", "4"}},
		{"-from: there is no cursor", []string{"-from", s.a.url}},
	} {
		s.b.run(moveArgs("adopt", c.args...)...).want(t, statusEnvironment, c.want)
	}
	s.append(1, "m0")
	s.log.AppendMessage(1, &consumer.Message{Value: []byte("no id")})
	_, stop := s.start("a", effect, nil)
	s.a.until(`select coalesce(bool_and(next_offset = 2), false) from onlyonce.positions where partition = 1`)
	s.a.until(`select exists (select from onlyonce.cursors where partition = 0)`)
	stop()
	s.a.exec(`update onlyonce.cursors set replay_no = 7 where partition = 0`) // of the scope's, whichever partition it was of
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusFailed, "1 messages of it are parked", "Discard them there")
	s.a.run("parked", "discard", "-scope", "stock", "-reason", "OPS-40", "-yes").want(t, statusGood)

	// A different message with that name is known in b already: the key stays b's, and the command
	// reports it.
	s.b.exec(`select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', 'm0')], array[42])`)
	s.a.exec(`select onlyonce.claim_consumer(array_agg(onlyonce.key('', 'other', n::text)), array_agg(0::bigint))
		from generate_series(1, 25000) n`)
	s.a.exec(`select onlyonce.claim(array[onlyonce.key('', 'loop', 'order 17')], array[0])`)

	s.a.exec(`insert into onlyonce.pauses (scope, topic, partition, reason) values ('stock', 'orders', 1, 'stocktaking')`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusFailed, "it is paused in", "stocktaking")
	s.a.exec(`delete from onlyonce.pauses`)
	s.a.exec(`update onlyonce.cursors set retired_at = retired_at - interval '8 days' where partition = 1`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusFailed, "longer ago than keys are remembered there", "-late")
	s.b.run(moveArgs("adopt", "-at", "2", "-late")...).want(t, statusEnvironment, "only with -from")
	s.b.run(moveArgs("adopt", "-from", s.a.url, "-late")...).want(
		t,
		statusGood,
		"Keys that came with it: 25000.",
		"1 keys are claimed here for another payload",
	)
	var was, is ops.Cursor
	for f, into := range map[*fixture]*ops.Cursor{s.a: &was, s.b: &is} {
		r := f.run("cursor", "show", "-partition", "1", "-json").want(t, statusGood)
		if err := json.Unmarshal([]byte(r.out), into); err != nil {
			t.Fatal(err)
		}
	}
	if known := one[bool](s.b, `select exists (select from onlyonce.inbox where key = onlyonce.key('', 'loop', 'order 17'))`); known {
		t.Error("a key of standard_keys came along: another order 17 may be meant here")
	}
	good := is.Position == 2 &&
		*is.Group == *was.Group &&
		*is.TopicID == *was.TopicID &&
		*is.ClusterID == *was.ClusterID &&
		is.Replay == 7 &&
		is.RetiredAt == nil
	if !good {
		t.Errorf("a has %+v\nb has %+v", was, is)
	}
	if n := one[int](
		s.b,
		`select count(*) from onlyonce.audit
			where action = 'cursor adopt' and detail->'from'->>'keys' = '25000' and detail->'from'->'cursor'->>'position' = '2'`,
	); n != 1 {
		t.Error("no audit row")
	}

	// And back again, to a cursor that was retired. A move in the wrong direction is refused,
	// because it would set the partition back.
	// a replay, which has interrupted the work at 3
	s.b.exec(`update onlyonce.cursors set run_start = 1, replay_until = 2, replay_resume = 3 where partition = 1`)
	s.b.run(moveArgs("retire")...).want(t, statusGood)
	s.b.run(moveArgs("adopt", "-from", s.a.url, "-late")...).want(t, statusFailed, "retired here at offset 3, which is ahead of 2")
	s.b.exec(`update onlyonce.cursors set run_start = 2, replay_until = null, replay_resume = null where partition = 1`)
	s.b.exec(`select onlyonce.claim(array[onlyonce.key('', 'loop', 'order 18')], array[0])`)
	s.a.run(moveArgs("adopt", "-from", s.b.url, "-standard-keys")...).want(t, statusGood, "was retired here, and is brought back")
	if known := one[bool](
		s.a,
		`select exists (select from onlyonce.inbox where key = onlyonce.key('', 'loop', 'order 18') and segment like 'standard_keys%')`,
	); !known {
		t.Error("-standard-keys did not bring a key of standard_keys")
	}
	s.log.Recreate()
	halts, stop := s.start("a", effect, nil)
	h := next(t, halts)
	for h.Partition != 1 {
		h = next(t, halts)
	}
	stop()
	if h.Reason != consumer.HaltNewTopic {
		t.Errorf("the topic is another one: %v", h)
	}
	if n := one[int](
		s.a,
		`select count(*) from onlyonce.positions where partition = 1 and next_offset = 2 and retired_at is null`,
	); n != 1 {
		t.Error("the cursor is not back")
	}
}
