package idempotency_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
)

type spanKey struct{}

// The handler works in the context of ServeStart, and the calls that it enqueues carry the trace of
// that; ServeEnd gets the context too.
func TestHooksOfRequests(t *testing.T) {
	t.Parallel()
	const span = "00-11111111111111111111111111111111-2222222222222222-00"
	cfg := testConfig()
	ended := make(chan string, 10)
	cfg.Hooks = idempotency.Hooks{
		ServeStart: func(ctx context.Context, s idempotency.ServeStart) context.Context {
			if s.Pattern != "/charges" || s.Method != http.MethodPost {
				t.Errorf("%+v", s)
			}
			return context.WithValue(ctx, spanKey{}, span)
		},
		ServeEnd: func(ctx context.Context, s idempotency.ServeEnd) {
			of, _ := ctx.Value(spanKey{}).(string)
			ended <- string(s.Outcome) + " " + of
		},
	}
	cfg.Trace = func(ctx context.Context) string { of, _ := ctx.Value(spanKey{}).(string); return of }
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		tx, err := idempotency.TxOf(req)
		if err == nil {
			err = outbox.Enqueue(req.Context(), tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges"})
		}
		if err != nil {
			t.Error(err)
		}
	})
	for _, mark := range []string{"created", "replayed"} {
		if g := r.post("/charges", "k", "x"); g.mark() != mark {
			t.Errorf("%v, want %s", g, mark)
		}
		if got := wait(t, "ServeEnd is called", ended); got != mark+" "+span {
			t.Errorf("ServeEnd got %q, want the mark %s and the span", got, mark)
		}
	}
	var trace string
	if err := r.pool.QueryRow(t.Context(), `select trace from onlyonce.outbox_log`).Scan(&trace); err != nil || trace != span {
		t.Errorf("the call's trace is %q, %v, want the span's", trace, err)
	}
}
