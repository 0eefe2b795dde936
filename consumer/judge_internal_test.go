package consumer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// waits are the waits of a policy in tests: a second more with each attempt.
func waits(attempt int) time.Duration { return time.Duration(attempt) * time.Second }

// Policies of tests, with Config.MaxAttempts 3.
var (
	parks    = policy{limit: 3, wait: waits}                             // ParkMessage
	sideline = policy{limit: 3, wait: waits, sidelines: true}            // ParkOrderingKey
	blocking = policy{limit: 3, wait: waits, blocks: true}               // BlockPartition
	ofRow    = policy{limit: 3, wait: waits, sidelines: true, row: true} // a parked row, under any of them
)

func (pol policy) isBraked() policy {
	pol.braked = true
	return pol
}

func (pol policy) isParking() policy {
	pol.parking = true
	return pol
}

// D1, D2, D3, D7: what becomes of a message that is alone, for each policy, each number of the
// attempt, and each way in which it can have ended. Both failure paths go by this table: the log's
// and that of parked rows.
func TestD3Judge(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	conflict := &disposition{reason: parked.Conflict, err: cause}
	fails := func(err error) error { return &handlerFailure{err: err} }
	answer := fails(cause)
	hopeless := fails(Permanent(cause))
	misuse := fails(fmt.Errorf("commit: %w: %w", guard.ErrControl, cause))
	lost := &handlerFailure{err: Permanent(cause), lost: true}
	later := fails(RetryAfter(cause, time.Minute))
	objection := fails(&blockedError{conflict})
	brake := fails(&brakeError{conflict})

	type want struct {
		verdict verdict
		reason  string // of the disposition; empty: there is none
		wait    time.Duration
	}
	for _, c := range []struct {
		name    string
		policy  policy
		attempt int
		err     error
		want    want
	}{
		{"committed", parks, 3, nil, want{verdict: done}},
		{"committed as a row", ofRow, 3, nil, want{verdict: done}},
		{"committed while the brake holds", parks.isBraked(), 3, nil, want{verdict: done}},

		// What is not an answer never counts, whatever the attempt's number.
		{"hindered", parks, 9, &hindrance{err: cause}, want{verdict: noAnswer}},
		{"hindered as a row", ofRow, 9, &hindrance{err: cause}, want{verdict: noAnswer}},
		{"hindered by what wraps a permanent error", parks, 9, &hindrance{err: Permanent(cause)}, want{verdict: noAnswer}},
		{"hindered while the brake holds", parks.isBraked(), 9, &hindrance{err: cause}, want{verdict: noAnswer}},
		{"hindered while it is parked", parks.isParking(), 9, &hindrance{err: cause}, want{verdict: noAnswer}},
		{"the server is away", parks, 9, cause, want{verdict: noAnswer}},
		{"another owner", blocking, 9, source.ErrOwnershipLost, want{verdict: noAnswer}},
		{"moved", sideline, 9, errMoved, want{verdict: noAnswer}},

		// An answer, below the limit and at it.
		{"answer 1", parks, 1, answer, want{verdict: again}},
		{"answer 2", parks, 2, answer, want{verdict: again}},
		{"answer 3", parks, 3, answer, want{giveUp, parked.Exhausted, 0}},
		{"answer 4", parks, 4, answer, want{giveUp, parked.Exhausted, 0}},
		{"answer 1, its key waits", sideline, 1, answer, want{park, parked.Failed, time.Second}},
		{"answer 2, its key waits", sideline, 2, answer, want{park, parked.Failed, 2 * time.Second}},
		{"answer 3, its key waits", sideline, 3, answer, want{giveUp, parked.Exhausted, 0}},
		{"answer 1 of a row", ofRow, 1, answer, want{park, parked.Failed, time.Second}},
		{"answer 3 of a row", ofRow, 3, answer, want{giveUp, parked.Exhausted, 0}},
		{"answer 1, blocking", blocking, 1, answer, want{verdict: again}},
		{"answer 9, blocking", blocking, 9, answer, want{verdict: again}},
		{"answer that names a wait", sideline, 1, later, want{park, parked.Failed, time.Minute}},
		{"answer of a row that names a wait", ofRow, 2, later, want{park, parked.Failed, time.Minute}},
		{"answer that names a wait, at the limit", sideline, 3, later, want{giveUp, parked.Exhausted, 0}},

		// An answer that no retry will change.
		{"permanent", parks, 1, hopeless, want{giveUp, parked.Permanent, 0}},
		{"permanent at the limit", parks, 3, hopeless, want{giveUp, parked.Permanent, 0}},
		{"permanent, its key waits", sideline, 1, hopeless, want{giveUp, parked.Permanent, 0}},
		{"permanent of a row", ofRow, 1, hopeless, want{giveUp, parked.Permanent, 0}},
		{"permanent, blocking", blocking, 1, hopeless, want{halt, parked.Permanent, 0}},
		{"mistake of the program", parks, 1, misuse, want{giveUp, parked.Permanent, 0}},
		{"mistake of the program, blocking", blocking, 1, misuse, want{halt, parked.Permanent, 0}},

		// One whose connection was lost meanwhile may have another cause.
		{"permanent and lost", parks, 1, lost, want{verdict: again}},
		{"permanent and lost at the limit", parks, 3, lost, want{giveUp, parked.Exhausted, 0}},
		{"permanent and lost, blocking", blocking, 9, lost, want{verdict: again}},
		{"permanent and lost, its key waits", sideline, 1, lost, want{park, parked.Failed, time.Second}},

		// What the database says of it, and its policy forbids to do.
		{"conflict, blocking", blocking, 1, objection, want{halt, parked.Conflict, 0}},
		{"conflict while the brake holds", blocking.isBraked(), 1, objection, want{halt, parked.Conflict, 0}},
		{"cannot be parked", parks, 1, objection, want{halt, parked.Conflict, 0}},
		{"cannot be parked when it is to be", parks.isParking(), 1, objection, want{halt, parked.Conflict, 0}},
		{"conflict of a row", ofRow, 1, objection, want{park, parked.Conflict, 0}},
		{"conflict of a row at the limit", ofRow, 3, objection, want{park, parked.Conflict, 0}},
		{"conflict of a row while the brake holds", ofRow.isBraked(), 1, objection, want{park, parked.Conflict, 0}},

		// The brake.
		{"the brake stops it", parks, 1, brake, want{tripped, parked.Conflict, 0}},
		{"the brake stops it when it is parked", parks.isParking(), 1, brake, want{tripped, parked.Conflict, 0}},
		{"answer while the brake holds", parks.isBraked(), 1, answer, want{tripped, parked.Exhausted, 0}},
		{"permanent while the brake holds", parks.isBraked(), 1, hopeless, want{tripped, parked.Permanent, 0}},
		{"answer while the brake holds, its key waits", sideline.isBraked(), 1, answer, want{tripped, parked.Exhausted, 0}},
		{"answer of a row while the brake holds", ofRow.isBraked(), 1, answer, want{tripped, parked.Exhausted, 0}},

		// It failed while it was set aside: that counts, and it is tried once more.
		{"fails while it is parked", parks.isParking(), 3, answer, want{verdict: again}},
		{"fails for good while it is parked", parks.isParking(), 3, hopeless, want{verdict: again}},
		{"fails while it is parked and the brake holds", parks.isParking().isBraked(), 3, answer, want{verdict: again}},
	} {
		v, why := judge(c.policy, count{attempt: c.attempt, counted: c.attempt}, c.err)
		got := want{verdict: v}
		if why != nil {
			got.reason = why.reason
			got.wait = why.wait
			if !errors.Is(why.err, cause) {
				t.Errorf("%s: the disposition says %q, not why it failed", c.name, why.err)
			}
			if own := why != conflict; own && why.attempts != c.attempt {
				t.Errorf("%s: the row would have %d attempts, want %d", c.name, why.attempts, c.attempt)
			}
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// D3, F9: attempts without an answer give a message up as crashed once they are above the limit and
// more than one. From the second attempt to park it on, Config.OnParked may be what ends the
// process.
func TestF9JudgeUnanswered(t *testing.T) {
	t.Parallel()
	withHook := parks
	withHook.onParked = true
	for _, c := range []struct {
		name                string
		policy              policy
		counted, unanswered int
		crashed, quiet      bool
	}{
		{"the first", parks, 1, 0, false, false},
		{"at the limit", parks, 3, 2, false, false},
		{"above the limit", parks, 4, 3, true, false},
		{"above the limit, all answered", parks, 4, 0, false, false},
		{"above the limit, one may be a neighbour's", parks, 4, 1, false, false},
		{"above the limit, two", parks, 4, 2, true, false},
		{"blocking", blocking, 4, 3, true, false},
		{"above the limit, with OnParked", withHook, 4, 3, true, false},
		{"after one that was to park it", withHook, 5, 4, true, true},
		{"after one that was to park it, without OnParked", parks, 5, 4, true, false},
	} {
		v := judgeUnanswered(c.policy, count{attempt: c.counted, counted: c.counted, unanswered: c.unanswered})
		if crashed := v != nil; crashed != c.crashed {
			t.Errorf("%s: crashed is %v, want %v", c.name, crashed, c.crashed)
			continue
		}
		if v == nil {
			continue
		}
		if v.reason != parked.Crashed || v.quiet != c.quiet || v.attempts != c.counted-1 {
			t.Errorf("%s: %+v, want reason crashed, %d attempts, quiet %v", c.name, v, c.counted-1, c.quiet)
		}
		text := v.err.Error()
		if !strings.Contains(text, fmt.Sprintf("ended %d times", c.unanswered)) || strings.Contains(text, "not called") != c.quiet {
			t.Errorf("%s: it says %q", c.name, text)
		}
	}
}

// F9: a row has one attempt more than a message of the log before those without an answer count.
func TestF9JudgeUnansweredOfRows(t *testing.T) {
	t.Parallel()
	for attempt, crashed := range map[int]bool{1: false, 3: false, 4: false, 5: true, 6: true} {
		row := &parkedRow{attempt: attempt, counted: attempt}
		if v := judgeUnanswered(ofRow, row.count()); (v != nil) != crashed {
			t.Errorf("attempt %d: crashed is %v, want %v", attempt, v != nil, crashed)
		}
	}
}
