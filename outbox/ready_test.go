package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
)

// readier is a sink with a set number of calls that may be under way.
type readier struct {
	*scripted
	limit, asked atomic.Int64
}

func (s *readier) Ready() int {
	s.asked.Add(1)
	return int(s.limit.Load())
}

// While a sink is not ready no pass is begun and no parked row is picked: no attempt is counted,
// and no window begins. If it is ready for one call, it gets one at a time, of all lanes and of
// both kinds.
func TestRowsOfASinkThatIsNotReadyAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Delivery) outbox.Result { return outbox.RetryLater("no", nil) })
	for i := range 10 {
		r.enqueue(charge(fmt.Sprint("parked ", i)))
	}
	x := r.start(testConfig(no))
	r.states("retrying")
	x.stop()
	r.exec(`update onlyonce.parked set attempts = 0, first_attempt_at = null, next_attempt_at = clock_timestamp()`)
	passes := one[int](r, `select sum(version) from onlyonce.lanes`)

	var under, most atomic.Int64
	s := &readier{scripted: newScripted(func(ctx context.Context, _ *outbox.Delivery) outbox.Result {
		most.Store(max(most.Load(), under.Add(1)))
		defer under.Add(-1)
		_ = one[int](r, `select 1`) // long enough for another one
		return outbox.Result{Outcome: outbox.Delivered}
	})}
	for i := range 30 {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	relay := r.relay(testConfig(s))
	r.run(relay)
	until(t, "the sink is asked at each poll", func() bool { relay.Wake(); return s.asked.Load() > 100 })
	if n := one[int](r, `select count(*) from onlyonce.parked where attempts = 0 and first_attempt_at is null`); n != 10 || len(s.calls()) > 0 {
		t.Errorf("%d parked rows of 10 were left alone, %d calls", n, len(s.calls()))
	}
	if n := one[int](r, `select sum(version) from onlyonce.lanes`); n != passes {
		t.Errorf("%d passes were begun", n-passes)
	}
	s.limit.Store(1)
	r.states("delivered")
	if n := most.Load(); n != 1 || len(s.calls()) != 40 {
		t.Errorf("%d calls at once, %d calls", n, len(s.calls()))
	}
	s.limit.Store(1 << 40)
	r.enqueue(charge("later"))
	r.states("delivered")
}
