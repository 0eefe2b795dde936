package outbox_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
)

// answering is a remote that answers.
func answering() *scripted {
	return newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		return outbox.Result{Outcome: outbox.Delivered, Response: &outbox.Response{
			Status: 201, Header: http.Header{"Location": {"/charges/7"}}, Body: []byte("answer to " + a.Key),
		}}
	})
}

// completions is a table that completions write to, without a constraint, so that doubles show.
func (r *rig) completions() {
	r.exec(`create table completions (key text, what text)`)
}

const complete = `insert into completions values ($1, $2)`

// Whatever the outcome of a completion, the call is made once, and the writes of the completion
// that succeeded are there once.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first func(ctx context.Context, tx dedupe.GuardedTx) error
		want  string
	}{
		"at once":        {nil, "delivered"},
		"after an error": {func(context.Context, dedupe.GuardedTx) error { return errors.New("not yet") }, "delivered"},
		"after a panic":  {func(context.Context, dedupe.GuardedTx) error { panic("x") }, "delivered"},
		"after SQL failed": {
			func(ctx context.Context, tx dedupe.GuardedTx) error { _, _ = tx.Exec(ctx, `select 1/0`); return nil },
			"delivered",
		},
		"after queued SQL failed": {
			func(ctx context.Context, tx dedupe.GuardedTx) error { tx.Queue(`select 1/0`); return nil },
			"delivered",
		},
		"after its own commit": {
			func(ctx context.Context, tx dedupe.GuardedTx) error { _, err := tx.Exec(ctx, `rollback`); return err },
			"delivered",
		},
		"never": {
			func(context.Context, dedupe.GuardedTx) error { return outbox.Permanent(errors.New("no such order")) },
			"waiting",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.completions()
			sink := answering()
			cfg := testConfig(sink)
			var tries atomic.Int64
			cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
				good := answer != nil &&
					answer.Status == 201 &&
					answer.Header.Get("Location") == "/charges/7" &&
					string(answer.Body) == "answer to "+a.Key &&
					a.Name == "charge" &&
					a.Sink == "payments" &&
					a.Scope == "checkout" &&
					a.Target == "/charges" &&
					a.Header.Get("Content-Type") == "application/json"
				if !good {
					t.Errorf("completed %+v", a)
				}
				if _, err := tx.Exec(ctx, complete, a.Key, string(a.Body)); err != nil {
					return err
				}
				if tries.Add(1) == 1 && c.first != nil {
					return c.first(ctx, tx)
				}
				// A call of its own, once too.
				return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "receipt"})
			}
			capture := charge("1")
			capture.Capture = true
			capture.OrderingKey = "k"
			behind := charge("2")
			behind.OrderingKey = "k"
			r.enqueue(capture, behind)
			r.start(cfg)
			until(t, "it is settled", func() bool {
				return one[string](r, `select state from onlyonce.calls order by id limit 1`) == c.want
			})
			want := 1
			if c.want == "waiting" {
				want = 0
				if got := one[string](
					r,
					`select reason || ': ' || error from onlyonce.parked where state = 'waiting'`,
				); got != "completion: completion: no such order" {
					t.Errorf("parked as %s", got)
				}
			} else {
				until(t, "the one behind is sent", func() bool { return sink.bodies() == "1 2" })
			}
			if n := one[int](r, `select count(*) from completions`); n != want {
				t.Errorf("%d completions, want %d", n, want)
			}
			if n := one[int](r, `select count(*) from onlyonce.outbox_log where sink = 'mail'`); n != want {
				t.Errorf("%d receipts, want %d", n, want)
			}
			if n := strings.Count(sink.bodies(), "1"); n != 1 {
				t.Errorf("%d calls, want 1", n)
			}
		})
	}
}

// The relay is replaced while it completes: nothing of that completion counts, and the next relay
// completes the same answer without another call.
func TestCompletionOfAZombie(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.completions()
	g := r.gate()
	sink := answering()
	cfg := testConfig(sink)
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
		g.pass(nil)
		_, err := tx.Exec(ctx, complete, a.Key, "zombie")
		return err
	}
	capture := charge("1")
	capture.Capture = true
	r.enqueue(capture)
	x := r.start(cfg)
	g.wait()
	r.seize(one[int](r, `select lane from onlyonce.calls`))
	g.release()
	until(t, "the lease is lost", r.lost)
	x.stop()
	if n := one[int](r, `select count(*) from completions`); n != 0 {
		t.Errorf("%d completions of a relay that was replaced", n)
	}
	r.giveBack()
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
		_, err := tx.Exec(ctx, complete, a.Key, string(answer.Body))
		return err
	}
	r.start(cfg)
	r.states("delivered")
	if got := one[string](r, `select string_agg(what, ' ') from completions`); !strings.HasPrefix(got, "answer to ") ||
		strings.Contains(got, " answer") {
		t.Errorf("completed with %s", got)
	}
	if n := len(sink.calls()); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// A message is handled again, and so is its call, and its completion. What that enqueues may have
// been sent before: it is looked for (O1), and its key is as old as the message (O6).
func TestO6CompletionDoneAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		emptied string // what is deleted before that
		want    string // of the receipt
	}{
		"the receipt is in the log": {`delete from onlyonce.batches where sink = 'payments'`, "delivered"},
		"its segment was emptied":   {`delete from onlyonce.batches`, "reconcile"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			payments := answering()
			mail := newScripted(accept)
			payments.limits.KeyWindow = outbox.Forever
			mail.name = "mail"
			cfg := testConfig(payments, mail)
			cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, _ *outbox.Attempt, _ *outbox.Response) error {
				return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "receipt"})
			}
			capture := charge("1")
			capture.Capture = true
			message := origin.Origin{Scope: "s", ID: "m", Time: time.Now().Add(-25 * time.Hour)}
			if err := r.handled(message, capture); err != nil {
				t.Fatal(err)
			}
			r.start(cfg)
			until(t, "the receipt is sent", func() bool {
				return one[int](r, `select count(*) from onlyonce.calls where sink = 'mail' and state = 'delivered'`) == 1
			})
			r.exec(c.emptied)
			r.exec(`delete from onlyonce.parked`)
			message.Redo = true
			if err := r.handled(message, capture); err != nil {
				t.Fatal(err)
			}
			until(t, "the call is completed again", func() bool {
				return one[int](r, `select count(*) from onlyonce.parked where sink = 'payments' and state = 'resolved'`) == 1
			})
			until(t, "the receipt is "+c.want, func() bool {
				return one[string](r, `select string_agg(state, ' ') from onlyonce.calls where sink = 'mail'`) == c.want
			})
			if n := len(mail.calls()); n != 1 {
				t.Errorf("%d receipts were sent, want 1", n)
			}
		})
	}
}

// A relay without RelayConfig.Complete keeps the answer for one that has it.
func TestCompletionWaitsForARelayThatCompletes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.completions()
	sink := answering()
	capture := charge("1")
	capture.Capture = true
	r.enqueue(capture)
	x := r.start(testConfig(sink))
	until(t, "it was tried", func() bool { return one[int](r, `select coalesce(max(attempts), 0) from onlyonce.parked`) > 2 })
	x.stop()
	cfg := testConfig(sink)
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
		_, err := tx.Exec(ctx, complete, a.Key, "")
		return err
	}
	r.start(cfg)
	r.states("delivered")
	if n := one[int](r, `select count(*) from completions`); n != 1 || len(sink.calls()) != 1 {
		t.Errorf("%d completions, %d calls", n, len(sink.calls()))
	}
}
