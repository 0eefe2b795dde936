package consumer_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// Each Start has its End, in the context that Start returned, whatever happens in between; and
// contexts flow inwards.
func TestHooksComeInPairs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 40)
	r.log.Append(0, "p0-1", id("p0-1")) // a duplicate
	release := make(chan struct{})
	var mu sync.Mutex
	open := map[int]string{}
	ended := map[string]int{}
	n := 0
	committed := 0
	failed := 0
	begin := func(ctx context.Context, kind string, want ...string) context.Context {
		mu.Lock()
		defer mu.Unlock()
		for _, outer := range want {
			if _, ok := ctx.Value(ctxKey(outer)).(int); !ok {
				t.Errorf("the context of %s does not derive from that of %s", kind, outer)
			}
		}
		n++
		open[n] = kind
		return context.WithValue(ctx, ctxKey(kind), n)
	}
	end := func(ctx context.Context, kind string) {
		mu.Lock()
		defer mu.Unlock()
		no, _ := ctx.Value(ctxKey(kind)).(int)
		if open[no] != kind {
			t.Errorf("the end of %s number %d, which is not open", kind, no)
		}
		delete(open, no)
		ended[kind]++
	}
	r.cutting()
	cfg := impatient()
	cfg.Hooks = consumer.Hooks{
		AttemptStart: func(ctx context.Context, _ consumer.Batch) context.Context {
			return begin(ctx, "attempt")
		},
		AttemptEnd: func(ctx context.Context, _ consumer.BatchResult, err error) {
			mu.Lock()
			if err == nil {
				committed++
			} else {
				failed++
			}
			mu.Unlock()
			end(ctx, "attempt")
		},
		HandleStart: func(ctx context.Context, _ *consumer.Message) context.Context { return begin(ctx, "handle", "attempt") },
		HandleEnd: func(ctx context.Context, m *consumer.Message, err error) {
			if bad := m.Offset%7 == 3 && m.Offset != 31; bad != (err != nil) {
				t.Errorf("offset %d ended with %v", m.Offset, err)
			}
			end(ctx, "handle")
		},
	}
	cfg.Middleware = []consumer.Middleware{
		func(ctx context.Context, _ consumer.Tx, _ []*consumer.Message, next func(context.Context) error) error {
			for _, outer := range []string{"attempt", "handle"} {
				if ctx.Value(ctxKey(outer)) == nil {
					t.Errorf("the context of middleware does not derive from that of %s", outer)
				}
			}
			return next(ctx)
		},
	}
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if ctx.Value(ctxKey("handle")) == nil {
			t.Error("the handler's context does not derive from HandleStart's")
		}
		switch m.Offset {
		case 3:
			return errBoom
		case 10:
			panic("kaboom")
		case 17:
			runtime.Goexit()
		case 24:
			<-ctx.Done()
			return ctx.Err()
		case 31:
			<-release
		case 38:
			_, err := tx.Exec(ctx, cutSQL)
			return err
		}
		return queued(ctx, tx, m)
	}, cfg)
	r.reaches(0, 41)
	close(release)
	stop()
	until(t, "hung handlers have ended too", func() bool { mu.Lock(); defer mu.Unlock(); return len(open) == 0 })
	mu.Lock()
	defer mu.Unlock()
	for _, kind := range []string{"attempt", "handle"} {
		if ended[kind] == 0 {
			t.Errorf("no %s was told", kind)
		}
	}
	if committed != len(r.events) || failed < 6*2 {
		t.Errorf("%d attempts committed, and %d batches were told; %d failed", committed, len(r.events), failed)
	}
	var want []string
	for i, v := range values {
		if i%7 != 3 {
			want = append(want, v)
		}
	}
	r.once(want...)
}

// A handler's calls of a transaction are between HandleBatchStart and HandleBatchEnd, in the
// context that Start returned, also if one fails: those of a message handler, and a batch
// handler's.
func TestHooksOfBatches(t *testing.T) {
	t.Parallel()
	for name, whole := range map[string]bool{"message handler": false, "batch handler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hooksOfBatches(t, whole)
		})
	}
}

func hooksOfBatches(t *testing.T, whole bool) {
	r := newRig(t, 1)
	values := r.numbered(0, 30)
	var mu sync.Mutex
	begun := 0
	ended := 0
	failed := 0
	cfg := testConfig()
	cfg.Hooks = consumer.Hooks{
		HandleBatchStart: func(ctx context.Context, msgs []*consumer.Message) context.Context {
			mu.Lock()
			defer mu.Unlock()
			begun++
			return context.WithValue(ctx, ctxKey("batch"), len(msgs))
		},
		HandleBatchEnd: func(ctx context.Context, msgs []*consumer.Message, err error) {
			mu.Lock()
			defer mu.Unlock()
			if ctx.Value(ctxKey("batch")) != len(msgs) {
				t.Error("the context of HandleBatchEnd is not that of HandleBatchStart")
			}
			ended++
			if err != nil {
				failed++
			}
		},
	}
	one := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if ctx.Value(ctxKey("batch")) == nil {
			t.Error("the handler's context does not derive from HandleBatchStart's")
		}
		if m.Offset == 7 {
			panic("kaboom")
		}
		return queued(ctx, tx, m)
	}
	var stop func()
	if whole {
		stop = r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
			for _, m := range msgs {
				if err := one(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}, cfg)
	} else {
		stop = r.start(one, cfg)
	}
	r.reaches(0, 30)
	stop()
	r.once(append(values[:7:7], values[8:]...)...)
	if begun == 0 || begun != ended || failed == 0 {
		t.Errorf("%d calls began and %d ended, %d of them with an error", begun, ended, failed)
	}
}
