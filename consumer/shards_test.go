package consumer_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// shardRig is a log whose partitions' effects live in two databases, a and b.
type shardRig struct {
	*rig // on a
	b    *rig
}

func newShardRig(t *testing.T, partitions int) *shardRig {
	t.Helper()
	r := &shardRig{newRig(t, partitions), newRig(t, partitions)}
	r.b.log = r.log
	r.b.src = r.src
	return r
}

// by makes a set of the names of the partitions' databases, in order.
func (r *shardRig) by(names ...string) *shard.Set {
	return r.set(func(topic string, partition int32) string {
		if topic != "orders" {
			return ""
		}
		return names[partition]
	})
}

func (r *shardRig) set(of func(topic string, partition int32) string) *shard.Set {
	r.t.Helper()
	set, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"a": r.pool, "b": r.b.pool}, OfPartition: of})
	if err != nil {
		r.t.Fatal(err)
	}
	return set
}

// sharded runs a consumer with those shards, as a member of its own.
func (r *shardRig) sharded(shards *shard.Set, cfg consumer.Config) (stop func()) {
	return r.shardedOn(&memlog.Source{Log: r.log, GroupID: "stock"}, shards, queued, cfg)
}

func (r *shardRig) shardedOn(src consumer.Source, shards *shard.Set, h consumer.HandlerFunc, cfg consumer.Config) (stop func()) {
	r.t.Helper()
	cfg.Hooks = r.hooks(cfg.Hooks)
	c, err := consumer.NewSharded(shards, src, h, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.run(c)
}

// retire does what `onlyonce cursor retire` does.
func (r *rig) retire(partition int32) {
	r.t.Helper()
	r.exec(`with c as (update onlyonce.cursors set retired_at = clock_timestamp() where partition = $1 returning id)
		update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`, partition)
}

// adopt does what `onlyonce cursor adopt -at` does if there is no cursor.
func (r *rig) adopt(partition int32, at int64) {
	r.t.Helper()
	r.exec(`with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/' || $1::integer) returning id)
  insert into onlyonce.cursors (
    id,
    scope,
    topic,
    partition,
    start_offset,
    run_start,
    start_policy
  )
  select id,
         'stock',
         'orders',
         $1::integer,
         $2::bigint,
         $2::bigint,
         'adopted'
    from l`, partition, at)
}

func TestShardsAreChecked(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	u, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("default_query_exec_mode", "simple_protocol")
	u.RawQuery = q.Encode()
	simple, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer simple.Close()
	src := &memlog.Source{Log: memlog.NewLog("orders", 1), GroupID: "stock"}
	one := func(string, int32) string { return "a" }
	if _, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"c": simple}, OfPartition: one}); err == nil ||
		!strings.Contains(err.Error(), `Config.Pools["c"]: the simple protocol`) {
		t.Errorf("simple protocol: %v", err)
	}
	places, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"a": pool}, OfPlace: func(string) string { return "a" }})
	if err != nil {
		t.Fatal(err)
	}
	partitions, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"a": pool}, OfPartition: one})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		set    *shard.Set
		source consumer.Source
		h      consumer.BatchHandlerFunc
		want   []string
	}{
		"no set":         {nil, src, nil, []string{"set: must not be nil", "handler: must not be nil"}},
		"for partitions": {places, src, nil, []string{"set: shard.Config.OfPartition: must not be nil"}},
		"events":         {partitions, events{src}, nil, []string{"set: must not be given with a source of events"}},
	} {
		_, err := consumer.NewSharded(c.set, c.source, c.h, consumer.Config{})
		for _, want := range append(c.want, "Config.Scope: must not be empty") {
			if !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: nothing says %q in:\n%v", name, want, err)
			}
		}
	}
}

// events makes a source one of events.
type events struct{ consumer.Source }

func (events) ServeScope(string, claimed.Mark) error { return nil }

// Each partition is whole in its own database: position, keys, what is parked, effects. Copies
// within a shard are found, and a restart goes on.
func TestShards(t *testing.T) {
	t.Parallel()
	r := newShardRig(t, 4)
	shards := r.by("a", "b", "b", "a")
	values := map[string][]string{}
	produce := func(n int) {
		for p, name := range []string{"a", "b", "b", "a"} {
			for i := range n {
				v := fmt.Sprintf("p%d-%d", p, i)
				r.log.Append(int32(p), v, id(v))
				if !slices.Contains(values[name], v) {
					values[name] = append(values[name], v)
				}
			}
		}
	}
	produce(20)
	r.log.Append(1, "no id")
	stop := r.sharded(shards, testConfig())
	r.reaches(0, 20)
	r.b.reaches(1, 21)
	r.b.reaches(2, 20)
	r.reaches(3, 20)
	status, err := r.consumer.Status(t.Context())
	good := err == nil &&
		len(status) == 4 &&
		status[1].Shard == "b" &&
		status[1].Waiting == 1 &&
		status[0].Shard == "a" &&
		status[0].Waiting == 0
	if !good {
		t.Errorf("status: %+v, %v", status, err)
	}

	// A pause is in the partition's database, and one of the scope in each.
	for _, c := range []struct {
		topic string
		a, b  int
	}{{"orders", 0, 1}, {"", 1, 1}} {
		if err := r.consumer.Pause(t.Context(), c.topic, 1, "why"); err != nil {
			t.Fatal(err)
		}
		const paused = `select count(*) from onlyonce.pauses`
		a := r.count(paused)
		b := r.b.count(paused)
		if a != c.a || b != c.b {
			t.Errorf("pause of topic %q: %d in a, %d in b", c.topic, a, b)
		}
		if err := r.consumer.Resume(t.Context(), c.topic, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.consumer.Pause(t.Context(), "other", 1, "why"); err == nil {
		t.Error("a partition of no shard was paused")
	}
	stop()

	r.log.ClearCommitted("stock")
	produce(30) // 20 of them again
	r.log.Append(2, "p1-0", id("p1-0"))
	stop = r.sharded(shards, testConfig())
	r.reaches(0, 50)
	r.b.reaches(1, 51)
	r.b.reaches(2, 51)
	r.reaches(3, 50)
	stop()
	r.once(values["a"]...)
	r.b.once(values["b"]...)
	n := r.count(`select count(*) from onlyonce.cursors`)
	m := r.b.count(`select count(*) from onlyonce.cursors`)
	if n != 2 || m != 2 {
		t.Errorf("%d cursors in a, %d in b", n, m)
	}
}

// F12: a process that has the partition in another database touches nothing of it, whatever Kafka
// remembers, and says what to do.
func TestF12CursorInAnotherShard(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(r *shardRig)
		want    []string
	}{
		{"in use there", func(*shardRig) {},
			[]string{
				`shard "a" has the cursor, at offset 10`,
				"if shard.Config.OfPartition is wrong",
				"cursor retire -postgres URL-OF-a -scope stock -topic orders -partition 0 -reason WHY",
			}},
		{"retired there, and nowhere else", func(r *shardRig) { r.retire(0) },
			[]string{
				`retired at offset 10, and shard "b" has none`,
				"cursor adopt -postgres URL-OF-b -scope stock -topic orders -partition 0 -from URL-OF-a -reason WHY",
			}},
		{"adopted here behind where it was retired there", func(r *shardRig) { r.retire(0); r.b.adopt(0, 4) },
			[]string{
				`retired at offset 10; in shard "b" it is at 4`,
				"wrong database",
				"cursor retire -postgres URL-OF-b",
				"and then: onlyonce cursor adopt -postgres URL-OF-b -scope stock -topic orders -partition 0 -from URL-OF-a",
			}},
		{"adopted here, and still in use there", func(r *shardRig) { r.b.adopt(0, 10) },
			[]string{`shard "a" has the cursor, at offset 10`, "cursor retire -postgres URL-OF-a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newShardRig(t, 1)
			values := r.numbered(0, 10)
			stop := r.sharded(r.by("a"), testConfig())
			r.reaches(0, 10)
			stop()
			c.prepare(r)
			r.log.ClearCommitted("stock") // otherwise Kafka's offset halts it, as history-lost
			r.log.Append(0, "next", id("next"))
			stop = r.sharded(r.by("b"), testConfig())
			h := r.halted()
			for _, want := range c.want {
				good := h.Reason == consumer.HaltOtherShard &&
					h.Shard == "b" &&
					h.Other == "a" &&
					strings.Contains(h.Error(), want)
				if !good {
					t.Errorf("nothing says %q in: %v", want, h)
				}
			}
			if s, err := r.consumer.Status(t.Context()); err != nil || len(s) != 1 || s[0].Halted == nil {
				t.Errorf("status: %+v, %v", s, err)
			}
			if n := r.b.count(`select count(*) from effects`); n != 0 {
				t.Errorf("%d effects in the other shard", n)
			}
			// It goes on by itself once the partition is its own.
			if r.count(`select count(*) from onlyonce.cursors where retired_at is null`) > 0 {
				r.retire(0)
			}
			if r.b.count(`select count(*) from onlyonce.cursors`) == 0 {
				r.b.adopt(0, 10)
			}
			r.b.exec(`update onlyonce.cursors set run = run + 1, run_start = 10 where run_start < 10`)
			r.b.reaches(0, 11)
			stop()
			r.once(values...)
			r.b.once("next")
		})
	}
}

// F12: two processes with different functions begin at once, each believed by its group. At most
// one of them gets anywhere.
func TestF12TwoMapsAtOnce(t *testing.T) {
	t.Parallel()
	for range 2 {
		r := newShardRig(t, 1)
		values := r.numbered(0, 20)
		cfg := testConfig()
		cfg.Key = nil
		cfg.PositionsOnly = true
		var both sync.WaitGroup
		both.Add(2)
		// Both have read and decided what they do before either proves that it is a member.
		halted := make(chan struct{}, 100)
		start := func(shards *shard.Set) func() {
			src := &memlog.Source{Log: r.log, GroupID: "stock", Believes: true}
			var once sync.Once
			arrived := func() { once.Do(both.Done) }
			src.OnCommit = func(int32, int64) error { arrived(); both.Wait(); return nil }
			mine := cfg
			mine.Hooks.Halted = func(*consumer.HaltError) { arrived(); halted <- struct{}{} }
			built, err := consumer.NewSharded(shards, src, consumer.HandlerFunc(queued), mine)
			if err != nil {
				t.Fatal(err)
			}
			return r.run(built)
		}
		stopA := start(r.by("a"))
		stopB := start(r.by("b"))
		both.Wait()
		until(t, "one halt, or both applied everything", func() bool {
			return len(halted) > 0 || r.position(0) == 20 && r.b.position(0) == 20
		})
		until(t, "another halt, or the end of the log", func() bool {
			return len(halted) > 1 || r.position(0) == 20 || r.b.position(0) == 20
		})
		stopA()
		stopB()
		count := func(one *rig) map[string]int {
			n := map[string]int{}
			for _, v := range values {
				n[v] = one.count(`select count(*) from effects where value = $1`, v)
			}
			return n
		}
		a := count(r.rig)
		b := count(r.b)
		for _, v := range values {
			if a[v]+b[v] > 1 {
				t.Fatalf("%s: %d effects in a, %d in b", v, a[v], b[v])
			}
		}
	}
}

// A partition that the set gives no database halts, and leaves the others alone; so does one for
// which OfPartition panics.
func TestPartitionOfNoShard(t *testing.T) {
	t.Parallel()
	r := newShardRig(t, 3)
	shards := r.set(func(topic string, partition int32) string {
		if partition == 2 {
			panic("no such partition")
		}
		if partition == 0 {
			return "a"
		}
		return "c"
	})
	r.numbered(0, 5)
	stop := r.sharded(shards, testConfig())
	r.reaches(0, 5)
	until(t, "both halts", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.halts, func(h *consumer.HaltError) bool {
			return h.Partition == 1 &&
				strings.Contains(
					h.Error(),
					`Config.OfPartition names "c" for orders/1, which is none of Config.Pools; correct shard.Config.OfPartition and deploy`,
				)
		}) && slices.ContainsFunc(r.halts, func(h *consumer.HaltError) bool {
			return h.Partition == 2 && strings.Contains(h.Error(), "no such partition")
		})
	})
	stop()
	if h := r.halts[0]; h.Reason != consumer.HaltNoShard || h.Command() != "" {
		t.Errorf("%v", h)
	}
}

// A cursor that is retired in one of several databases may have been moved to another one.
func TestHaltOfARetiredCursor(t *testing.T) {
	t.Parallel()
	for shard, want := range map[string]string{
		"": "; to resolve it: onlyonce cursor adopt -scope",
		"a": "; if it was moved to another shard deploy the shard.Config.OfPartition that says so; to bring it back: " +
			"onlyonce cursor adopt -postgres URL-OF-a -scope",
	} {
		h := &consumer.HaltError{Scope: "stock", Reason: consumer.HaltRetired, Shard: shard}
		if !strings.Contains(h.Error(), want) {
			t.Errorf("nothing says %q in: %v", want, h)
		}
	}
}

// F11, F12: a partition that the topic got later begins at its beginning, even if it is the first
// one of the topic in its shard.
func TestF11LaterPartitionInAShardOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newShardRig(t, 1)
	cfg := testConfig()
	cfg.Start = consumer.Latest()
	r.numbered(0, 5)
	stop := r.sharded(r.by("a"), cfg)
	r.reaches(0, 5)
	stop()
	r.log.AddPartitions(1)
	values := r.numbered(1, 5)
	stop = r.sharded(r.by("a", "b"), cfg)
	r.b.reaches(1, 5)
	stop()
	r.once()
	r.b.once(values...)
}

// One database is away: the partitions of the others go on, and its own do when it is back.
func TestShardIsAway(t *testing.T) {
	t.Parallel()
	r := newShardRig(t, 2)
	first := append(r.numbered(0, 5), r.numbered(1, 5)...)
	stop := r.sharded(r.by("a", "b"), testConfig())
	r.reaches(0, 5)
	r.b.reaches(1, 5)
	database := r.b.pool.Config().ConnConfig.Database
	allow := func(yes bool) {
		r.exec(fmt.Sprintf(`alter database %q allow_connections %v`, database, yes))
	}
	allow(false)
	r.exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = $1`, database)
	for p := range int32(2) {
		r.log.Append(p, fmt.Sprint("more", p), id(fmt.Sprint("more", p)))
	}
	r.reaches(0, 6)
	allow(true)
	r.b.pool.Reset() // the test's own questions meet no connection that was ended
	r.b.reaches(1, 6)
	stop()
	r.once(append(first[:5:5], "more0")...)
	r.b.once(append(first[5:10:10], "more1")...)
	if n := r.count(`select count(*) from onlyonce.parked`) + r.b.count(`select count(*) from onlyonce.parked`); n != 0 {
		t.Errorf("%d messages parked: the outage was held against them", n)
	}
}
