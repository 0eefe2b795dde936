package console

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// All who look at once wait for one question, and those who look within the next seconds get its
// answer.
func TestLookersShareAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		a := answer[int]{ask: func(context.Context, ops.DB) (int, error) {
			asked++
			time.Sleep(time.Second) // of the test's own clock
			return asked, nil
		}}
		d := &database{places: make(chan struct{}, atOnce)}
		var lookers sync.WaitGroup
		look := func(want int) {
			if got, state := a.get(t.Context(), d); got != want || state.Err != nil {
				t.Errorf("%d, %v: want the answer of question %d", got, state.Err, want)
			}
		}
		for range 100 {
			lookers.Go(func() { look(1) })
		}
		lookers.Wait()
		// It took a second, so the next one is asked after 5.
		time.Sleep(4 * time.Second)
		look(1)
		time.Sleep(time.Second)
		look(2)
	})
}

// A database that hangs holds up nobody who has seen an answer: they see it again, and since when
// there is no newer one.
func TestADatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		a := answer[string]{ask: func(ctx context.Context, _ ops.DB) (string, error) {
			if hangs {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return "fine", nil
		}}
		d := &database{places: make(chan struct{}, atOnce)}
		a.get(t.Context(), d)
		answered := time.Now()
		hangs = true
		time.Sleep(freshFor)

		asked := time.Now()
		if got, state := a.get(t.Context(), d); got != "fine" || state.Err != nil || time.Since(asked) != freshFor {
			t.Errorf("%q, %v after %v: want the last answer after %v", got, state.Err, time.Since(asked), freshFor)
		}
		time.Sleep(patience)
		got, state := a.get(t.Context(), d)
		since := asked.Add(patience)
		good := got == "fine" &&
			state.At.Equal(answered) &&
			state.Since.Equal(since) &&
			errors.Is(state.Err, context.DeadlineExceeded)
		if !good {
			t.Errorf("%q of %v, %v since %v: want an answer of %v, and none since %v",
				got, state.At, state.Err, state.Since, answered, since)
		}
		hangs = false
		time.Sleep(restsFor * patience)
		if got, state := a.get(t.Context(), d); got != "fine" || state.Err != nil {
			t.Errorf("%q, %v: want a fresh answer", got, state.Err)
		}
	})
}

// How fast something moves is seen over a minute. What goes back is no progress of a consumer, and
// is that of a relay.
func TestRates(t *testing.T) {
	now := time.Unix(0, 0)
	var positions, backlogs samples
	cursors := func(a, b int64) []ops.Cursor {
		return []ops.Cursor{
			{Scope: "s", Topic: "t", Position: a},
			{Scope: "s", Topic: "t", Position: 100, Partition: 1},
			{Scope: "s", Topic: "u", Position: b},
		}
	}
	pending := func(n int64) []reports.OutboxSink {
		return []reports.OutboxSink{{Sink: "payments", Pending: &n}, {Sink: "uncounted"}}
	}
	if first := positions.forward(now, cursors(10, 50)); len(first) != 0 {
		t.Errorf("of one sample: %v", first)
	}
	backlogs.change(now, pending(70))
	now = now.Add(10 * time.Second)
	if got := positions.forward(now, cursors(40, 20)); len(got) != 1 || got[[2]string{"s", "t"}] != 3 {
		t.Errorf("%v, want 3 a second for topic t, and none for u", got)
	}
	if got := backlogs.change(now, pending(20)); len(got) != 1 || got["payments"] != -5 {
		t.Errorf("%v, want 5 fewer a second", got)
	}
	now = now.Add(sampledFor)
	if got := positions.forward(now, cursors(40, 20)); got[[2]string{"s", "t"}] != 0 {
		t.Errorf("%v: the first sample is more than a minute old", got)
	}
}
