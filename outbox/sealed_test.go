package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
)

// openWith is a sealer whose Open fails with an error while there is one.
type openWith struct{ err atomic.Pointer[error] }

func (s *openWith) fail(err error)                               { s.err.Store(&err) }
func (s *openWith) Seal(_ [16]byte, body []byte) ([]byte, error) { return body, nil }
func (s *openWith) Open(_ [16]byte, body []byte) ([]byte, error) {
	if err := *s.err.Load(); err != nil {
		return nil, err
	}
	return body, nil
}

// sealedRow is all that a try to open leaves in the row.
const sealedRow = `select state || ' ' || reason || ' ' || attempts || case when first_attempt_at is null then ' unused'
    else ' used' end ||
 case when next_attempt_at is null then ' by hand' else ' by itself' end from onlyonce.parked`

// O13: a body that will never open is parked for an operator, from the log and from the parked
// table, without an attempt and without a call. Its key's window has not begun.
func TestO13BodyThatNeverOpens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	s := &openWith{}
	s.fail(fmt.Errorf("wrapped: %w", seal.ErrValue))
	cfg := testConfig(sink)
	cfg.Sealer = s
	c := charge("1")
	c.Sealer = s
	r.enqueue(c)
	r.start(cfg)
	for i := range 2 {
		until(t, "it waits for an operator", func() bool { return len(r.as()) == i+1 })
		if got := one[string](r, sealedRow); got != "waiting unopened 0 unused by hand" {
			t.Errorf("try %d: %s", i, got)
		}
		if all := r.as(); all[i] != "unopened" {
			t.Errorf("try %d was told as %s", i, all[i])
		}
		if i == 0 {
			r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp()`)
		}
	}
	if n := len(sink.calls()); n != 0 {
		t.Errorf("%d calls", n)
	}
	s.fail(nil)
	r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp()`)
	r.states("delivered")
	if d := sink.calls(); len(d) != 1 || d[0].Number != 1 {
		t.Errorf("sent %+v", d)
	}
}

// O13: if the relay lacks a body's encryption key, it tries again, seldom and without an attempt,
// until it has the key.
func TestO13BodyWhoseKeyIsNotThereYet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	s := &openWith{}
	s.fail(seal.ErrKey)
	cfg := testConfig(sink)
	cfg.Sealer = s
	cfg.Backoff.Max = time.Hour
	c := charge("1")
	c.Sealer = s
	r.enqueue(c)
	r.start(cfg)
	for i := range 3 {
		told := r.told(i + 1)[i]
		if told.State != "retry" || !errors.Is(told.Err, seal.ErrKey) || told.Wait != 10*time.Second {
			t.Errorf("try %d: %+v", i, told)
		}
		if got := one[string](r, sealedRow); got != "retrying postponed 0 unused by itself" {
			t.Errorf("try %d: %s", i, got)
		}
		if i == 2 {
			s.fail(nil)
		}
		r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
	}
	r.states("delivered")
	if d := sink.calls(); len(d) != 1 || d[0].Number != 1 {
		t.Errorf("sent %+v", d)
	}
}

// O13: the window of a call that was made before goes on while its body does not open, and its
// attempts stay.
func TestO13WindowOfACallThatDoesNotOpenAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := &openWith{}
	s.fail(nil)
	sink := newScripted(nil)
	sink.send = func(_ context.Context, _ *outbox.Attempt) outbox.Result {
		s.fail(seal.ErrKey)
		return outbox.Failure("no answer", nil)
	}
	cfg := testConfig(sink)
	cfg.Sealer = s
	c := charge("1")
	c.Sealer = s
	r.enqueue(c)
	r.start(cfg)
	r.told(3)
	// While a body is being opened its attempt counts; if it does not open, it is taken back.
	until(t, "what does not open counts as no attempt", func() bool {
		return one[string](r, sealedRow) == "retrying failed 1 used by itself"
	})
	r.exec(`update onlyonce.parked set first_attempt_at = clock_timestamp() - interval '2 days'`)
	until(t, "its window is over", func() bool {
		return one[string](r, sealedRow) == "reconcile window 1 used by itself" ||
			one[string](r, sealedRow) == "reconcile window 1 used by hand"
	})
	if n := len(sink.calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// O13: a completion whose body does not open is tried again too, and makes no call.
func TestO13CompletionThatDoesNotOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.completions()
	s := &openWith{}
	s.fail(nil)
	sink := answering()
	cfg := testConfig(sink)
	cfg.Sealer = s
	var completed atomic.Int64
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
		completed.Add(1)
		_, err := tx.Exec(ctx, complete, a.Key, string(a.Body))
		return err
	}
	send := sink.send
	sink.send = func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		s.fail(seal.ErrValue)
		return send(ctx, a)
	}
	c := charge("1")
	c.Sealer = s
	c.Capture = true
	r.enqueue(c)
	r.start(cfg)
	until(t, "it waits for an operator", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'waiting'`) == 1
	})
	if got := one[string](r, sealedRow); got != "waiting completion 1 used by hand" {
		t.Error(got)
	}
	s.fail(nil)
	r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp()`)
	r.states("delivered")
	if n := len(sink.calls()); n != 1 || completed.Load() != 1 {
		t.Errorf("%d calls, %d completions", n, completed.Load())
	}
}
