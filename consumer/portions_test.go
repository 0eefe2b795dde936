package consumer_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// O1: if messages may have been handled before, the keys of a large log are noted a portion at a
// time: one statement that notes all of them would reach its bound, and begin anew, without end. If
// the handlers ask for no calls, nothing is noted.
func TestO1KeysAreNotedInPortions(t *testing.T) {
	const batches, size = 60, 1024
	for name, h := range map[string]consumer.HandlerFunc{"calls": calling, "no calls": queued} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, stop := calledFor(t, testConfig())
			stop()
			// A transaction that notes more has no time for that.
			r.exec(`create function bounded() returns trigger language plpgsql as $$
    begin
      perform set_config(
        'test.noted',
        (coalesce(nullif(current_setting('test.noted', true), ''), '0')::integer + (select count(*) from noted))::text,
        true
      );
      if current_setting('test.noted')::integer > 30000 then raise exception using errcode = '57014',
                                                               message = 'it took too long'; end if;
      return null;
    end $$`)
			r.exec(`create trigger bounded after insert on onlyonce.call_keys referencing new table as noted for each statement
				execute function bounded()`)
			r.exec(`insert into onlyonce.batches (
  slot,
  id,
  n,
  bytes,
  sink,
  lane,
  keys,
  tenant,
  scope,
  name,
  method,
  target,
  header,
  bodies
)
    select 0,
           (i + 1000) * 1024,
           $2::int,
           0,
           's',
           i % 16,
           array(select gen_random_uuid() from generate_series(1, $2::int) where i > 0),
           '',
           'x',
           'n',
           'POST',
           '',
           '',
           array_fill(''::bytea, array[$2::int])
      from generate_series(1, $1::int) i`, batches, size)
			r.exec(`
update onlyonce.cursors set run = run + 1,
                            run_start = 0,
                            replay_no = 1,
                            replay_until = 5,
                            replay_resume = 5`)
			r.log.Append(0, "later", id("later"))
			stop = r.start(h, testConfig())
			r.reaches(0, 6)
			stop()
			want := batches*size + 5
			if name == "no calls" {
				want = 0
			}
			if n := r.count(`select count(*) from onlyonce.call_keys`); n != want {
				t.Errorf("%d keys are noted, want %d", n, want)
			}
			if n := r.count(`select count(*) from onlyonce.parked`); n > 0 {
				t.Errorf("%d messages are parked", n)
			}
			if got := r.redone(); name == "calls" && got != "0 redone, 61446 new" {
				t.Errorf("%s: a call was written again", got)
			}
		})
	}
}

// C5: rows below the position that a transaction of another session has kept for hours are deleted
// a portion at a time: a statement that deletes all of them would reach its bound, and begin anew,
// without end. Neither a take-over nor the position waits for it.
func TestC5OldRowsInPortions(t *testing.T) {
	const old = 20_000
	one := slotConfig()
	one.Concurrency = 1
	for name, next := range map[string]*consumer.Config{
		"living owner":                   nil,
		"take-over":                      new(slotConfig()),
		"take-over by one without slots": &one,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			pgtest.Bound(t, r.pool, "onlyonce.done", 300) // less than the first portion
			open, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = open.Rollback(t.Context()) }()
			values := r.rounds(5, 10)
			r.log.Skip(0, old)
			cfg := slotConfig()
			stop := r.start(effect, cfg)
			r.reaches(0, old+10)
			if next != nil {
				stop()
			}
			r.exec(
				`
insert into onlyonce.done (
  cursor_id,
  "offset",
  hash,
  run,
  last
)
  select c.id,
         i,
         1,
         0,
         false
    from onlyonce.cursors c, generate_series(10, $1) i`,
				old,
			)
			if err := open.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if next != nil {
				stop = r.start(effect, *next)
			}
			values = append(values, r.moreRounds(5, old+10, 10)...)
			r.reaches(0, old+20)
			until(t, "the rows are deleted", func() bool { return r.count(`select count(*) from onlyonce.done`) <= 20 })
			stop()
			r.once(values...)
		})
	}
}
