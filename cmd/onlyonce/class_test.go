package main

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

func classArgs(class string, more ...string) []string {
	return append([]string{"inbox", "class", "-scope", "stock", "-class", class, "-reason", "OPS-12", "-yes"}, more...)
}

// K10: a consumer of another class halts, and goes on when the command that the halt names was run.
// A second change has to wait.
func TestInboxClass(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.run(classArgs("long")...).want(t, statusEnvironment, "has claimed an id")
	stop := s.start(effect, nil)
	s.keyed("a", "v0")
	s.reaches(1)
	stop()
	halted := make(chan *consumer.HaltError, 100)
	s.start(effect, func(c *consumer.Config) {
		c.Horizon = consumer.HorizonLong
		c.Hooks.Halted = func(h *consumer.HaltError) { halted <- h }
	})
	s.keyed("a", "v0", "v1")
	h := next(t, halted)
	if want := "onlyonce inbox class -scope stock -class long -reason WHY"; h.Reason != consumer.HaltClass || h.Command() != want {
		t.Fatalf("halt: %v; %s", h, h.Command())
	}
	s.run(classArgs("forever")...).want(t, statusEnvironment, "must be one of short, standard, long")
	r := s.run(classArgs("long")...).want(t, statusGood, "were of class standard, and are from then on of "+
		"class long, in consumer_long_keys", "For about 8d", "Done; audit row")
	t.Log("\n" + r.out)
	s.reaches(3)
	if got := s.effects(); got != "v0 v1" {
		t.Errorf("effects: %s", got)
	}
	s.run(classArgs("long")...).want(t, statusGood, "is of class long already: nothing was changed")
	s.run(classArgs("short")...).want(t, statusFailed, "consumer_keys still remembers keys of it from before")
	s.run("inbox", "status").want(t, statusGood, "consumer_long_keys_0", "consumer_short_keys: remembered at least 1d", "empty")
	s.run("explain", "v0", "-scope", "stock").want(t, statusGood, "A copy that comes now is a duplicate (remembered).")
	if n := one[int](
		s.fixture,
		`select count(*) from onlyonce.audit where action = 'inbox class' and detail->>'was' = 'standard'`,
	); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// K10: a partition that moves takes along the keys of its class, and also those of the class before
// while they are asked. Its scope must have the same class in both databases.
func TestK10MoveBringsTheClass(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	long := func(c *consumer.Config) { c.Horizon = consumer.HorizonLong }
	s.append(1, "m0")
	_, stop := s.start("a", effect, nil)
	s.a.until(`select coalesce(bool_and(next_offset = 1), false) from onlyonce.positions where partition = 1`)
	stop()
	s.a.run(classArgs("long")...).want(t, statusGood)
	s.append(1, "m1")
	_, stop = s.start("a", effect, long)
	s.a.until(`select coalesce(bool_and(next_offset = 2), false) from onlyonce.positions where partition = 1`)
	stop()
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	s.b.exec(`insert into onlyonce.scopes (scope, topics, first_topic, class) values ('stock', '{orders}', 'orders', 'short')`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusFailed, "of class short here and of class long (standard before) in")
	s.b.exec(`update onlyonce.scopes set class = 'long', class_before = 'short', class_changed_at = clock_timestamp()`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusFailed, "of class long (short before) "+
		"here and of class long (standard before) in")
	s.b.exec(`delete from onlyonce.scopes`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusGood, "Keys that came with it: 3.")
	for _, v := range []string{"m0", "m1", "m2"} {
		s.append(1, v)
	}
	_, stop = s.start("b", effect, long)
	s.b.until(`select coalesce(bool_and(next_offset = 5), false) from onlyonce.positions where partition = 1`)
	stop()
	if got := one[string](s.b, `select string_agg(value, ' ') from effects`); got != "m2" {
		t.Errorf("effects in b: %s", got)
	}
	if got := one[string](
		s.b,
		`select string_agg(regexp_replace(segment, '_keys_\d$', ''), ' ' order by segment) from onlyonce.inbox
			where key = onlyonce.key('', 'stock', 'm0')`,
	); got != "consumer" {
		t.Errorf("a key from before the change is in %s", got)
	}
}

// K10: a cursor was retired, and its scope has changed to a longer class since. Its keys were those
// of the shorter one, and are forgotten as such.
func TestK10MoveAfterAChangeThatIsOver(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	s.handleOne()
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	s.a.run(classArgs("long")...).want(t, statusGood)
	// Ten days later. The segment of standard is forgotten.
	s.a.exec(`update onlyonce.cursors set retired_at = retired_at - interval '10 days'`)
	s.a.exec(`update onlyonce.scopes
		set class_changed_at = class_changed_at - interval '10 days', created_at = created_at - interval '11 days'`)
	s.a.exec(`update onlyonce.rings set forgotten = clock_timestamp() - interval '9 days' where name = 'consumer_keys'`)
	s.a.exec(`update onlyonce.segments set opened_at = clock_timestamp() where ring = 'consumer_keys' and slot = 0`)
	s.a.exec(`delete from onlyonce.inbox`)
	s.b.run(moveArgs("adopt", "-from", s.a.url)...).want(t, statusFailed, "longer ago than keys are remembered there")
	s.b.run(moveArgs("adopt", "-from", s.a.url, "-late")...).want(t, statusGood)
}

// K10: while the class changes, a cursor that is behind keeps segments of the old ring too, and the
// doctor says so if that has tables for less.
func TestDoctorSeesTheRingBefore(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stop := s.start(effect, nil)
	s.keyed("a", "v0")
	s.reaches(1)
	stop()
	s.run(classArgs("long")...).want(t, statusGood)
	s.exec(`insert into onlyonce.frontiers (cursor_id, run, frontier) select id, run, clock_timestamp() - interval '2 days'
		from onlyonce.cursors
		on conflict (cursor_id) do update set run = excluded.run, frontier = excluded.frontier`)
	r := s.run("doctor")
	if want := "consumer_keys keeps keys for that much longer"; !strings.Contains(r.out, want) {
		t.Errorf("no %q in\n%s", want, r.out)
	}
}

// K8, K10: a consumer makes the scope's row, with another class, after the move has found none. The
// keys that came along would be in another ring.
func TestK10RowThatIsMadeDuringAMove(t *testing.T) {
	t.Parallel()
	s := newTwoShards(t)
	s.handleOne()
	s.a.run(moveArgs("retire")...).want(t, statusGood)
	maker, err := s.b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maker.Exec(
		t.Context(),
		`insert into onlyonce.scopes (scope, topics, first_topic, class) values ('stock', '{orders}', 'orders', 'long')`,
	); err != nil {
		t.Fatal(err)
	}
	moved := make(chan result, 1)
	go func() { moved <- s.b.run(moveArgs("adopt", "-from", s.a.url)...) }()
	s.b.until(`select exists (select from pg_locks l join pg_stat_activity a using (pid)
		where not l.granted and a.datname = current_database())`)
	if err := maker.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := <-moved
	r.want(t, statusFailed, "of class long here and of class standard in")
}
