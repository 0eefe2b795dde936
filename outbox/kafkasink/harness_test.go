package kafkasink_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds every wait of these tests. No test asserts how long something took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	pgtest.Main(m)
}

// onBoth runs a test against a real broker and against kfake.
func onBoth(t *testing.T, f func(t *testing.T, brokers []string)) {
	t.Run("real", func(t *testing.T) { f(t, kafkatest.Brokers(t)) })
	t.Run("kfake", func(t *testing.T) { f(t, kafkatest.Fake(t)) })
}

func newSink(t *testing.T, brokers []string, change func(*kafkasink.Config), topics ...string) *kafkasink.Sink {
	t.Helper()
	cfg := kafkasink.Config{Name: "events", Brokers: brokers, Topics: topics, KeyWindow: 6 * 24 * time.Hour, Timeout: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	s, err := kafkasink.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// delivery is the first attempt at a call.
func delivery(key, target, body string) *outbox.Attempt {
	return &outbox.Attempt{Key: key, Sink: "events", Name: "placed", Method: http.MethodPost, Target: target, Body: []byte(body), Number: 1}
}

func send(t *testing.T, s *kafkasink.Sink, a *outbox.Attempt) outbox.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return s.Send(ctx, a)
}

// sendAll sends all calls at once and returns the results in order.
func sendAll(t *testing.T, s *kafkasink.Sink, all []*outbox.Attempt) []outbox.Result {
	t.Helper()
	results := make([]outbox.Result, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() { results[i] = send(t, s, a) })
	}
	wg.Wait()
	return results
}

func wantOutcome(t *testing.T, r outbox.Result, want outbox.AttemptOutcome) {
	t.Helper()
	if r.Outcome != want {
		t.Errorf("%v: %s (%v), want %v", r.Outcome, r.Reason, r.Err, want)
	}
	if unseen := want == outbox.Postponed || want == outbox.Rejected; r.Unseen != unseen {
		t.Errorf("%v: unseen %v, want %v", want, r.Unseen, unseen)
	}
}

// read returns the first n records of a topic, of all its partitions, each partition's in order.
func read(t *testing.T, brokers []string, topic string, n int) []*kgo.Record {
	t.Helper()
	cl := kafkatest.Client(t, brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all []*kgo.Record
	for len(all) < n {
		f := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records came", len(all), n)
		}
		all = append(all, f.Records()...)
	}
	return all
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("00000000-0000-8000-8000-%012d", i)
	}
	return all
}

// until polls a condition that has no notification.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
}
