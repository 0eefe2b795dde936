package hook_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/hook"
)

type key string

// pair returns a pair that notes its calls, and checks that its End gets its Start's context.
func pair(t *testing.T, name string, calls *[]string) hook.Pair[int, int] {
	return hook.Pair[int, int]{
		Start: func(ctx context.Context, n int) context.Context {
			*calls = append(*calls, "start "+name)
			return context.WithValue(ctx, key("span"), name)
		},
		End: func(ctx context.Context, n int) {
			*calls = append(*calls, "end "+name)
			if got := ctx.Value(key("span")); got != name {
				t.Errorf("the End of %s got the context of %v", name, got)
			}
		},
	}
}

// Three pairs enclose one another, and each End finds what its own Start put into the context.
func TestJoinPair(t *testing.T) {
	t.Parallel()
	var calls []string
	joined := hook.JoinPair(hook.JoinPair(pair(t, "a", &calls), pair(t, "b", &calls)), pair(t, "c", &calls))
	joined.End(joined.Start(t.Context(), 1), 2)
	if want := []string{"start a", "start b", "start c", "end c", "end b", "end a"}; !slices.Equal(calls, want) {
		t.Errorf("%q, want %q", calls, want)
	}
}

// Halves may be missing, and a Start may return nil.
func TestJoinPairOfHalves(t *testing.T) {
	t.Parallel()
	var calls []string
	whole := pair(t, "whole", &calls)
	for name, half := range map[string]hook.Pair[int, int]{
		"none":  {},
		"start": {Start: func(ctx context.Context, _ int) context.Context { return ctx }},
		"nil":   {Start: func(context.Context, int) context.Context { return nil }},
		"end":   {End: func(context.Context, int) {}},
	} {
		for _, joined := range []hook.Pair[int, int]{hook.JoinPair(half, whole), hook.JoinPair(whole, half)} {
			calls = nil
			joined.End(joined.Start(t.Context(), 1), 2)
			if want := []string{"start whole", "end whole"}; !slices.Equal(calls, want) {
				t.Errorf("joined with %s: %q, want %q", name, calls, want)
			}
		}
	}
	with := hook.JoinPairWith(hook.PairWith[int, int, error]{}, hook.PairWith[int, int, error]{})
	if with.Start != nil || with.End != nil {
		t.Error("two empty pairs make one that is not empty")
	}
}

func TestJoinEvent(t *testing.T) {
	t.Parallel()
	var calls []int
	note := func(n int) func(int) { return func(v int) { calls = append(calls, n*v) } }
	hook.JoinEvent(note(1), note(2))(10)
	hook.JoinEvent(nil, note(3))(10)
	hook.JoinEvent(note(4), nil)(10)
	if hook.JoinEvent[int](nil, nil) != nil {
		t.Error("two nil hooks make one that is not nil")
	}
	if want := []int{10, 20, 30, 40}; !slices.Equal(calls, want) {
		t.Errorf("%v, want %v", calls, want)
	}
}

// A panic is logged once for each hook in an interval, without its value; the step goes on in the
// context that it had.
func TestGuard(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	g := &hook.Guard{Log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx := context.WithValue(t.Context(), key("engine"), 1)
	start := hook.Start(g, "AttemptStart", func(context.Context, int) context.Context { panic("card 4711") })
	for range 3 {
		if start(ctx, 1) != ctx {
			t.Error("a Start that panics changes the context")
		}
	}
	if hook.Start(g, "ServeStart", func(context.Context, int) context.Context { return nil })(ctx, 1) != ctx {
		t.Error("a Start that returns nil changes the context")
	}
	hook.End(g, "FetchEnd", func(context.Context, int) { panic("card 4711") })(ctx, 1)
	hook.EndWith(g, "AttemptEnd", func(context.Context, int, error) { panic("card 4711") })(ctx, 1, nil)
	hook.Event(g, "Parked", func(list []int) { _ = list[3] })(nil)
	text := log.String()
	for _, want := range []string{
		"hook=AttemptStart",
		"hook=FetchEnd",
		"hook=AttemptEnd",
		"hook=Parked",
		"index out of range",
		"panic=string",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "4711") {
		t.Errorf("the log has the value of a panic:\n%s", text)
	}
	if n := strings.Count(text, "hook=AttemptStart"); n != 1 {
		t.Errorf("%d lines for one hook, want 1", n)
	}
	good := hook.Event[int](g, "", nil) == nil &&
		hook.Start[int](g, "", nil) == nil &&
		hook.End[int](g, "", nil) == nil &&
		hook.EndWith[int, error](g, "", nil) == nil
	if !good {
		t.Error("the guard of a nil hook is not nil")
	}
}
