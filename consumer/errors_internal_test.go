package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// firstFailed finds the first message of the batch that an error marks, wherever in the error's
// tree, and whatever is marked before it.
func TestFirstFailed(t *testing.T) {
	t.Parallel()
	at := func(topic string, partition int32, offset int64) *Message {
		return &Message{Topic: topic, Partition: partition, Offset: offset}
	}
	msgs := []*Message{at("a", 0, 5), at("a", 0, 6), at("a", 1, 5), at("b", 0, 5), at("a", 0, 6)}
	boom := errors.New("boom")
	mark := func(i int) error { return FailMessage(msgs[i], boom) }
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"nil", nil, -1},
		{"none", boom, -1},
		{"the first", mark(0), 0},
		{"the second", mark(1), 1},
		{"of another partition", mark(2), 2},
		{"of another topic", mark(3), 3},
		{"a copy of it", FailMessage(at("a", 0, 6), boom), 1},
		{"the same twice", mark(4), 1},
		{"of another batch", FailMessage(at("a", 0, 7), boom), -1},
		{"wrapped", fmt.Errorf("twice: %w", fmt.Errorf("once: %w", mark(2))), 2},
		{"joined", errors.Join(boom, mark(3), mark(1), mark(2)), 1},
		{"joined, the first of all", errors.Join(mark(0), mark(2)), 0},
		{"joined in order", errors.Join(mark(1), mark(2)), 1},
		{"wrapped and joined", fmt.Errorf("%w and %w", errors.Join(mark(3)), Permanent(mark(2))), 2},
	} {
		if got := firstFailed(c.err, msgs); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if got := mark(2).Error(); got != "message at a/1/5: boom" {
		t.Errorf("it says %q", got)
	}
}

// What a handler marks an error with is found however the error is wrapped, keeps its text and what
// it wraps, and is found by no other question.
func TestMarks(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	m := &Message{Topic: "a", Offset: 5}
	type found struct {
		permanent, hopeless, unavailable bool
		wait                             time.Duration
	}
	for _, c := range []struct {
		name string
		err  error
		want found
	}{
		{"none", boom, found{wait: time.Second}},
		{"permanent", Permanent(boom), found{permanent: true, hopeless: true, wait: time.Second}},
		{"misuse", fmt.Errorf("%w: %w", guard.ErrControl, boom), found{hopeless: true, wait: time.Second}},
		{"unavailable", Unavailable(boom), found{unavailable: true, wait: time.Second}},
		{"later", RetryAfter(boom, time.Minute), found{wait: time.Minute}},
		{"sooner than the policy", RetryAfter(boom, time.Millisecond), found{wait: time.Second}},
		{"at once", RetryAfter(boom, 0), found{wait: time.Second}},
		{"in the past", RetryAfter(boom, -time.Minute), found{wait: time.Second}},
		{"a day", RetryAfter(boom, 24*time.Hour), found{wait: 24 * time.Hour}},
		{"two days", RetryAfter(boom, 48*time.Hour), found{wait: 24 * time.Hour}},
		{"of a message", FailMessage(m, Permanent(boom)), found{permanent: true, hopeless: true, wait: time.Second}},
		{"of no message", FailMessage(nil, boom), found{wait: time.Second}},
		{"several", Unavailable(Permanent(RetryAfter(boom, time.Minute))), found{true, true, true, time.Minute}},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			got := found{IsPermanent(err), isHopeless(err), isUnavailable(err), waitAtLeast(err, time.Second)}
			if got != c.want || !errors.Is(err, boom) {
				t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			}
		}
	}
	for name, err := range map[string]error{
		"Permanent":   Permanent(nil),
		"Unavailable": Unavailable(nil),
		"RetryAfter":  RetryAfter(nil, time.Minute),
		"FailMessage": FailMessage(m, nil),
	} {
		if err != nil {
			t.Errorf("%s of nil is %v", name, err)
		}
	}
	for _, err := range []error{Permanent(boom), Unavailable(boom), RetryAfter(boom, time.Minute)} {
		if err.Error() != "boom" {
			t.Errorf("it says %q", err)
		}
	}
}

// endsWork: what a user's function returns does not end the work on a partition, whatever it is.
// The engine's own errors do, if there is no sense in another attempt.
func TestEndsWork(t *testing.T) {
	t.Parallel()
	halt := &HaltError{Reason: HaltGap}
	for _, err := range []error{halt, source.ErrOwnershipLost, errMoved, context.Canceled} {
		wrapped := fmt.Errorf("wrapped: %w", err)
		if !endsWork(err) || !endsWork(wrapped) {
			t.Errorf("%v does not end the work", err)
		}
		if endsWork(&handlerFailure{err: wrapped}) || endsWork(&hindrance{err: wrapped}) {
			t.Errorf("%v of a user's function ends the work", err)
		}
	}
	for _, err := range []error{errors.New("boom"), context.DeadlineExceeded, errPaused, errChanged, errFenced} {
		if endsWork(err) {
			t.Errorf("%v ends the work", err)
		}
	}
}

// T14: a transaction was kept out only if the wait for its fence was too long.
func TestT14KeptOut(t *testing.T) {
	t.Parallel()
	refused := func(code string) error { return &pgconn.PgError{Code: code} }
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"at the fence", &guard.Failure{Step: stepFence, Err: refused(codeLockTimeout)}, true},
		{"at the fence, wrapped", fmt.Errorf("%w", &guard.Failure{Step: stepFence, Err: refused(codeLockTimeout)}), true},
		{"at the claim", &guard.Failure{Step: "claim", Err: refused(codeLockTimeout)}, false},
		{"a deadlock at the fence", &guard.Failure{Step: stepFence, Err: refused(codeDeadlock)}, false},
		{"no answer at the fence", &guard.Failure{Step: stepFence, Err: context.DeadlineExceeded}, false},
		{"a handler's", refused(codeLockTimeout), false},
	} {
		if got := (&hindrance{err: c.err}).keptOut(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// What becomes of a message for each reason: whether it leaves a row, and in which state.
func TestDispositions(t *testing.T) {
	t.Parallel()
	type want struct {
		parks bool
		state string
	}
	for reason, w := range map[string]want{
		reasonDuplicate:  {false, parked.Waiting},
		reasonSkipped:    {false, parked.Waiting},
		parked.Failed:    {true, parked.Retrying},
		parked.Behind:    {true, parked.Blocked},
		parked.NoKey:     {true, parked.Waiting},
		parked.Conflict:  {true, parked.Waiting},
		parked.Permanent: {true, parked.Waiting},
		parked.Exhausted: {true, parked.Waiting},
		parked.Crashed:   {true, parked.Waiting},
		parked.TooOld:    {true, parked.Waiting},
	} {
		d := &disposition{reason: reason}
		if got := (want{d.parks(), d.parkedState()}); got != w {
			t.Errorf("%s: %+v, want %+v", reason, got, w)
		}
	}
}
