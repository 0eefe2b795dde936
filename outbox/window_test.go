package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
)

// handled commits calls as a consumer's handler does, for a message with this origin.
func (r *rig) handled(origin origin.Origin, calls ...outbox.Call) error {
	r.t.Helper()
	return pgx.BeginFunc(context.Background(), r.pool, func(inner pgx.Tx) error {
		tx := &handlerTx{Tx: inner, origin: &origin, marks: map[[16]byte]bool{}}
		for _, c := range calls {
			c.Scope = ""
			c.Tenant = ""
			if err := outbox.Enqueue(context.Background(), tx, c); err != nil {
				return err
			}
		}
		return tx.end(context.Background())
	})
}

// O6: retries are made inside the remote's window only, which counts from the first attempt. A call
// that was never tried has no age.
func TestO6WindowPassed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
	r.enqueue(charge("in time"), charge("too late"))
	x := r.start(testConfig(no))
	r.states("retrying")
	x.stop()
	r.enqueue(charge("never tried"))
	// The age of the row does not matter.
	r.exec(`update onlyonce.batches set created_at = clock_timestamp() - interval '30 days'`)
	r.exec(`update onlyonce.parked set attempts = 3, next_attempt_at = clock_timestamp(), first_attempt_at = clock_timestamp()
  - case convert_from(body, 'UTF8') when '{"order":"in time"}' then interval '23 hours'
                                    else interval '23 hours 59 minutes 30 seconds' end`)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered", "reconcile")
	sent := strings.Split(strings.ReplaceAll(strings.ReplaceAll(sink.bodies(), "in time", "A"), "never tried", "B"), " ")
	slices.Sort(sent)
	if got := strings.Join(sent, " "); got != "A B" {
		t.Errorf("sent %s", got)
	}
	got := one[string](r, `select concat_ws(' ', state, reason, attempts) from onlyonce.parked where state <> 'resolved'`)
	if got != "reconcile window 3" {
		t.Errorf("parked: %s; want it to reconcile, without another attempt", got)
	}
}

// O6: a relay died with a pass whose calls it may have made: their age counts from when that pass
// began.
func TestO6WindowOfAPassThatADeadRelayLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	dying := newScripted(g.accept)
	cfg := testConfig(dying)
	cfg.PollInterval = time.Minute
	cfg.LeaseTTL = time.Minute
	r.enqueue(charge("1"))
	x := r.start(cfg)
	g.wait()
	r.seizeAll()
	g.release()
	until(t, "the lease is lost", r.lost)
	x.stop()
	r.giveBack()
	// It died a day ago, at the latest when its chunk was parked.
	r.exec(`update onlyonce.lane_cursors set started_at = started_at - interval '1 day'`)
	r.exec(`update onlyonce.parked set first_attempt_at = first_attempt_at - interval '1 day', next_attempt_at = clock_timestamp()`)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("reconcile")
	if n := len(sink.calls()); n != 0 {
		t.Errorf("%d calls: the remote may have forgotten the key", n)
	}
}

// O6: the journal says since when calls of a pass may have been made: of a new pass not since a
// pass before, of one whose calls are under way still since it began, and of one that read nothing
// never.
func TestO6JournalOfAPass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.start(testConfig(newScripted(accept)))
	r.lanesHeld()
	x.stop()
	for _, c := range []struct {
		keep, quiet bool
		want        string
	}{{false, false, "now"}, {true, false, "before"}, {false, true, "never"}} {
		r.exec(`update onlyonce.lane_cursors set started_at = clock_timestamp() - interval '2 days'`)
		r.exec(`
select onlyonce.advance(
  a.id,
  a.version,
  0,
  true,
  $1,
  $2
) from onlyonce.lanes a`, c.keep, c.quiet)
		const since = `
select string_agg(distinct case when not isfinite(started_at) then 'never'
                                when started_at < clock_timestamp() - interval '1 day' then 'before'
                                else 'now' end, ' ')
  from onlyonce.lanes`
		if got := one[string](r, since); got != c.want {
			t.Errorf("keep %t, quiet %t: calls may have been made since %s, want %s", c.keep, c.quiet, got, c.want)
		}
	}
}

// O6: the window counts from the first attempt through all retries, and ends them.
func TestO6WindowEndsRetries(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
	sink.limits = outbox.Limits{KeyWindow: 8 * time.Second, Timeout: 2 * time.Second}
	r.enqueue(charge("1"))
	r.start(testConfig(sink))
	r.states("reconcile")
	if n := len(sink.calls()); n < 3 {
		t.Errorf("%d attempts", n)
	}
}

// O6: a sink is paused, and its calls wait for longer than their window. None of them was made: if
// the first attempt fails, its age counts from the pass.
func TestO6AgeAfterAPause(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var n atomic.Int32
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if n.Add(1) == 1 {
			return outbox.Failure("not today", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	sink.limits.KeyWindow = time.Hour
	r.start(testConfig(sink))
	r.lanesHeld()
	r.exec(`update onlyonce.sinks set paused_at = clock_timestamp(), paused_by = 'x', pause_reason = 'y'`)
	until(t, "the sink is paused", r.paused.Load)
	r.enqueue(charge("1"))
	r.exec(`update onlyonce.batches set created_at = created_at - interval '2 hours'`)
	r.exec(`update onlyonce.lane_cursors set started_at = started_at - interval '2 hours' where isfinite(started_at)`)
	r.exec(`update onlyonce.sinks set paused_at = null, paused_by = null, pause_reason = null`)
	r.states("delivered", "reconcile")
	if got := one[string](r, `select state from onlyonce.calls`); got != "delivered" {
		t.Errorf("the call is %s after %d attempts", got, n.Load())
	}
}

func TestForever(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
	r.enqueue(charge("1"))
	x := r.start(testConfig(no))
	r.states("retrying")
	x.stop()
	r.exec(`
update onlyonce.parked
   set attempts = 3, first_attempt_at = clock_timestamp() - interval '10 years', next_attempt_at = clock_timestamp()`)
	sink := newScripted(accept)
	sink.limits.KeyWindow = outbox.Forever
	r.start(testConfig(sink))
	r.states("delivered")
}

// O6: the message may have been handled in a history that is lost, so calls under its keys can have
// been made since it was appended. If that is longer ago than the remote remembers keys, no call is
// made. The age of any other message does not matter.
func TestO6Redo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age       time.Duration
		redo      bool
		newTimes  bool // the database has failed over since
		notBefore bool
		want      string
	}{
		"of unknown time, done again":           {0, true, false, false, "reconcile"},
		"old, done again":                       {25 * time.Hour, true, false, false, "reconcile"},
		"old, done again, put off":              {25 * time.Hour, true, false, true, "reconcile"},
		"young, done again":                     {time.Hour, true, false, false, "delivered"},
		"old":                                   {25 * time.Hour, false, false, false, "delivered"},
		"old, appended before a failover":       {25 * time.Hour, false, true, false, "reconcile"},
		"young, appended before a failover":     {time.Hour, false, true, false, "delivered"},
		"appended after the failover":           {-time.Hour, false, true, false, "delivered"},
		"appended before the failover, put off": {25 * time.Hour, false, true, true, "reconcile"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			sink := newScripted(accept)
			r.exec(outbox.Statements["make lanes"], "payments", nil, names.Lanes("payments").List(16))
			if c.newTimes {
				r.exec(`update onlyonce.lane_cursors set history_at = clock_timestamp()`)
			}
			call := charge("1")
			if c.notBefore {
				call.NotBefore = time.Now().Add(time.Hour)
			}
			message := origin.Origin{Scope: "s", ID: "m", Redo: c.redo}
			if c.age != 0 {
				message.Time = time.Now().Add(-c.age)
			}
			if err := r.handled(message, call); err != nil {
				t.Fatal(err)
			}
			r.start(testConfig(sink))
			if c.notBefore {
				r.states("retrying")
				r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
			}
			r.states(c.want)
			want := 0
			if c.want == "delivered" {
				want = 1
			}
			if len(sink.calls()) != want {
				t.Errorf("%d calls, want %d", len(sink.calls()), want)
			}
		})
	}
}

// O6: a settlement whose COMMIT comes late is of its own attempt only. A redrive counts attempts
// anew, so a later attempt may have the same number.
func TestO6SettlementThatComesLate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var applied atomic.Bool
	g := r.gate()
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		switch {
		case a.Number == 1:
			return outbox.Failure("again", nil)
		case applied.Load():
			g.pass(a)
			return outbox.Result{Outcome: outbox.Delivered}
		}
		return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
	})
	r.start(testConfig(sink))
	r.enqueue(charge("1"))
	r.states("waiting")
	const place = `select format('%s of attempt %s', state, attempts) from onlyonce.parked`
	first := one[string](r, place)
	id := one[int64](
		r,
		`select id from onlyonce.parked`,
	)
	key := one[string](r, `select key::text from onlyonce.parked`)
	pick := one[int32](r, `select picks from onlyonce.parked`)
	applied.Store(true)
	if _, err := r.pool.Exec(t.Context(), parked.RedriveCallsSQL, []int64{id}, []*string{nil}, false); err != nil {
		t.Fatal(err)
	}
	if a := g.wait(); fmt.Sprintf("waiting of attempt %d", a.Number) != first {
		t.Fatalf("attempt %d is under way, and the one before is %s: they must have one number", a.Number, first)
	}
	for _, late := range []string{"waiting", "retrying"} {
		if _, err := r.pool.Exec(
			t.Context(),
			outbox.Statements["settle"],
			false,
			[]int64{id},
			[]int64{0},
			[]string{key},
			[]int32{pick},
			[]bool{false},
			[]bool{false},
			[]bool{false},
			[]bool{false},
			[]string{late},
			[]string{"rejected"},
			[]string{"late"},
			[]*int64{nil},
			[]*int32{nil},
			[]*string{nil},
			[][]byte{nil},
			[]string{""},
		); err != nil {
			t.Fatal(err)
		}
	}
	if got := one[string](r, place); got != strings.Replace(first, "waiting", "retrying", 1) {
		t.Errorf("after the late settlement the call is %s", got)
	}
	g.release()
	r.states("delivered")
}

// Reconcile is asked about a call of unknown outcome until it has an answer. A call that was
// applied is not sent again. One that was not applied is, under the same key and in a window of its
// own.
func TestReconcile(t *testing.T) {
	t.Parallel()
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		for _, later := range []bool{false, true} {
			if later {
				name += ", by a later relay"
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				sink := newScripted(accept)
				if err := r.handled(
					origin.Origin{Scope: "s", ID: "m", Time: time.Now().Add(-25 * time.Hour), Redo: true},
					charge("1"),
				); err != nil {
					t.Fatal(err)
				}
				if later {
					x := r.start(testConfig(sink))
					r.states("reconcile")
					x.stop()
				}
				var asked atomic.Int64
				var key atomic.Value
				cfg := testConfig(sink)
				cfg.Reconcile = func(ctx context.Context, a *outbox.Attempt) (bool, error) {
					key.Store(a.Key + string(a.Body))
					switch asked.Add(1) {
					case 1:
						return false, errors.New("not known yet")
					case 2:
						return true, errors.New("no answer")
					case 3:
						panic("x")
					}
					return applied, nil
				}
				r.start(cfg)
				r.states("delivered")
				if n := asked.Load(); n != 4 {
					t.Errorf("asked %d times, want 4", n)
				}
				if want := one[string](r, `select key::text || convert_from(body, 'UTF8') from onlyonce.outbox_log`); key.Load() != want {
					t.Errorf("asked about %s, want %s", key.Load(), want)
				}
				calls := sink.calls()
				if applied && len(calls) != 0 {
					t.Errorf("%d calls of what was applied", len(calls))
				}
				if !applied && (len(calls) != 1 || calls[0].Key+string(calls[0].Body) != key.Load()) {
					t.Errorf("calls %+v", calls)
				}
			})
		}
	}
}

// A call that is put off is not made before its time, nor is a later one of its key. No attempt is
// counted and no window begins.
func TestNotBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	put := keyed("k", 0)
	put.NotBefore = time.Now().Add(time.Hour)
	past := charge("past")
	past.NotBefore = time.Now().Add(-time.Hour)
	r.enqueue(put, keyed("k", 1), past)
	r.start(testConfig(sink))
	r.states("retrying", "blocked", "delivered")
	if got := one[string](
		r,
		`
select string_agg(
  state
    || reason
    || attempts
    || (first_attempt_at is null) || coalesce((next_attempt_at > clock_timestamp() + interval '50 minutes')::text, ''),
  ' ' order by row_id
)
  from onlyonce.parked`,
	); got !=
		"retryingscheduled0truetrue blockedbehind0true" {
		t.Errorf("parked %s", got)
	}
	if got := sink.bodies(); got != "past" {
		t.Errorf("sent %s", got)
	}
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where state = 'retrying'`)
	r.states("delivered")
	if got := sink.bodies(); got != "past k0 k1" {
		t.Errorf("sent %s", got)
	}
}

// The trace context of the message, or the call's own, goes with each attempt.
func TestTrace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const (
		ofMessage = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\nvendor=1"
		own       = "00-11111111111111111111111111111111-2222222222222222-00"
	)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if a.Number == 1 {
			return outbox.Failure("again", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	with := charge("own")
	with.Trace = own
	if err := r.handled(origin.Origin{Scope: "s", ID: "m", Trace: ofMessage}, charge("message"), with); err != nil {
		t.Fatal(err)
	}
	r.start(testConfig(sink))
	r.states("delivered")
	for _, d := range sink.calls() {
		want := ofMessage
		if strings.Contains(string(d.Body), "own") {
			want = own
		}
		if d.Trace != want {
			t.Errorf("%s, attempt %d: trace %q", d.Body, d.Number, d.Trace)
		}
	}
}

// An attempt of which the sink knows that no byte has left is not counted, and begins no window: of
// a call from the log, and of one that is tried again.
func TestO6CallThatNeverLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var sent atomic.Int64
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if sent.Add(1) <= 3 {
			return outbox.Failure("no time", fmt.Errorf("%w: no time", outbox.ErrNotStarted))
		}
		return outbox.Failure("no answer", nil)
	})
	cfg := testConfig(sink)
	cfg.Backoff = dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	r.enqueue(charge("1"))
	x := r.start(cfg)
	until(t, "it was tried", func() bool { return sent.Load() >= 3 })
	until(t, "an attempt counts", func() bool { return sent.Load() >= 5 })
	x.stop()
	all := r.told(5)
	for i, want := range []int{1, 1, 1, 1, 2} {
		if got := all[i].Number; got != want {
			t.Errorf("attempt %d has the number %d, want %d", i, got, want)
		}
	}
	if n := one[int64](r, `select sent - attempts from onlyonce.parked, (select $1::bigint as sent) s`, sent.Load()); n != 3 && !r.lost() {
		t.Errorf("%d attempts are not counted, want 3", n)
	}
}
