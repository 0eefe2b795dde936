package kafkasink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// results records what a SendBatch reports, in order.
type results struct {
	t   *testing.T
	mu  sync.Mutex
	got map[int]outbox.Result
	seq []int
}

func (r *results) ended(i int, res outbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, twice := r.got[i]; twice {
		r.t.Errorf("call %d ended twice", i)
	}
	r.got[i] = res
	r.seq = append(r.seq, i)
}

// sendBatch returns when SendBatch does, with what it reported for each call.
func sendBatch(ctx context.Context, t *testing.T, s *kafkasink.Sink, all []*outbox.Attempt) *results {
	t.Helper()
	r := &results{t: t, got: map[int]outbox.Result{}}
	s.SendBatch(ctx, all, r.ended)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.got) != len(all) {
		t.Errorf("%d of %d calls ended", len(r.got), len(all))
	}
	return r
}

// Each call of a batch is reported by itself: a call that cannot be sent, or whose topic is
// unknown, does not affect the others (O10).
func TestSendBatch(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		there := kafkatest.Topic(t, brokers, 3, nil)
		missing := kafkatest.TopicName(t)
		s := newSink(t, brokers, nil, there, missing)
		var all []*outbox.Attempt
		for i, id := range ids(30) {
			target := "/" + there
			switch i % 10 {
			case 0:
				target = "/" + missing
			case 5:
				target = "/nobody's"
			case 7:
				target += "?key=seven"
			}
			all = append(all, delivery(id, target, fmt.Sprint(i)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r := sendBatch(ctx, t, s, all)
		for i, got := range r.got {
			want := outbox.Delivered
			if i%5 == 0 {
				want = outbox.Rejected
			}
			wantOutcome(t, got, want)
		}
		last := r.seq[len(r.seq)-3:]
		if slices.ContainsFunc(last, func(i int) bool { return i%10 != 0 }) {
			t.Errorf("the last to end were %v: calls waited for a topic that is not theirs", last)
		}
		keyed := 0
		for _, rec := range read(t, brokers, there, 24) {
			if string(rec.Key) == "seven" {
				keyed++
			}
		}
		if keyed != 3 {
			t.Errorf("%d records have the key of their target, want 3", keyed)
		}
	})
}

// A batch waits for another one's request when its context ends. SendBatch returns, and none of its
// calls is reported as delivered or written (O10).
func TestSendBatchCutOff(t *testing.T) {
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	_, arrived, release := holdFirst(c)
	s := newSink(t, c.ListenAddrs(), nil, topic)
	first := make(chan outbox.Result, 1)
	go func() { first <- send(t, s, delivery("first", "/"+topic, "first")) }()
	pgtest.Receive(t, patience, "arrived", arrived)
	ctx, cancel := context.WithCancel(t.Context())
	var all []*outbox.Attempt
	for _, id := range ids(10) {
		all = append(all, delivery(id, "/"+topic, "waiting"))
	}
	cut := make(chan *results, 1)
	go func() { cut <- sendBatch(ctx, t, s, all) }()
	until(t, "all of it waits", func() bool { return kafkasink.Waiting(s) == len(all) })
	cancel()
	for _, got := range (<-cut).got {
		wantOutcome(t, got, outbox.Retry)
		if !errors.Is(got.Err, context.Canceled) {
			t.Errorf("%v", got.Err)
		}
	}
	close(release)
	wantOutcome(t, <-first, outbox.Delivered)
	wantOutcome(t, send(t, s, delivery("last", "/"+topic, "last")), outbox.Delivered)
	for _, r := range read(t, c.ListenAddrs(), topic, 2) {
		if string(r.Value) == "waiting" {
			t.Error("a call was made although its context had ended")
		}
	}
}
