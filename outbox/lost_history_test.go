package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
)

// remember keeps what forget puts back.
func (r *rig) remember() {
	r.t.Helper()
	r.exec(`create table public.kept as select * from onlyonce.lanes`)
	r.exec(`create table public.drawn as select last_value, is_called, (select last_value from onlyonce.parked_id_seq) as parked,
		(select is_called from onlyonce.parked_id_seq) as parked_called from onlyonce.outbox_id`)
}

// forget undoes what was done to the outbox since remember, as a failover to a standby that lags
// does: cursors, the log, parked calls, and the sequences from which their ids are drawn.
func (r *rig) forget() {
	r.t.Helper()
	r.exec(`with log as (delete from onlyonce.batches), p as (delete from onlyonce.parked),
  s as (
    select setval('onlyonce.outbox_id', last_value, is_called), setval('onlyonce.parked_id_seq', parked, parked_called)
      from public.drawn)
  update onlyonce.lane_cursors l
     set prev = k.prev,
         target = k.target,
         last_id = k.last_id,
         started_at = k.started_at,
         version = k.version,
         server = null,
         timeline = 'FFFFFFFF'
    from public.kept k, s where k.id = l.id`)
}

// idle waits until each lane has read to its end.
func (r *rig) idle() {
	r.t.Helper()
	r.holds(16)
	until(r.t, "each lane has begun a pass", func() bool { return one[bool](r, `select bool_and(target is not null) from onlyonce.lanes`) })
}

// O3: an attempt settles its own call only. A failover may lose a call that is being made, or
// completed, and the server then gives its ids to another one.
func TestO3AttemptAtACallThatAFailoverLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		attempt int // at which it is held up
		capture bool
	}{{"made from the log", 1, false}, {"picked", 2, false}, {"completed", 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			g := r.gate()
			lost := charge("lost")
			lost.Capture = c.capture
			sink := newScripted(func(_ context.Context, d *outbox.Attempt) outbox.Result {
				again := outbox.Failure("again", nil)
				switch mine := string(d.Body) == string(lost.Body); {
				case mine && c.capture:
					return outbox.Result{Outcome: outbox.Delivered}
				case d.Number < c.attempt:
				case mine:
					g.pass(d)
					return outbox.Result{Outcome: outbox.Delivered}
				default:
					again.RetryAfter = time.Hour
				}
				return again
			})
			cfg := testConfig(sink)
			cfg.Complete = func(context.Context, dedupe.GuardedTx, *outbox.Attempt, *outbox.Response) error { return nil }
			cfg.Hooks.AttemptStart = func(ctx context.Context, a outbox.AttemptEvent) context.Context {
				if a.Kind == outbox.AttemptComplete {
					g.pass(nil)
				}
				return ctx
			}
			r.start(cfg)
			r.idle()
			r.remember()
			r.enqueue(lost)
			g.wait()
			until(t, "it is parked meanwhile", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
			ids := one[string](r, `select format('%s %s', row_id, id) from onlyonce.parked`)
			key := one[string](r, `select key::text from onlyonce.parked`)
			r.forget()

			other := charge("other")
			other.ID = r.sameLane(other, lost.ID)
			r.enqueue(other)
			state := func() string {
				return one[string](
					r,
					`
select coalesce(max(format(
  '%s %s %s after %s',
  row_id,
  id,
  state,
  attempts
)), '') from onlyonce.parked`,
				)
			}
			want := fmt.Sprintf("%s retrying after %d", ids, c.attempt)
			until(t, "another call has its ids, and has failed as often", func() bool { return state() == want })
			g.release()
			until(t, "the attempt is told", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return slices.ContainsFunc(r.settled, func(s outbox.SettledEvent) bool { return s.Key == key && s.Number == c.attempt })
			})
			if got := state(); got != want {
				t.Errorf("the attempt at the call that was lost made the other one %q, want %q", got, want)
			}
		})
	}
}
