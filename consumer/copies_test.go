package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
)

// topics is a source of several logs.
type topics []*memlog.Source

func topicsOf(logs ...*memlog.Log) (s topics) {
	for _, l := range logs {
		s = append(s, &memlog.Source{Log: l, GroupID: "stock"})
	}
	return s
}

func (s topics) Group() string { return s[0].Group() }

func (s topics) Topics() (names []string) {
	for _, one := range s {
		names = append(names, one.Topics()...)
	}
	return names
}

func (s topics) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	errs := make([]error, len(s))
	var all sync.WaitGroup
	for i, one := range s {
		all.Go(func() { errs[i] = one.Run(ctx, own) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// untold is a source that does not name its topics.
type untold struct{ consumer.Source }

// reads waits until a topic's only partition has reached an offset.
func (r *rig) reads(topic string, offset int) {
	r.t.Helper()
	until(r.t, topic+"'s position", func() bool {
		return r.count(`select coalesce(max(next_offset), -1) from onlyonce.positions where topic = $1`, topic) == offset
	})
}

// effects lists the values that took effect, sorted.
func (r *rig) effects() string {
	r.t.Helper()
	var all string
	if err := r.pool.QueryRow(
		r.t.Context(),
		`select coalesce(string_agg(value, ' ' order by value), '') from effects`,
	).Scan(&all); err != nil {
		r.t.Fatal(err)
	}
	return all
}

func (r *rig) noEffects(values ...string) {
	r.t.Helper()
	slices.Sort(values)
	if got := r.effects(); got != strings.Join(values, " ") {
		r.t.Errorf("effects: %s; want %v", got, values)
	}
}

// K8: several topics without a choice are refused, and so is a choice that nothing would use.
func TestK8ChoiceIsAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	two := topicsOf(r.log, memlog.NewLog("paid", 1))
	for name, c := range map[string]struct {
		source consumer.Source
		change func(*consumer.Config)
		want   string
	}{
		"two topics":        {two, nil, "Config.Copies: is not set, and the source reads 2 topics"},
		"two topics within": {two, func(c *consumer.Config) { c.Copies = consumer.WithinTopic }, ""},
		"two topics across": {two, func(c *consumer.Config) { c.Copies = consumer.AcrossTopics }, ""},
		"two topics, no ids": {two, func(c *consumer.Config) {
			c.Key = nil
			c.PositionsOnly = true
		}, ""},
		"a choice without ids": {
			two,
			func(c *consumer.Config) {
				c.Key = nil
				c.PositionsOnly = true
				c.Copies = consumer.WithinTopic
			},
			"there are no ids",
		},
		"one topic":                 {r.src, nil, ""},
		"one topic across":          {r.src, func(c *consumer.Config) { c.Copies = consumer.AcrossTopics }, ""},
		"topics that are not known": {untold{two}, nil, ""},
		"events of two topics":      {events{two}, func(c *consumer.Config) { c.Key = nil }, ""},
		"a choice for events": {
			events{two},
			func(c *consumer.Config) {
				c.Key = nil
				c.Copies = consumer.WithinTopic
			},
			"Config.Copies: must not be set",
		},
		"no choice": {two, func(c *consumer.Config) { c.Copies = 3 }, "Config.Copies: is 3"},
	} {
		cfg := testConfig()
		if c.change != nil {
			c.change(&cfg)
		}
		_, err := consumer.New(r.pool, c.source, consumer.HandlerFunc(queued), cfg)
		wrong := c.want == "" && err != nil ||
			c.want != "" && (!errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), c.want))
		if wrong {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// K8: an order's id in two topics is two messages within topics, and one across; their calls have
// keys of their own or one, as the messages do.
func TestK8IdsInTwoTopics(t *testing.T) {
	t.Parallel()
	for choice, want := range map[consumer.Copies][]string{
		consumer.WithinTopic:  {"created", "paid"},
		consumer.AcrossTopics: {"created"},
	} {
		r := newRig(t, 1)
		paid := memlog.NewLog("paid", 1)
		source := topicsOf(r.log, paid)
		cfg := testConfig()
		cfg.Copies = choice
		handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "call", Target: "/x", Body: []byte("body")}); err != nil {
				return err
			}
			value := "created"
			if m.Topic == "paid" {
				value = "paid"
			}
			_, err := tx.Exec(ctx, `insert into effects (value) values ($1)`, value)
			return err
		}
		stop := r.startOn(source, r.pool, handle, cfg)
		r.log.Append(0, "same", id("17"))
		r.reads("orders", 1)
		paid.Append(0, "same", id("17"))
		paid.Append(0, "same", id("17")) // a copy in any case
		r.reads("paid", 2)
		stop()
		r.noEffects(want...)
		if n := r.count(`select count(distinct key) from onlyonce.outbox_log`); n != len(want) {
			t.Errorf("choice %d: %d keys of calls, want %d", choice, n, len(want))
		}
		if len(r.reasons()) > 0 {
			t.Errorf("choice %d: parked %v", choice, r.reasons())
		}
	}
}

// K8: what a scope has claimed with one topic is found when a second one comes, whichever choice
// comes with it; and the choice stays.
func TestK8SecondTopicForgetsNothing(t *testing.T) {
	t.Parallel()
	for choice, want := range map[consumer.Copies][]string{
		consumer.WithinTopic:  {"1", "2", "paid-1"},
		consumer.AcrossTopics: {"1", "2"},
	} {
		r := newRig(t, 1)
		r.log.Append(0, "1", id("1"))
		stop := r.start(effect, testConfig()) // one topic, no choice
		r.reads("orders", 1)
		stop()

		paid := memlog.NewLog("paid", 1)
		handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			value := string(m.Value)
			if m.Topic == "paid" {
				value = "paid-" + value
			}
			_, err := tx.Exec(ctx, `insert into effects (value) values ($1)`, value)
			return err
		}
		cfg := testConfig()
		cfg.Copies = choice
		both := topicsOf(r.log, paid)
		r.log.Append(0, "1", id("1")) // a copy of what was claimed without a choice
		paid.Append(0, "1", id("1"))
		stop = r.startOn(both, r.pool, handle, cfg)
		r.reads("orders", 2)
		r.reads("paid", 1)
		stop()

		stop = r.start(handle, testConfig()) // the program before, in a rolling deployment
		r.log.Append(0, "2", id("2"))
		r.log.Append(0, "2", id("2"))
		r.reads("orders", 4)
		stop()
		r.noEffects(want...)

		for name, c := range map[string]struct {
			source consumer.Source
			copies consumer.Copies
		}{
			"the other choice":         {both, 3 - choice},
			"a third topic":            {topicsOf(memlog.NewLog("shipped", 1)), 0},
			"a third topic, untold of": {untold{topicsOf(memlog.NewLog("shipped", 1))}, 0},
		} {
			r.halts = nil
			cfg.Copies = c.copies
			stop = r.startOn(c.source, r.pool, handle, cfg)
			h := r.halted()
			stop()
			if h.Reason != consumer.HaltCopies || h.Command() != "" || !strings.Contains(h.Error(), "Config.Copies") {
				t.Errorf("%s: %v", name, h)
			}
		}
		r.noEffects(want...)
	}
}

// K8: consumers of one scope that read a topic each, without a choice, are one consumer of two
// topics: the second one halts.
func TestK8TwoConsumersOfAScope(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "a", id("1"))
	stop := r.start(effect, testConfig())
	r.reads("orders", 1)
	paid := memlog.NewLog("paid", 1)
	paid.Append(0, "b", id("1"))
	stopSecond := r.startOn(topicsOf(paid), r.pool, effect, testConfig())
	h := r.halted()
	stopSecond()
	stop()
	if h.Reason != consumer.HaltCopies || h.Topic != "paid" || !strings.Contains(h.Detail, "orders") {
		t.Errorf("halt: %v", h)
	}
	if n := r.count(`select count(*) from onlyonce.cursors`); n != 1 {
		t.Errorf("%d cursors", n)
	}
	r.noEffects("a")
}

// K8: parked, tried again and replayed within topics, a message stays apart from the one of another
// topic that has its id.
func TestK8ParkedAndReplayedWithinTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	paid := memlog.NewLog("paid", 1)
	cfg := testConfig()
	cfg.Copies = consumer.WithinTopic
	var well atomic.Bool
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !well.Load() {
			return consumer.Permanent(errBoom)
		}
		return effect(ctx, tx, m)
	}
	both := topicsOf(r.log, paid)
	r.log.Append(0, "a", id("1"))
	paid.Append(0, "b", id("1"))
	stop := r.startOn(both, r.pool, handle, cfg)
	r.reads("orders", 1)
	r.reads("paid", 1)
	well.Store(true)
	r.log.Append(0, "a", id("1")) // copies of what is parked
	paid.Append(0, "b", id("1"))
	r.reads("orders", 2)
	r.reads("paid", 2)
	r.noEffects()
	r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
	until(t, "both", func() bool { return r.count(`select count(*) from onlyonce.parked where state = 'resolved'`) == 2 })
	r.noEffects("a", "b")
	stop()
	// As `onlyonce replay -from 0` does, of both.
	r.exec(`with c as (update onlyonce.cursors set run = run + 1,
                                                   run_start = 0,
                                                   replay_no = 1,
                                                   replay_until = 2,
                                                   replay_resume = 2
                                                 returning id)
  update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`)
	stop = r.startOn(both, r.pool, handle, cfg)
	until(t, "the replays' end", func() bool {
		return r.count(`select count(*) from onlyonce.cursors where replay_until is not null`) == 0
	})
	r.log.Append(0, "a", id("1"))
	paid.Append(0, "b", id("1"))
	r.reads("orders", 3)
	r.reads("paid", 3)
	stop()
	r.noEffects("a", "a", "b", "b")
}

// K8: events of two topics that have one id are two events: both are applied, both calls go out,
// both can be parked.
func TestK8EventsOfTwoTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	paid := memlog.NewLog("paid", 1)
	cfg := testConfig()
	cfg.Key = nil
	r.log.Append(0, "1")
	r.log.Append(0, "2")
	paid.Append(0, "1")
	paid.Append(0, "2")
	stop := r.startOn(newEventLog(topicsOf(r.log, paid)), r.pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "2" {
			return consumer.Permanent(errBoom)
		}
		if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "call", Target: "/x", Body: []byte("body")}); err != nil {
			return err
		}
		return effect(ctx, tx, m)
	}, cfg)
	r.reads("orders", 2)
	r.reads("paid", 2)
	stop()
	r.noEffects("1", "1")
	if n := r.count(`select count(distinct key) from onlyonce.outbox_log`); n != 2 {
		t.Errorf("%d keys of calls, want 2", n)
	}
	if n := r.count(`select count(*) from onlyonce.parked where state = 'waiting'`); n != 2 {
		t.Errorf("%d are parked, want 2", n)
	}
}

// K8: shards agree. If one has no row yet, it copies what ids mean in the others, so that
// partitions can move with their keys.
func TestK8ShardsAgree(t *testing.T) {
	t.Parallel()
	r := newShardRig(t, 2)
	at := func(n int64) func() bool {
		return func() bool { return r.position(0) == n && r.b.position(1) == n }
	}
	r.log.Append(0, "a", id("1"))
	r.log.Append(1, "b", id("2"))
	stop := r.sharded(r.by("a", "b"), testConfig())
	until(t, "both positions", at(1))
	stop()
	r.b.exec(`delete from onlyonce.scopes`) // as if it was the first time there
	paid := memlog.NewLog("paid", 1)
	shards := r.set(func(topic string, partition int32) string {
		if topic == "paid" {
			return "b"
		}
		if partition == 0 {
			return "a"
		}
		return "b"
	})
	r.log.Append(0, "a", id("1"))
	r.log.Append(1, "b", id("2"))
	paid.Append(0, "c", id("2"))
	cfg := testConfig()
	cfg.Copies = consumer.WithinTopic
	stop = r.shardedOn(topicsOf(r.log, paid), shards, queued, cfg)
	until(t, "both positions", at(2))
	r.b.reads("paid", 1)
	stop()
	for name, one := range map[string]*rig{"a": r.rig, "b": r.b} {
		n := one.count(`select count(*) from onlyonce.scopes where scope = 'stock' and first_topic = 'orders' and copies = 'within'`)
		if n != 1 {
			t.Errorf("shard %s has not the scope's row as the other one", name)
		}
	}
	r.noEffects("a")
	r.b.noEffects("b", "c")
}

// K8: two shards that begin at once agree, because both write the row of the first shard first.
func TestK8FirstShardDecides(t *testing.T) {
	t.Parallel()
	r := newShardRig(t, 1)
	r.log.Append(0, "a", id("1"))
	stop := r.sharded(r.by("b"), testConfig())
	until(t, "the position", func() bool { return r.b.position(0) == 1 })
	stop()
	for name, one := range map[string]*rig{"a": r.rig, "b": r.b} {
		if n := one.count(`select count(*) from onlyonce.scopes where scope = 'stock' and first_topic = 'orders'`); n != 1 {
			t.Errorf("shard %s has not the scope's row", name)
		}
	}
}
