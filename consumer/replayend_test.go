package consumer_test

import (
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
)

// F10: a replay ends at its end at each exit that has a position: behind the range's last record,
// behind a range that ends without records, and where there is no record in it at all. What is in
// the log behind the end, and was not handled before, is handled once: a position that passes the
// end would pass over it.
func TestF10ReplayEndsAtItsEnd(t *testing.T) {
	for name, cfg := range map[string]consumer.Config{"batches": testConfig(), "slots": slotConfig()} {
		// The log has records at 0 to 3, none at 4 and 5, and the position is 6.
		for _, span := range [][2]int64{{1, 3}, {2, 4}, {2, 5}, {2, 6}, {4, 5}, {4, 6}} {
			for _, behind := range []int{0, 30} {
				t.Run(fmt.Sprintf("%s, from %d to %d, %d behind", name, span[0], span[1], behind), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, 1)
					stop := r.start(effect, cfg)
					values := r.numbered(0, 4)
					r.log.Skip(0, 2)
					r.reaches(0, 6)
					stop()
					r.exec(`create table passed (position bigint)`)
					r.exec(`create function passes() returns trigger language plpgsql as $$
						begin
						  insert into passed select new.next_offset from onlyonce.cursors c
						   where c.id = new.cursor_id and c.replay_until < new.next_offset;
						  return null;
						end $$`)
					r.exec(`create constraint trigger passes after insert on onlyonce.progress
						deferrable initially deferred for each row execute function passes()`)
					input := ops.ReplayInput{CursorName: place, From: span[0], To: span[1]}
					if _, err := ops.Replay(t.Context(), r.pool, ops.By{Reason: "test"}, input); err != nil {
						t.Fatal(err)
					}
					for i := range behind {
						v := fmt.Sprintf("behind-%d", i)
						r.log.Append(0, v, id(v))
						values = append(values, v)
					}
					stop = r.start(effect, cfg)
					until(t, "the replay has ended", func() bool {
						return r.count(`select count(*) from onlyonce.cursors where replay_until is null`) == 1
					})
					r.reaches(0, int64(6+behind))
					stop()
					if n := r.count(`select count(*) from passed`); n > 0 {
						t.Errorf("%d transactions left a position behind the end", n)
					}
					for o, v := range values {
						want := 1
						if int64(o) >= span[0] && int64(o) < min(span[1], 4) {
							want = 2
						}
						if n := r.count(`select count(*) from effects where value = $1`, v); n != want {
							t.Errorf("%s has %d effects, want %d", v, n, want)
						}
					}
				})
			}
		}
	}
}
