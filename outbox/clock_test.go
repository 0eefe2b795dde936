package outbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T11, O6: while the clock is a week back, a key whose window has passed does not look young, and
// what is new does not look old. A call that is settled meanwhile is dated by watched time.
func TestT11KeysWhileTheClockIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
	r.enqueue(charge("too late"), charge("in time"))
	x := r.start(testConfig(no))
	r.states("retrying")
	x.stop()
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp(), first_attempt_at = clock_timestamp()
  - case convert_from(body, 'UTF8') when '{"order":"in time"}' then interval '1 hour'
                                    else interval '23 hours 59 minutes 30 seconds' end`)
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	pgtest.ShiftClock(t, r.pool)("-7 days")
	r.enqueue(charge("new"))
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered", "reconcile")
	sent := strings.Split(strings.ReplaceAll(sink.bodies(), "in time", "A"), " ")
	slices.Sort(sent)
	if got := strings.Join(sent, " "); got != "A new" {
		t.Errorf("sent %s", got)
	}
	if !one[bool](
		r,
		`select settled_at >= w.at - interval '1 hour' from onlyonce.parked, onlyonce.watched w where settled_at is not null`,
	) {
		t.Error("a call that was settled just now will look a week old when the clock is right again")
	}
}

// T11, O6: the clock was a week ahead when keys were first used, and is right again. How old they
// are is not known, so no relay uses them again.
func TestT11KeysAfterTheClockWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	cfg := testConfig(newScripted(g.accept))
	r.enqueue(charge("of a pass"))
	x := r.start(cfg)
	g.wait()
	r.seizeAll()
	g.release()
	until(t, "the lease is lost", r.lost)
	x.stop()
	r.giveBack()
	r.exec(`update onlyonce.lane_cursors set started_at = started_at + interval '7 days' where isfinite(started_at)`)
	// It may have been parked before the lease was lost.
	r.exec(`update onlyonce.parked set first_attempt_at = first_attempt_at + interval '7 days', next_attempt_at = clock_timestamp()`)
	sink := newScripted(accept)
	x = r.start(testConfig(sink))
	r.states("reconcile")
	x.stop()

	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
	r.enqueue(charge("parked"))
	x = r.start(testConfig(no))
	r.states("reconcile", "retrying")
	x.stop()
	r.exec(`
update onlyonce.parked
   set first_attempt_at = first_attempt_at + interval '7 days', next_attempt_at = clock_timestamp()
 where state = 'retrying'`)
	r.start(testConfig(sink))
	r.states("reconcile")
	if n := len(sink.calls()); n != 0 {
		t.Errorf("%d calls: the remote may have forgotten the keys", n)
	}
}
