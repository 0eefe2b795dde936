package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

type priceKey struct{}

// T10: Prepare runs while no transaction of the consumer is open, for exactly the messages of the
// attempt, and its result reaches their handler. Its errors are judged as the handler's.
func TestT10Prepare(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 3} {
		both(t, fmt.Sprint(slots), func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
			r := newRig(t, 1)
			for _, v := range []string{"a", "bad", "b", "panics", "a", "far", "late", "c"} { // "a" twice: a copy
				r.log.Append(0, v, id(v))
			}
			r.log.Append(0, "nameless")
			cfg := testConfig()
			cfg.Concurrency = slots
			cfg.BlockedAfter = 50 * time.Millisecond
			cfg.BatchTimeout = 500 * time.Millisecond
			cfg.HandlerTimeout = 400 * time.Millisecond
			cfg.OrderingKey = func(m *consumer.Message) []byte { return []byte(m.ID()) }
			var reached atomic.Bool
			cfg.Prepare = func(ctx context.Context, msgs []*consumer.Message) (context.Context, error) {
				if slots == 1 { // else other slots have theirs
					n := r.count(`select count(*) from pg_stat_activity
						where datname = current_database() and state like 'idle in transaction%'`)
					if n > 0 {
						t.Errorf("%d transactions are open", n)
					}
				}
				ctx, cancel := context.WithCancel(ctx)
				defer cancel() // the handler's context does not end with it
				prices := map[string]string{}
				var faults []error
				for _, m := range msgs {
					switch v := string(m.Value); {
					case v == "nameless":
						t.Error("called for a message without an id")
					case v == "bad":
						faults = append(faults, consumer.FailMessage(m, consumer.Permanent(errBoom)))
					case v == "panics":
						panic("kaboom")
					case v == "late":
						<-ctx.Done()
						return nil, errors.New("nobody answers")
					case v == "far" && !reached.Load():
						faults = append(faults, consumer.FailMessage(m, consumer.Unavailable(errors.New("the service is away"))))
					default:
						prices[m.ID()] = "price of " + v
					}
				}
				return context.WithValue(ctx, priceKey{}, prices), errors.Join(faults...)
			}
			stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if got := ctx.Value(priceKey{}).(map[string]string)[m.ID()]; got != "price of "+m.ID() {
					t.Errorf("%s: %q", m.ID(), got)
				}
				if ctx.Err() != nil {
					t.Error("the handler's context has ended")
				}
				return effect(ctx, tx, m)
			}, cfg)
			h := r.halted()
			if h.Reason != consumer.HaltBlocked ||
				!strings.Contains(h.Detail, "offset 5") ||
				!strings.Contains(h.Detail, "the service is away") {
				t.Errorf("halt: %v", h)
			}
			reached.Store(true)
			r.reaches(0, 9)
			stop()
			r.once("a", "b", "c", "far")
			if got := fmt.Sprint(r.reasons()); got != "map[1:permanent 3:exhausted 6:exhausted 8:no-key]" {
				t.Errorf("parked: %v", got)
			}
		})
	}
}

// D1: a batch whose Prepare ends too late for one of its messages is divided in halves.
func TestD1PrepareThatIsLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for i := range 31 {
		r.log.Append(0, fmt.Sprint(i), id(fmt.Sprint(i)))
	}
	r.log.Append(0, "late", id("late"))
	cfg := testConfig()
	cfg.BatchSize = 32
	cfg.MaxAttempts = 1
	cfg.BatchTimeout = 300 * time.Millisecond
	cfg.HandlerTimeout = 300 * time.Millisecond
	var late atomic.Int32
	cfg.Prepare = func(ctx context.Context, msgs []*consumer.Message) (context.Context, error) {
		if slices.ContainsFunc(msgs, func(m *consumer.Message) bool { return m.ID() == "late" }) {
			late.Add(1)
			<-ctx.Done()
		}
		return ctx, ctx.Err()
	}
	stop := r.start(effect, cfg)
	r.reaches(0, 32)
	stop()
	if n := late.Load(); n > 10 {
		t.Errorf("its message was among those of %d calls", n)
	}
}

// T10: a Prepare that does not return costs its goroutine, and counts against the message.
func TestT10PrepareThatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	free := make(chan struct{})
	cfg := testConfig()
	cfg.BatchTimeout = 300 * time.Millisecond
	cfg.HandlerTimeout = 300 * time.Millisecond
	cfg.HangTimeout = 50 * time.Millisecond
	cfg.MaxAttempts = 3
	cfg.Prepare = func(ctx context.Context, msgs []*consumer.Message) (context.Context, error) {
		for _, m := range msgs {
			if m.Offset == 1 {
				<-free
			}
		}
		return ctx, nil
	}
	stop := r.start(effect, cfg)
	r.reaches(0, 3)
	if err := r.consumer.Healthy(); !errors.Is(err, consumer.ErrHandlerHung) {
		t.Errorf("Healthy: %v", err)
	}
	close(free)
	until(t, "Healthy to be nil again", func() bool { return r.consumer.Healthy() == nil })
	stop()
	r.once(values[0], values[2])
	if got := r.reasons(); len(got) != 1 || got["1"] != "exhausted" {
		t.Errorf("parked: %v", got)
	}
}
