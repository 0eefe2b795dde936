package sqssink_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/sqssink"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rig is a server with the queues orders and orders.fifo.
type rig struct {
	t      *testing.T
	moto   *devenv.Moto
	client *sqs.Client
	plain  string
	fifo   string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, moto: servertest.Moto(t)}
	r.client = sqs.New(sqs.Options{Region: "eu-central-1", BaseEndpoint: &r.moto.URL, HTTPClient: http.DefaultClient,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		})})
	r.queues()
	return r
}

func (r *rig) queues() {
	r.t.Helper()
	for name, url := range map[string]*string{"orders": &r.plain, "orders.fifo": &r.fifo} {
		attributes := map[string]string{"MaximumMessageSize": "16384"}
		if strings.HasSuffix(name, ".fifo") {
			attributes = map[string]string{"FifoQueue": "true"}
		}
		out, err := r.client.CreateQueue(r.t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
		if err != nil {
			r.t.Fatal(err)
		}
		*url = *out.QueueUrl
	}
}

func (r *rig) sink() *sqssink.Sink {
	r.t.Helper()
	lost := strings.TrimSuffix(r.plain, "orders") + "lost"
	s, err := sqssink.New(r.client, sqssink.Config{
		Name:      "events",
		Queues:    []string{r.plain, r.fifo, lost},
		KeyWindow: time.Hour,
		Timeout:   5 * time.Second,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// take receives n messages and deletes them.
func (r *rig) take(url string, n int) (all []types.Message) {
	r.t.Helper()
	pgtest.Until(r.t, patience, fmt.Sprintf("%d messages are in %s", n, url), func() bool {
		out, err := r.client.ReceiveMessage(r.t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10,
			MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"}})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, m := range out.Messages {
			if _, err := r.client.DeleteMessage(r.t.Context(), &sqs.DeleteMessageInput{
				QueueUrl:      &url,
				ReceiptHandle: m.ReceiptHandle,
			}); err != nil {
				r.t.Fatal(err)
			}
		}
		all = append(all, out.Messages...)
		return len(all) >= n
	})
	return all
}

func call(key, target, body string) *outbox.Attempt {
	return &outbox.Attempt{
		Key:    key,
		Method: http.MethodPost,
		Target: target,
		Header: http.Header{"Content-Type": {"text/plain"}},
		Body:   []byte(body),
	}
}

const key = "6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10"

func attributes(m types.Message) string {
	var all []string
	for _, name := range []string{sqssink.MessageID, "Content-Type", "Content-Transfer-Encoding", "traceparent"} {
		if a, ok := m.MessageAttributes[name]; ok {
			all = append(all, name+"="+aws.ToString(a.StringValue))
		}
	}
	return strings.Join(all, " ")
}

// O10: the message that a call becomes. Another attempt has the same ids: a FIFO queue recognises
// it while it remembers them, and a consumer by the id after that.
func TestO10Message(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sink()
	if l := s.Limits(); s.Name() != "events" || l.KeyWindow != time.Hour || l.Timeout != 5*time.Second {
		t.Errorf("%s: %+v", s.Name(), l)
	}
	send := func(d *outbox.Attempt) {
		t.Helper()
		if got := s.Send(t.Context(), d); got.Outcome != outbox.Delivered {
			t.Fatalf("%+v", got)
		}
	}
	d := call(key, "/orders.fifo", "17")
	d.Trace, d.Order = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "0b0f5d6e-0000-5000-8000-000000000001"
	for range 2 {
		send(d)
		send(d) // within SQS's window, which moto ends when the message is deleted
		m := r.take(r.fifo, 1)[0]
		a, want := attributes(m), "message-id="+key+" Content-Type=text/plain traceparent="+d.Trace
		good := *m.Body == "17" &&
			a == want &&
			m.Attributes["MessageDeduplicationId"] == key &&
			m.Attributes["MessageGroupId"] == d.Order
		if !good {
			t.Errorf("%q %s, want %s; %v", *m.Body, a, want, m.Attributes)
		}
	}
	full := call(key, "/orders", "full")
	for n := range 8 { // with Content-Type and message-id ten: the trace context has no room
		full.Header.Set(fmt.Sprint("X-", n), "v")
	}
	full.Trace = d.Trace
	send(full)
	if m := r.take(r.plain, 1)[0]; len(m.MessageAttributes) != 10 || *m.Body != "full" {
		t.Errorf("%q %s", *m.Body, attributes(m))
	}
	large := call(key, "/orders.fifo", strings.Repeat("x", 1<<20-len("message-id"+"String"+key+"Content-Type"+"String"+"text/plain")))
	large.Trace = d.Trace
	send(large)
	if m := r.take(r.fifo, 1)[0]; len(*m.Body) != len(large.Body) || len(m.MessageAttributes) != 2 {
		t.Errorf("%d bytes, %s", len(*m.Body), attributes(m))
	}
	send(call(key, "/orders", "\x00\xff"))
	if m := r.take(r.plain, 1)[0]; *m.Body != "AP8=" ||
		attributes(m) != "message-id="+key+" Content-Type=text/plain Content-Transfer-Encoding=base64" {
		t.Errorf("%q %s", *m.Body, attributes(m))
	}
	send(call(key, "/orders.fifo", "alone"))
	if m := r.take(r.fifo, 1)[0]; m.Attributes["MessageGroupId"] != key {
		t.Errorf("%v", m.Attributes)
	}
}

// What is rejected, and what is tried again.
func TestAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sink()
	with := func(name, value string) *outbox.Attempt {
		a := call(key, "/orders", "x")
		a.Header.Set(name, value)
		return a
	}
	get := call(key, "/orders", "x")
	many := call(key, "/orders", "x")
	twice := call(key, "/orders", "x")
	get.Method = http.MethodGet
	for n := range 9 {
		many.Header.Set(fmt.Sprint("X-", n), "v")
	}
	twice.Header["X-A"] = []string{"1", "2"}
	for want, a := range map[string]*outbox.Attempt{
		"not among the sink's queues": call(key, "/other", "x"),
		"must be a slash":             call(key, "/orders/x", "x"),
		"must be POST":                get,
		"must not be empty":           call(key, "/orders", ""),
		"the sink's own":              with("Message-Id", "x"),
		"not the name of an":          with("Aws.x", "x"),
		"is empty or has":             with("X-A", ""),
		"has one value":               twice,
		"at most 10":                  many,
		"at most 1048576":             call(key, "/orders", strings.Repeat("x", 1<<20)),
		"must be shorter than 16384":  call(key, "/orders", strings.Repeat("x", 1<<15)),
	} {
		if got := s.Send(t.Context(), a); got.Outcome != outbox.Rejected || !got.Unseen || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: %+v", want, got)
		}
	}
	if got := s.Send(t.Context(), call(key, "/lost", "x")); got.Outcome != outbox.Postponed || !got.Unseen ||
		!strings.Contains(got.Reason, "does not exist") {
		t.Errorf("%+v", got)
	}
	if err := r.moto.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.Send(t.Context(), call(key, "/orders", "late")); got.Outcome != outbox.Postponed || !got.Unseen { // no connection
		t.Errorf("%+v", got)
	}
	if err := r.moto.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.queues()
	if got := s.Send(t.Context(), call(key, "/orders", "x")); got.Outcome != outbox.Delivered {
		t.Errorf("%+v", got)
	}
	// What failed is not sent later.
	if m := r.take(r.plain, 1)[0]; *m.Body != "x" {
		t.Errorf("%s was sent without an attempt", *m.Body)
	}
}

// Calls of a batch end each as alone: one that SQS refuses, for example, harms no other one.
func TestBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var calls []*outbox.Attempt
	want := map[int]outbox.AttemptOutcome{}
	targets := []string{"/orders", "/orders.fifo"}
	for i := range 37 {
		a := call(fmt.Sprintf("6f1c0c6e-7a3b-5d0e-9c55-0000000000%02d", i), targets[i%2], fmt.Sprint(i))
		want[i] = outbox.Delivered
		switch i {
		case 3:
			a.Target, want[i] = "/other", outbox.Rejected
		case 8:
			a.Body, want[i] = make([]byte, 1<<15), outbox.Rejected
		case 9:
			a.Target, want[i] = "/lost", outbox.Postponed
		}
		calls = append(calls, a)
	}
	var mu sync.Mutex // ended is called from several goroutines
	got := map[int]outbox.AttemptOutcome{}
	r.sink().SendBatch(t.Context(), calls, func(i int, end outbox.Result) {
		mu.Lock()
		defer mu.Unlock()
		if _, twice := got[i]; twice {
			t.Errorf("%d ended twice", i)
		}
		got[i] = end.Outcome
	})
	for i := range calls {
		if got[i] != want[i] {
			t.Errorf("%d: %v, want %v", i, got[i], want[i])
		}
	}
	bodies := map[string]int{}
	for _, m := range append(r.take(r.plain, 18), r.take(r.fifo, 16)...) {
		bodies[*m.Body]++
	}
	if len(bodies) != 34 {
		t.Errorf("%d bodies: %v", len(bodies), bodies)
	}
}

// Enqueued, sent by a relay, and once in the queue, in the order of the key.
func TestRelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db := queuerig.New(t)
	stop := db.Relays(r.sink())
	db.Enqueues(0, 40, "/orders.fifo", func(n int, c *outbox.Call) { c.OrderingKey = fmt.Sprint("k", n%4) })
	last, ids := map[string]int{}, map[string]bool{}
	for _, m := range r.take(r.fifo, 40) {
		var n int
		if _, err := fmt.Sscan(*m.Body, &n); err != nil {
			t.Fatal(err)
		}
		group := m.Attributes["MessageGroupId"]
		if before, ok := last[group]; ok && n != before+4 {
			t.Errorf("%d after %d in group %s", n, before, group)
		}
		last[group], ids[attributes(m)] = n, true
	}
	if len(last) != 4 || len(ids) != 40 {
		t.Errorf("%d groups, %d ids", len(last), len(ids))
	}
	stop()
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	const url = "https://sqs.eu-central-1.amazonaws.com/1/orders"
	_, err := sqssink.New(nil, sqssink.Config{Queues: []string{"orders", url, strings.Replace(url, "/1/", "/2/", 1)}, Timeout: 1})
	for _, want := range []string{
		"client:",
		"Config.Name",
		`Config.Queues: "orders"`,
		"Config.Queues: two are named orders",
		"Config.KeyWindow",
		"Config.Timeout",
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, sqssink.ErrConfig) {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
}
