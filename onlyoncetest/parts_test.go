package onlyoncetest_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
)

// late returns a Runner that begins when there is nothing left to do but its own work. In the
// processes after the first it begins at once.
func late(p *onlyoncetest.Process, r onlyoncetest.Runner) onlyoncetest.Runner {
	return onlyoncetest.RunnerFunc(func(ctx context.Context) error {
		for p.Generation() == 1 && !onlyoncetest.Awaits(p) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Millisecond):
			}
		}
		return r.Run(ctx)
	})
}

// A part that begins late, as on a slow machine, is waited for, in the clean run too: its work is
// covered, and its faults are found.
func TestLatePartsAreAwaited(t *testing.T) {
	reader := stored(func(p *onlyoncetest.Process) consumer.HandlerFunc {
		return func(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
			_, err := p.Pool.Exec(ctx, insertSQL, m.ID())
			return err
		}
	})
	serve := reader.Serve
	reader.Serve = func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		h, r, err := serve(p)
		return h, late(p, r), err
	}
	relay := after(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return outbox.Enqueue(ctx, tx, call(m.Value))
	})
	address := mailbox(t)
	consume := relay.Start
	relay.Start = func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		run, err := consume(p)
		if err != nil {
			return nil, err
		}
		r, err := leasedRelay(p, &mailSink{p, address, func(*outbox.Attempt) string { return "" }}, 15*time.Second)
		return onlyoncetest.All(run, late(p, r)), err
	}
	for name, c := range map[string]judged{
		"consumer of events": {c: reader, kind: kindWrittenOutside},
		"relay":              {c: relay, kind: kindCalledOutside},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer enter()()
			c.c.Budget = 5 * time.Minute // the first verdict ends it
			x := &fatal{TB: t}
			rep := onlyoncetest.Run(x, c.c)
			if rep.Verdict == nil || rep.Verdict.Kind != c.kind {
				t.Errorf("want %s: %s %s", c.kind, rep, x.text)
			}
			for _, not := range rep.NotCovered {
				if strings.Contains(not, "no relay runs") || strings.Contains(not, "no part reads") {
					t.Error(not)
				}
			}
		})
	}
}

// A consumer of events that is made and that nothing runs is not waited for.
func TestPartsThatNothingRuns(t *testing.T) {
	c := stored(func(*onlyoncetest.Process) consumer.HandlerFunc {
		return func(context.Context, consumer.Tx, *consumer.Message) error { return nil }
	})
	serve := c.Serve
	c.Serve = func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		h, _, err := serve(p)
		return h, nil, err
	}
	c.Budget = time.Millisecond
	if rep := onlyoncetest.Run(t, c); !strings.Contains(rep.String(), "no part reads those of webhook.e") {
		t.Error(rep)
	}
}
