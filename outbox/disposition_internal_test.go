package outbox

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/outcome"
)

// asText is a disposition on one line. Waits are named: those that grow with the attempts are
// backoff, and others are rounded to a minute, because the time since the row was read counts.
func asText(d disposition) string {
	words := []string{strings.TrimSpace(string(d.settlement)), d.state}
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	add(d.reason != "", "reason="+d.reason)
	add(d.lastError != "", "error="+d.lastError)
	add(d.open, "open")
	add(d.due, "due")
	switch {
	case d.delay >= time.Second && d.delay < 3*time.Second:
		words = append(words, "after=backoff")
	case d.delay != 0:
		words = append(words, "after="+d.delay.Round(time.Minute).String())
	}
	add(d.uncounted, "uncounted")
	if d.answer != nil {
		words = append(words, fmt.Sprintf("answer=%d", d.answer.Status))
	}
	return strings.Join(words, " ")
}

// What becomes of a call's row, for each state of its attempt and each answer.
func TestO6DispositionOfEachAttempt(t *testing.T) {
	t.Parallel()
	sink := &relaySink{cfg: RelayConfig{
		Backoff:      dedupe.Backoff{Min: 2 * time.Second, Max: time.Minute},
		PollInterval: 7 * time.Minute,
		LeaseTTL:     11 * time.Minute,
	}}
	sent := func(r Result) *callAttempt {
		if r.Outcome == 0 {
			r.Outcome = Retry
		}
		return &callAttempt{
			Attempt:       Attempt{Number: 1},
			callHistory:   callHistory{noneOpen: true},
			state:         attemptReturned,
			attemptResult: attemptResult{mayHaveLeft: true, result: r},
		}
	}
	again := func(r Result) *callAttempt {
		a := sent(r)
		a.noneOpen = false
		return a
	}
	unsent := func(r Result) *callAttempt {
		a := sent(r)
		a.mayHaveLeft = false
		return a
	}
	in := func(state attemptState, noneOpen bool) *callAttempt {
		return &callAttempt{
			state:       state,
			callHistory: callHistory{noneOpen: noneOpen, notBeforeIn: 3 * time.Hour, readAt: time.Now()},
		}
	}
	picked := in(attemptWaiting, false)
	picked.parked = 5
	captured := sent(Result{Outcome: Delivered, Response: &Response{Status: 201}})
	captured.Capture = true
	capturedNothing := sent(Result{Outcome: Delivered})
	capturedNothing.Capture = true
	unopened := unsent(Result{Outcome: Rejected, Reason: "no key"})
	unopened.unopened = true
	completed := func(r Result) *callAttempt {
		a := sent(r)
		a.answer = &Response{Status: 200}
		return a
	}
	reconciled := func(d decision, o AttemptOutcome) *callAttempt {
		a := again(Result{Outcome: o, Reason: "asked"})
		a.reconciling = true
		a.decision = d
		return a
	}
	for _, c := range []struct {
		name string
		a    *callAttempt
		want string
	}{
		{"behind another", in(attemptBlocked, true), " blocked reason=behind"},
		{"behind another, open", in(attemptBlocked, false), " blocked reason=behind open"},
		{"not before", in(attemptScheduled, true), " retrying reason=scheduled due after=3h0m0s"},
		{"not before, open", in(attemptScheduled, false), " retrying reason=scheduled open due after=3h0m0s"},
		{"for a rate", in(attemptRated, true), " retrying reason=rate uncounted"},
		{"for a rate, open", in(attemptRated, false), " retrying reason=rate open uncounted"},
		{"not begun", in(attemptWaiting, true), " retrying reason=cut due uncounted"},
		{"not begun, open", in(attemptWaiting, false), " retrying reason=cut open due uncounted"},
		{"picked and not begun", picked, " retrying open due after=7m0s uncounted"},
		{"under way", in(attemptUnderWay, true), " retrying reason=under-way open due after=11m0s"},

		{"delivered", sent(Result{Outcome: Delivered}), "delivered resolved"},
		{"delivered, after others", again(Result{Outcome: Delivered}), "delivered resolved"},
		{"captured", captured, "accepted retrying reason=completion due answer=201"},
		{"captured, without an answer", capturedNothing, "accepted retrying reason=completion due answer=0"},
		{"failed", sent(Result{Reason: "EOF"}), "retry retrying reason=failed error=EOF open due after=backoff"},
		{"failed, unseen", sent(Result{Unseen: true}), "retry retrying reason=postponed due after=backoff"},
		{"failed before it left", unsent(Result{}), "retry retrying reason=postponed due after=backoff"},
		{"failed before it left, after others", again(Result{Unseen: true}), "retry retrying reason=failed open due after=backoff"},
		{
			"not started",
			sent(Result{Outcome: Postponed, Err: fmt.Errorf("no: %w", ErrNotStarted)}),
			"retry retrying reason=postponed due after=backoff uncounted",
		},
		{
			"failed, not started",
			sent(Result{Err: fmt.Errorf("no: %w", ErrNotStarted)}),
			"retry retrying reason=postponed due after=backoff",
		},
		{
			"later, the sink",
			sent(Result{Outcome: Postponed, RetryAfter: 5 * time.Minute, RetryScope: RetrySink}),
			"retry retrying reason=postponed due after=5m0s uncounted",
		},
		{
			"later, the call",
			sent(Result{Outcome: Postponed, RetryAfter: 5 * time.Minute}),
			"retry retrying reason=postponed due after=5m0s",
		},
		{"postponed", sent(Result{Outcome: Postponed}), "retry retrying reason=postponed due after=backoff"},
		{"postponed, after others", again(Result{Outcome: Postponed}), "retry retrying reason=failed open due after=backoff"},
		{"rejected", sent(Result{Outcome: Rejected, Reason: "422"}), "rejected waiting reason=rejected error=422"},
		{"rejected, after others", again(Result{Outcome: Rejected}), "rejected waiting reason=rejected open"},
		{"never, after others", again(Result{Outcome: Never}), "rejected waiting reason=rejected"},
		{"unsafe", sent(Result{Outcome: Unsafe}), "reconcile reconcile reason=unsafe open due"},
		{"too late", unsent(Result{Err: errWindow}), "retry retrying reason=postponed due after=backoff"},
		{"too late, after others", func() *callAttempt {
			a := again(Result{Err: errWindow})
			a.mayHaveLeft = false
			return a
		}(), "reconcile reconcile reason=window open due"},
		{
			"no outcome",
			sent(Result{Outcome: 77}),
			"retry retrying reason=failed error=the sink returned no outcome (77) open due after=backoff",
		},
		{"unopened", unopened, "unopened waiting reason=unopened error=no key"},

		{"completed", completed(Result{Outcome: Delivered}), "delivered resolved"},
		{"completion rejected", completed(Result{Outcome: Rejected, Reason: "bad"}), "rejected waiting reason=completion error=bad"},
		{"completion failed", completed(Result{Reason: "EOF"}), "retry retrying reason=completion error=EOF due after=backoff"},

		{"asked: applied", reconciled(wasApplied, Delivered), "delivered resolved"},
		{"asked: not applied", reconciled(wasNotApplied, Delivered), "retry retrying reason=failed due"},
		{"asked: not known", reconciled(notKnown, Retry), "reconcile reconcile error=asked open due after=backoff"},
		{"asked: never known", reconciled(notKnown, Rejected), "reconcile reconcile error=asked open after=backoff"},
	} {
		if got := asText(sink.decide(c.a)); got != c.want {
			t.Errorf("%s:\n%q, want\n%q", c.name, got, c.want)
		}
	}
}

// What an attempt has shown of the remote: it may know the key if the call may have left, the
// connection does not say that it did not, and the sink does not either.
func TestO6WhatAnAttemptHasShown(t *testing.T) {
	t.Parallel()
	for o, want := range map[AttemptOutcome]outcome.Answer{
		Delivered: {Applied: outcome.WasApplied},
		Retry:     {Again: true},
		Rejected:  {Applied: outcome.NotApplied},
		Postponed: {Applied: outcome.NotApplied, Again: true},
		Never:     {Applied: outcome.NotApplied, OfTheKey: true},
		Unsafe:    {},
		-1:        {Again: true},
		77:        {Again: true},
	} {
		if got := o.answer(); got != want {
			t.Errorf("outcome %d: %+v, want %+v", o, got, want)
		}
	}
	for n, c := range []struct {
		of   attemptResult
		want bool
	}{
		{attemptResult{}, false},
		{attemptResult{mayHaveLeft: true}, true},
		{attemptResult{mayHaveLeft: true, result: Result{Err: errors.New("EOF")}}, true},
		{attemptResult{mayHaveLeft: true, result: Result{Unseen: true}}, false},
		{attemptResult{mayHaveLeft: true, result: Result{Err: fmt.Errorf("no: %w", ErrNotStarted)}}, false},
	} {
		a := &callAttempt{attemptResult: c.of, state: attemptReturned}
		applied := outcome.NotApplied
		if c.want {
			applied = outcome.MayBeApplied
		}
		if a.mayHaveReached() != c.want || a.mayHaveBeenCalled() != c.want || a.answered().Applied != applied {
			t.Errorf("%d: may have reached it: %t, may have been called: %t, %+v",
				n, a.mayHaveReached(), a.mayHaveBeenCalled(), a.answered())
		}
		a.maybeCalledBefore = true
		if !a.mayHaveBeenCalled() {
			t.Errorf("%d: an earlier attempt is forgotten", n)
		}
	}
	if a := (&callAttempt{state: attemptUnderWay}); !a.mayHaveBeenCalled() {
		t.Error("a call that is under way may have been made")
	}
}

// What hooks receive about an attempt, all of it.
func TestEventOfAnAttempt(t *testing.T) {
	t.Parallel()
	failed := errors.New("EOF")
	a := &callAttempt{
		Attempt:       Attempt{Name: "charge", Trace: "00-1", Sink: "stripe", ID: 4, Number: 3},
		callHistory:   callHistory{waited: time.Hour, readAt: time.Now().Add(-time.Hour)},
		together:      9,
		attemptResult: attemptResult{result: Result{Err: failed}},
	}
	for kind, change := range map[AttemptKind]func(*callAttempt){
		AttemptSend:      func(*callAttempt) {},
		AttemptReconcile: func(a *callAttempt) { a.reconciling = true },
		AttemptComplete:  func(a *callAttempt) { a.answer = &Response{} },
	} {
		change(a)
		for state, final := range map[CallState]bool{
			CallRetry: false, CallAccepted: false, CallDelivered: true, CallRejected: true, CallReconcile: true, CallUnopened: true,
		} {
			e := disposition{settlement: state, lastError: "why", open: true, delay: time.Minute}.event(a)
			if age := e.Age.Round(time.Hour); age != 2*time.Hour {
				t.Errorf("age %v, want some 2 h", age)
			}
			want := SettledEvent{
				AttemptEvent: AttemptEvent{Kind: kind, Sink: "stripe", Row: 4, Name: "charge", Number: 3, Batch: 9, Trace: "00-1"},
				State:        state, Open: true, Reason: "why", Err: failed, Final: final, Age: e.Age,
			}
			if state == CallRetry {
				want.Wait = time.Minute
			}
			if fmt.Sprintf("%+v", e) != fmt.Sprintf("%+v", want) {
				t.Errorf("%+v\nwant %+v", e, want)
			}
		}
		a.reconciling = false
		a.answer = nil
	}
}

// An answer is kept as a row's columns.
func TestAnswerColumns(t *testing.T) {
	t.Parallel()
	none := &disposition{}
	if status, headers, body := none.answerColumns(); status != nil || headers != nil || body != nil {
		t.Errorf("without an answer: %v, %v, %q", status, headers, body)
	}
	d := &disposition{answer: &Response{Status: 201, Header: http.Header{"A": {"1", "2"}}, Body: []byte("b")}}
	status, headers, body := d.answerColumns()
	if *status != 201 || *headers != d.answer.headerLines() || string(body) != "b" {
		t.Errorf("%d, %q, %q", *status, *headers, body)
	}
}
