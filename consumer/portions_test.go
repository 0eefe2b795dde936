package consumer_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// C5: rows below the position that a transaction of another session has kept for hours are deleted
// a portion at a time: a statement that deletes all of them would reach its bound, and begin anew,
// without end. Neither a take-over nor the position waits for it.
func TestC5OldRowsInPortions(t *testing.T) {
	const old = 20_000
	one := slotConfig()
	one.Concurrency = 1
	for name, next := range map[string]*consumer.Config{"living owner": nil, "take-over": new(slotConfig()), "take-over by one without slots": &one} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			// A statement that deletes more has no time for that.
			r.exec(`create function bounded() returns trigger language plpgsql as $$
				begin
				  if (select count(*) from gone) > 5000 then raise exception using errcode = '57014', message = 'it took too long'; end if;
				  return null;
				end $$`)
			r.exec(`create trigger bounded after delete on onlyonce.done referencing old table as gone for each statement execute function bounded()`)
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
			r.exec(`insert into onlyonce.done (cursor_id, "offset", hash, run, last) select c.id, i, 1, 0, false from onlyonce.cursors c, generate_series(10, $1) i`, old)
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
