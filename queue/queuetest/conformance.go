// Package queuetest has the test that each [queue.Broker] must pass, [Conformance], and a broker in
// memory for tests of your own handlers, [Memory].
package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
)

// Harness gives Conformance a broker and the adapter under test. Its functions fail the test by
// themselves.
type Harness struct {
	// Queue makes an empty queue, whose ack deadline should be about two seconds. Required.
	Queue func(t testing.TB) Target
	// Unreachable makes an adapter for an address at which no process listens. Required.
	Unreachable func(t testing.TB) queue.Broker
	// Unordered is true if the adapter refuses to deliver in order. Defaults to false.
	Unordered bool
}

// Target is one queue.
type Target struct {
	// Connect makes a receiver of the queue.
	Connect func(t testing.TB) queue.Broker
	// Publish sends messages with ID, Headers and Body, so that the adapter delivers them with
	// these. The adapter may deliver more headers.
	Publish func(t testing.TB, all ...queue.Delivery)
}

const within = time.Minute

// Conformance checks that an adapter keeps the contract of [queue.Broker]. Run it as a test of a
// new adapter, against the real broker.
func Conformance(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"DeliversWhatWasSent", deliversWhatWasSent},
		{"ReturnsWithItsContext", returnsWithItsContext},
		{"DeliversAgainUntilAcknowledged", deliversAgain},
		{"BeginTakesNothingAcknowledgedBack", takesNothingBack},
		{"OrderedTakeover", orderedTakeover},
		{"Unreachable", unreachable},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
}

func begin(t *testing.T, b queue.Broker, ordered bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := b.Begin(ctx, ordered); err != nil {
		t.Fatalf("Begin: %v", err)
	}
}

// end ends a session whose broker must be told.
func end(b queue.Broker) {
	if v, ok := b.(queue.BrokerEnd); ok {
		v.End()
	}
}

// receive receives exactly n messages, in portions of most, which it acknowledges if it is to.
func receive(t *testing.T, b queue.Broker, n, most int, andAck bool) (all []*queue.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for len(all) < n && ctx.Err() == nil {
		some := portion(ctx, t, b, most)
		if andAck {
			ack(t, b, some...)
		}
		all = append(all, some...)
	}
	if len(all) != n {
		t.Fatalf("%d deliveries came, want %d", len(all), n)
	}
	return all
}

// receiveFirst receives the first n messages of a queue that holds more, and acknowledges none.
// The first portion asks for all n, because a FIFO group of SQS delivers nothing while a portion of
// it is not acknowledged. A later one asks for what is missing.
func receiveFirst(t *testing.T, b queue.Broker, n int) (all []*queue.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for len(all) < n && ctx.Err() == nil {
		all = append(all, portion(ctx, t, b, n-len(all))...)
	}
	return all
}

func portion(ctx context.Context, t *testing.T, b queue.Broker, most int) []*queue.Delivery {
	t.Helper()
	some, err := b.Receive(ctx, most)
	if err != nil {
		t.Fatalf("Receive: %v", err)
	}
	if len(some) > most {
		t.Fatalf("Receive returned %d deliveries, at most %d were asked for", len(some), most)
	}
	return some
}

func ack(t *testing.T, b queue.Broker, all ...*queue.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := b.Ack(ctx, all); err != nil {
		t.Fatalf("Ack: %v", err)
	}
}

func messages(from, to int) (all []queue.Delivery) {
	for n := from; n < to; n++ {
		all = append(all, queue.Delivery{ID: fmt.Sprintf("id-%d", n), Body: []byte(fmt.Sprintf("body %d \x00\xff", n)),
			Headers: []consumer.Header{{Name: "X-Conformance", Value: []byte(fmt.Sprintf("value %d", n))}}})
	}
	return all
}

func ids(all []*queue.Delivery) (ids []string) {
	for _, d := range all {
		ids = append(ids, d.ID)
	}
	return ids
}

func wantIDs(t *testing.T, got []*queue.Delivery, from, to int) {
	t.Helper()
	var want []string
	for _, m := range messages(from, to) {
		want = append(want, m.ID)
	}
	if !slices.Equal(ids(got), want) {
		t.Fatalf("delivered %q, want %q", ids(got), want)
	}
}

func deliversWhatWasSent(t *testing.T, h Harness) {
	q := h.Queue(t)
	sent := messages(0, 7)
	q.Publish(t, sent...)
	b := q.Connect(t)
	defer end(b)
	begin(t, b, false)
	got := receive(t, b, len(sent), 3, true)
	wantIDs(t, got, 0, 7)
	for i, d := range got {
		if string(d.Body) != string(sent[i].Body) {
			t.Errorf("%s has the body %q, want %q", d.ID, d.Body, sent[i].Body)
		}
		if want := sent[i].Headers[0]; !slices.ContainsFunc(d.Headers, func(h consumer.Header) bool {
			return h.Name == want.Name && string(h.Value) == string(want.Value)
		}) {
			t.Errorf("%s has the headers %v, want %v among them", d.ID, d.Headers, want)
		}
		if d.Redelivered {
			t.Errorf("%s is said to be delivered again", d.ID)
		}
	}
}

// returnsWithItsContext begins anew for each context: a broker may make what it receives from in
// the first Receive, which then ends before that has succeeded.
func returnsWithItsContext(t *testing.T, h Harness) {
	b := h.Queue(t).Connect(t)
	defer end(b)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	begin(t, b, false)
	returns(ended, t, b)
	soon, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	begin(t, b, false)
	returns(soon, t, b)
	// of a receiver it is a third of the lease; a broker that has not answered by then may fail
	bounded, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	begin(t, b, false)
	returns(bounded, t, b)
}

func returns(ctx context.Context, t *testing.T, b queue.Broker) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		all, err := b.Receive(ctx, 10)
		if len(all) > 0 {
			err = errors.Join(err, fmt.Errorf("%d deliveries of an empty queue", len(all)))
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Receive whose context ended: %v", err)
		}
	case <-time.After(within):
		t.Fatal("Receive does not return when its context ends")
	}
}

func deliversAgain(t *testing.T, h Harness) {
	q := h.Queue(t)
	q.Publish(t, messages(0, 3)...)
	first := q.Connect(t)
	begin(t, first, false)
	got := receive(t, first, 3, 3, false)
	ack(t, first, got[1])
	end(first)
	defer end(first)
	begin(t, first, false) // a session that failed is followed by another one
	again := receive(t, first, 2, 3, true)
	for i, want := range []string{got[0].ID, got[2].ID} {
		if again[i].ID != want || !again[i].Redelivered {
			t.Errorf("%s came again, marked %t; want %s, marked", again[i].ID, again[i].Redelivered, want)
		}
	}
}

func takesNothingBack(t *testing.T, h Harness) {
	q := h.Queue(t)
	q.Publish(t, messages(0, 4)...)
	first := q.Connect(t)
	begin(t, first, false)
	receive(t, first, 4, 4, true)
	end(first)
	second := q.Connect(t)
	defer end(second)
	begin(t, second, !h.Unordered)
	q.Publish(t, messages(4, 6)...)
	wantIDs(t, receive(t, second, 2, 4, true), 4, 6)
}

func orderedTakeover(t *testing.T, h Harness) {
	q := h.Queue(t)
	first := q.Connect(t)
	second := q.Connect(t)
	if h.Unordered {
		if err := first.Begin(t.Context(), true); !errors.Is(err, queue.ErrConfig) {
			t.Errorf("Begin of an adapter without order: %v, want an error that wraps queue.ErrConfig", err)
		}
		return
	}
	q.Publish(t, messages(0, 9)...)
	begin(t, first, true)
	got := receiveFirst(t, first, 5)
	wantIDs(t, got, 0, 5)
	ack(t, first, got[:2]...)
	end(first)
	defer end(second)
	begin(t, second, true)
	wantIDs(t, receive(t, second, 7, 4, true), 2, 9)
}

func unreachable(t *testing.T, h Harness) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	b := h.Unreachable(t)
	defer end(b)
	switch err := b.Begin(ctx, false); {
	case err == nil:
		t.Error("Begin without a broker succeeds")
	case errors.Is(err, queue.ErrConfig):
		t.Errorf("Begin without a broker fails for good: %v", err)
	}
}
