package sqssink_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/sqssink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// fakeSQS is a server of our own that stores each message of a request, once a queue named slow is
// opened.
type fakeSQS struct {
	*httptest.Server
	slow     chan struct{}
	requests atomic.Int64
	bodies   sync.Map // of messages
}

func newFakeSQS(t *testing.T) *fakeSQS {
	f := &fakeSQS{slow: make(chan struct{})}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			QueueUrl string
			Entries  []struct{ Id, MessageBody string }
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.requests.Add(1)
		if strings.HasSuffix(in.QueueUrl, "/slow") {
			select {
			case <-f.slow:
			case <-r.Context().Done():
				return
			}
		}
		type stored struct{ Id, MessageId string }
		var out struct{ Successful []stored }
		for _, e := range in.Entries {
			f.bodies.Store(e.MessageBody, true)
			out.Successful = append(out.Successful, stored{e.Id, e.Id})
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		_ = json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fakeSQS) sink(t *testing.T) *sqssink.Sink {
	t.Helper()
	client := sqs.New(sqs.Options{
		Region:                           "eu-central-1",
		BaseEndpoint:                     &f.URL,
		HTTPClient:                       f.Client(),
		DisableMessageChecksumValidation: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
	s, err := sqssink.New(client, sqssink.Config{
		Name:      "events",
		Queues:    []string{f.URL + "/1/slow", f.URL + "/1/orders"},
		KeyWindow: time.Hour,
		Timeout:   10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ending is how a call of a batch has ended.
type ending struct {
	i int
	r outbox.Result
}

// sendAll sends a batch, and returns a channel with the results.
func sendAll(ctx context.Context, s *sqssink.Sink, calls ...*outbox.Attempt) <-chan ending {
	ended := make(chan ending, len(calls))
	go s.SendBatch(ctx, calls, func(i int, r outbox.Result) { ended <- ending{i, r} })
	return ended
}

// A queue that does not answer holds up no other in its batch.
func TestQueuesOfABatchSideBySide(t *testing.T) {
	t.Parallel()
	f := newFakeSQS(t)
	ended := sendAll(t.Context(), f.sink(t), call("k0", "/slow", "a"), call("k1", "/orders", "b"), call("k2", "/orders", "c"))
	for range 2 {
		if e := pgtest.Receive(t, patience, "a call to the other queue", ended); e.i == 0 || e.r.Outcome != outbox.Delivered {
			t.Errorf("call %d: %v %v", e.i, e.r.Outcome, e.r.Reason)
		}
	}
	close(f.slow)
	if e := pgtest.Receive(t, patience, "the call to the queue that is slow", ended); e.i != 0 || e.r.Outcome != outbox.Delivered {
		t.Errorf("call %d: %v %v", e.i, e.r.Outcome, e.r.Reason)
	}
}

// A call whose request did not begin while there was time was not started, and one whose request
// did may have been stored (O6).
func TestO6RequestThatDidNotBegin(t *testing.T) {
	t.Parallel()
	f := newFakeSQS(t)
	ctx, cancel := context.WithCancel(t.Context())
	var calls []*outbox.Attempt
	for i := range 60 {
		calls = append(calls, call(fmt.Sprint("k", i), "/slow", fmt.Sprint("body ", i)))
	}
	ended := sendAll(ctx, f.sink(t), calls...)
	pgtest.Until(t, patience, "four requests are under way", func() bool { return f.requests.Load() == 4 })
	cancel()
	notStarted := 0
	for range calls {
		e := pgtest.Receive(t, patience, "a call", ended)
		want := outbox.Retry
		if errors.Is(e.r.Err, outbox.ErrNotStarted) {
			notStarted++
			want = outbox.Postponed
		}
		if e.r.Outcome != want {
			t.Errorf("call %d: %v %v", e.i, e.r.Outcome, e.r.Reason)
		}
	}
	if notStarted != 20 || f.requests.Load() != 4 {
		t.Errorf("%d of 60 calls were not started, by %d requests of ten", notStarted, f.requests.Load())
	}
}

// The attribute by which a consumer decodes a body is the sink's alone.
func TestEncodingOfACallersOwn(t *testing.T) {
	t.Parallel()
	f := newFakeSQS(t)
	a := call(key, "/orders", "aGVsbG8=")
	a.Header["Content-Transfer-Encoding"] = []string{"base64"}
	if r := f.sink(t).Send(t.Context(), a); r.Outcome != outbox.Rejected || f.requests.Load() > 0 {
		t.Errorf("%v %s, %d requests", r.Outcome, r.Reason, f.requests.Load())
	}
	a = call(key, "/%6frders", "a")
	if r := f.sink(t).Send(t.Context(), a); r.Outcome != outbox.Delivered {
		t.Errorf("an encoded target: %v %s", r.Outcome, r.Reason)
	}
}
