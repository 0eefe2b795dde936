package outbox

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// givenUp returns a call that its lane has given up, before or after the sink got it.
func givenUp(t *testing.T, inSink bool) (*laneCalls, *callAttempt) {
	t.Helper()
	g := gate.New(1, time.Second)
	log := slog.New(slog.DiscardHandler)
	sink := &relaySink{name: "payments", gate: g, cfg: RelayConfig{Logger: log}, remote: newRemoteHealth("payments", log, time.Second)}
	calls := newLaneCalls(&heldLane{sink: sink, ctx: t.Context()})
	a := &callAttempt{Attempt: Attempt{Key: "key-7", Tenant: "acme"}, lane: calls.lane, ticket: g.Take(1)[0]}
	if got, _ := a.ticket.Admit(a.entrant()); got != gate.Admitted {
		t.Fatalf("it may not start: %v", got)
	}
	if inSink {
		sink.remote.began(a)
	}
	calls.begun = append(calls.begun, a)
	calls.underWay = 1
	if err := calls.giveUp(); err != nil || !a.gaveUp.Load() {
		t.Fatalf("it was not given up: %v", err)
	}
	return calls, a
}

// A call that was given up, and returns after its lane was given back, counts no more for its
// tenant: nobody takes it in.
func TestO18CallThatReturnsAfterItsLane(t *testing.T) {
	t.Parallel()
	calls, a := givenUp(t, true)
	g := calls.lane.sink.gate
	calls.await() // the lane is over
	if n := g.Abandoned(); n != 1 {
		t.Errorf("%d calls are given up, want 1", n)
	}
	calls.returned.add(a)
	n := g.Abandoned()
	err := g.Close()
	if n != 0 || err != nil {
		t.Errorf("after it has returned %d calls are given up; %v", n, err)
	}
}

// One that has returned before its lane was given back, and was not taken in, has its end too.
func TestO18CallThatReturnsBeforeItsLaneEnds(t *testing.T) {
	t.Parallel()
	calls, a := givenUp(t, true)
	g := calls.lane.sink.gate
	calls.returned.add(a)
	calls.await()
	n := g.Abandoned()
	err := g.Close()
	if n != 0 || err != nil {
		t.Errorf("%d calls are given up; %v", n, err)
	}
}

// The error names the calls, and blames the sink only for those that it got.
func TestO18ErrorOfCallsThatDoNotComeBack(t *testing.T) {
	t.Parallel()
	for inSink, want := range map[bool]string{true: "key-7, row 0, in the sink", false: "key-7, row 0, the sink has not got it"} {
		calls, _ := givenUp(t, inSink)
		if err := calls.lane.sink.stuck.err("payments"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("in the sink: %t: %v, want %q", inSink, err, want)
		}
	}
}
