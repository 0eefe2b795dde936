package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// both runs a test with a message handler and with a batch handler that do the same.
func both(
	t *testing.T,
	name string,
	test func(t *testing.T, start func(r *rig, h consumer.HandlerFunc, cfg consumer.Config) (stop func())),
) {
	t.Helper()
	t.Run(name+" around messages", func(t *testing.T) {
		t.Parallel()
		test(t, func(r *rig, h consumer.HandlerFunc, cfg consumer.Config) func() { return r.start(h, cfg) })
	})
	t.Run(name+" around batches", func(t *testing.T) {
		t.Parallel()
		test(t, func(r *rig, h consumer.HandlerFunc, cfg consumer.Config) func() {
			return r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				for _, m := range msgs {
					if err := h(ctx, tx, m); err != nil {
						return err
					}
				}
				return nil
			}, cfg)
		})
	})
}

type ctxKey string

// Middleware is called in its order, hands its context on, and writes in the handler's transaction.
func TestMiddleware(t *testing.T) {
	layer := func(name string, mu *sync.Mutex, calls *[]string) consumer.Middleware {
		return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message, next func(context.Context) error) error {
			way, _ := ctx.Value(ctxKey("way")).(string)
			mu.Lock()
			*calls = append(*calls, name+"("+way+")")
			mu.Unlock()
			for _, m := range msgs {
				tx.Queue(`insert into effects (value) values ($1)`, name+string(m.Value))
			}
			return next(context.WithValue(ctx, ctxKey("way"), way+name))
		}
	}
	both(t, "order", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		values := r.numbered(0, 3)
		var mu sync.Mutex
		var calls []string
		cfg := testConfig()
		cfg.BatchSize = 1
		cfg.Middleware = []consumer.Middleware{layer("a", &mu, &calls), layer("b", &mu, &calls)}
		stop := start(r, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			mu.Lock()
			calls = append(calls, fmt.Sprint("handler(", ctx.Value(ctxKey("way")), ")"))
			mu.Unlock()
			return queued(ctx, tx, m)
		}, cfg)
		r.reaches(0, 3)
		stop()
		if got, want := strings.Join(calls, " "), strings.TrimSpace(strings.Repeat("a() b(a) handler(ab) ", 3)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		var want []string
		for _, v := range values {
			want = append(want, v, "a"+v, "b"+v)
		}
		r.once(want...)
	})
	for name, bad := range map[string]consumer.Middleware{
		"error": func(_ context.Context, tx consumer.Tx, _ []*consumer.Message, _ func(context.Context) error) error {
			tx.Queue(`insert into effects (value) values ('bad')`)
			return errBoom
		},
		"panic": func(context.Context, consumer.Tx, []*consumer.Message, func(context.Context) error) error {
			panic("kaboom")
		},
		// A message whose handler did not run must not pass for applied, and one whose handler ran
		// twice is applied twice.
		"never calls next": func(context.Context, consumer.Tx, []*consumer.Message, func(context.Context) error) error { return nil },
		"calls next twice": func(ctx context.Context, _ consumer.Tx, _ []*consumer.Message, next func(context.Context) error) error {
			_ = next(ctx)
			_ = next(ctx)
			return nil
		},
		"error behind next": func(ctx context.Context, _ consumer.Tx, _ []*consumer.Message, next func(context.Context) error) error {
			_ = next(ctx)
			return errBoom
		},
	} {
		both(t, name, func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
			r := newRig(t, 1)
			values := r.numbered(0, 30)
			cfg := testConfig()
			cfg.Middleware = []consumer.Middleware{
				func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message, next func(context.Context) error) error {
					for _, m := range msgs {
						if m.Offset == 7 {
							return bad(ctx, tx, msgs, next)
						}
					}
					return next(ctx)
				},
			}
			stop := start(r, queued, cfg)
			r.reaches(0, 30)
			stop()
			r.once(append(values[:7:7], values[8:]...)...)
			if got := fmt.Sprint(r.reasons()); got != "map[7:exhausted]" {
				t.Errorf("parked: %s", got)
			}
		})
	}
}
