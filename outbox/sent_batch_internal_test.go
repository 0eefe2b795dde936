package outbox

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// Calls of one SendBatch come back together if they end at once, so that those that follow in their
// slots are sent together too. None waits for others longer than gatherReturned, and the last does
// not wait. The time is that of the bubble.
func TestCallsOfOneBatchComeBackTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5
		g := gate.New(n, time.Second)
		sink := &relaySink{gate: g, remote: newRemoteHealth("payments", slog.New(slog.DiscardHandler), time.Second)}
		lane := newLaneCalls(&heldLane{sink: sink, ctx: t.Context()})
		calls := make([]*callAttempt, n)
		for i, ticket := range g.Take(n) {
			calls[i] = &callAttempt{lane: lane.lane, ticket: ticket}
			if got, _ := ticket.Admit(calls[i].entrant()); got != gate.Admitted {
				t.Fatalf("a call may not start: %v", got)
			}
		}
		lane.underWay = n
		b := newSentBatch(lane, calls)
		for _, step := range []struct {
			end  []int
			wait time.Duration
			back int
		}{
			{[]int{0, 1}, 0, 0},
			{nil, gatherReturned - time.Microsecond, 0},
			{nil, time.Microsecond, 2},
			{[]int{2}, 0, 0},
			{[]int{2, 0}, time.Hour, 1}, // a second end of a call is ignored
			{[]int{3}, 0, 0},
			{[]int{4}, 0, 2},
			{[]int{4}, time.Hour, 0},
		} {
			for _, i := range step.end {
				b.end(i, func(*callAttempt) {})
			}
			time.Sleep(step.wait)
			synctest.Wait()
			taken := lane.take()
			if len(taken) != step.back {
				t.Errorf("after %v and %v %d calls came back, want %d", step.end, step.wait, len(taken), step.back)
			}
			lane.endTickets(taken)
		}
		if err := g.Close(); err != nil || lane.underWay != 0 {
			t.Errorf("%d calls are under way: %v", lane.underWay, err)
		}
	})
}
