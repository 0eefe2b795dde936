package consumer_test

import (
	"context"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// The calls of a handler carry the trace of the context that Enqueue gets, in a batch handler too.
// Where Config.Trace knows none, they carry the message's.
func TestTraceOfCalls(t *testing.T) {
	t.Parallel()
	const (
		ofMessage = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		ofHandler = "00-11111111111111111111111111111111-2222222222222222-00"
	)
	cfg := testConfig()
	cfg.Trace = func(ctx context.Context) string { s, _ := ctx.Value(ctxKey("span")).(string); return s }
	cfg.Hooks.AttemptStart = func(ctx context.Context, _ consumer.Batch) context.Context {
		return context.WithValue(ctx, ctxKey("span"), ofHandler)
	}
	// Each message asks for one call in the handler's context, and for one outside of it.
	enqueue := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		call := outbox.Call{Sink: "payments", Name: "in", Target: "/charges", Body: m.Value}
		if err := outbox.Enqueue(ctx, tx, call); err != nil {
			return err
		}
		call.Name = "out"
		return outbox.Enqueue(context.Background(), tx, call)
	}
	for name, start := range map[string]func(*rig) (stop func()){
		"message": func(r *rig) func() {
			return r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error { return enqueue(ctx, tx, m) }, cfg)
		},
		"batch": func(r *rig) func() {
			return r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				for _, m := range msgs {
					if err := enqueue(ctx, consumer.TxFor(tx, m), m); err != nil {
						return err
					}
				}
				return nil
			}, cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			for _, v := range []string{"a", "b", "c"} {
				r.log.Append(0, v, id(v), consumer.Header{Name: "traceparent", Value: []byte(ofMessage)})
			}
			stop := start(r)
			r.reaches(0, 3)
			stop()
			n := r.count(`
select count(*)
  from onlyonce.outbox_log where trace = case name when 'in' then '` + ofHandler + `' else '` + ofMessage + `' end`)
			if n != 6 {
				t.Errorf("%d calls have the right trace, want 6", n)
			}
		})
	}
}
