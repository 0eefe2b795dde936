package sqsqueue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/queue/sqsqueue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for kind, suffix := range map[string]string{"standard": "", "FIFO": ".fifo"} {
		t.Run(kind, func(t *testing.T) {
			queuetest.Conformance(t, queuetest.Harness{
				Unordered: suffix == "",
				Queue: func(testing.TB) queuetest.Target {
					url := s.queue(suffix, nil)
					return queuetest.Target{
						Connect: func(testing.TB) queue.Broker { return s.broker(url) },
						Publish: func(_ testing.TB, all ...queue.Delivery) { s.publish(url, all...) },
					}
				},
				Unreachable: func(testing.TB) queue.Broker {
					return sqsqueue.New(client("http://127.0.0.1:1"), sqsqueue.Config{QueueURL: "http://127.0.0.1:1/1/q"})
				},
			})
		})
	}
}

// rig is a database and a queue.
type rig struct {
	*sqsServer
	*queuerig.Rig
	url string
}

func newRig(t *testing.T, suffix string, attributes map[string]string) *rig {
	t.Helper()
	s := newServer(t)
	return &rig{sqsServer: s, Rig: queuerig.New(t), url: s.queue(suffix, attributes)}
}

func numbered(from, to int) (all []queue.Delivery) {
	for n := from; n < to; n++ {
		all = append(all, queue.Delivery{ID: fmt.Sprintf("m%03d", n), Body: []byte(fmt.Sprint("body ", n))})
	}
	return all
}

func wantNumbered(t *testing.T, got []string, n int) {
	t.Helper()
	for i, m := range numbered(0, n) {
		if i >= len(got) || got[i] != m.ID {
			t.Fatalf("stored %q, want m000 to m%03d in order", got, n-1)
		}
	}
	if len(got) != n {
		t.Fatalf("stored %q, want %d", got, n)
	}
}

// A producer that sends again after SQS has forgotten the id: SQS delivers it a second time, and it
// is a copy (Q2). moto forgets the id of a message that is deleted.
func TestProducerThatSendsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, ".fifo", nil)
	var copies atomic.Int64
	r.Receives(r.broker(r.url), func(c *queue.Config) { c.OnStored = func(s queue.StoredEvent) { copies.Add(int64(s.Copies)) } })
	for n := range 3 {
		r.publish(r.url, numbered(0, 1)...)
		pgtest.Until(t, patience, "it was delivered", func() bool { return copies.Load() == int64(n) && len(r.Stored()) == 1 })
		r.untilEmpty(r.url)
	}
	wantNumbered(t, r.Stored(), 1)
}

// What is a message's id, and what is parked without one (Q2).
func TestIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", nil)
	deliveries := r.queueOf(sqsqueue.Config{QueueURL: r.sqsServer.queue("", nil), ID: sqsqueue.DeliveryID}, "delivery")
	groups := r.queueOf(
		sqsqueue.Config{
			QueueURL: r.sqsServer.queue(".fifo", map[string]string{"DeduplicationScope": "messageGroup"}),
			ID:       sqsqueue.DeduplicationID,
		},
		"group",
	)
	r.Receives(r.broker(r.url))
	a := queue.Delivery{ID: "a", Body: []byte("1")}
	r.publish(r.url, a, a, queue.Delivery{Body: []byte("none")})
	r.publish(deliveries, a, a)
	for _, group := range []string{"g", "h", "g"} {
		a.Key = []byte(group)
		r.publish(groups, a)
		r.untilEmpty(groups) // moto takes the id of another group for the same
	}
	r.untilEmpty(r.url)
	r.untilEmpty(deliveries)
	all := r.Strings(`select s.topic || ' ' || case s.topic when 'queue.delivery' then '' else l.id
		end || ' ' || coalesce(convert_from(order_key, 'UTF8'), '')
		from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream order by 1`)
	if want := []string{
		"queue.delivery  ",
		"queue.delivery  ",
		"queue.group g a g",
		"queue.group h a h",
		"queue.q a ",
	}; !slices.Equal(all, want) {
		t.Errorf("stored: %q, want %q", all, want)
	}
	if parked := r.Strings(`select reason::text from onlyonce.parked`); !slices.Equal(parked, []string{"no-key"}) {
		t.Errorf("parked: %q", parked)
	}
}

func (r *rig) queueOf(cfg sqsqueue.Config, name string) (url string) {
	r.T.Helper()
	r.Receives(sqsqueue.New(client(r.URL), cfg), func(c *queue.Config) { c.Name = name })
	return cfg.QueueURL
}

// Settings that would lose messages, or their order, end a receiver (Q3, Q5, Q6).
func TestQ3QueueThatDrops(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", nil)
	dead := r.sqsServer.named("dead", nil)
	redrive := func(count string) map[string]string {
		return map[string]string{
			"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:123456789012:dead","maxReceiveCount":` + count + `}`,
		}
	}
	for _, c := range []struct {
		want, suffix string
		attributes   map[string]string
		ordered      bool
	}{
		{want: "RedrivePolicy: is", attributes: redrive("999")},
		{want: "RedrivePolicy: is", attributes: redrive(`"5"`)},
		{want: "VisibilityTimeout: is 0", attributes: map[string]string{"VisibilityTimeout": "0"}},
		{
			want:       "ContentBasedDeduplication: must be off",
			suffix:     ".fifo",
			attributes: map[string]string{"ContentBasedDeduplication": "true"},
		},
		{want: "FifoQueue: must be set", ordered: true},
		{
			want:       "Config.CopiesWithin: is 1h0m0s: the broker keeps messages for 1h0m1s",
			attributes: map[string]string{"MessageRetentionPeriod": "3601"},
		},
	} {
		q := r.Queue(r.broker(r.sqsServer.queue(c.suffix, c.attributes)), func(cfg *queue.Config) { cfg.Ordered = c.ordered })
		if err := q.Receive(t.Context()); !errors.Is(err, queue.ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	fits := r.sqsServer.queue("", redrive("1000"))
	r.Receives(r.broker(fits))
	r.publish(fits, numbered(0, 1)...)
	r.UntilStored(1)
	if left := r.left(dead); left != "0+0" {
		t.Errorf("dead letters: %s", left)
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := queue.New(nil, sqsqueue.New(nil, sqsqueue.Config{QueueURL: "orders", ID: sqsqueue.DeduplicationID}), queue.Config{})
	for _, want := range []string{"client:", "Config.QueueURL", "Config.ID"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
}

// The server is away at the start, comes, and goes in the middle, with the queue and all that it
// knew: what producers send again is stored once.
func TestServerThatComesAndGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, ".fifo", nil)
	name := r.url[strings.LastIndex(r.url, "/")+1:]
	b := r.broker(r.url)
	kill := func() {
		if err := r.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart := func() {
		if err := r.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	q, _ := r.Receives(b)
	says := func(what string) {
		pgtest.Until(t, patience, "the receiver says "+what, func() bool {
			err := q.Healthy()
			return err != nil && strings.Contains(err.Error(), what)
		})
	}
	says("connection refused")
	restart()
	says("does not exist")
	r.named(name, nil)
	r.publish(r.url, numbered(0, 50)...)
	r.UntilStored(50)
	kill()
	says("connection refused")
	restart()
	r.named(name, nil)
	r.publish(r.url, numbered(20, 100)...)
	r.untilEmpty(r.url)
	pgtest.Until(t, patience, "the receiver works", func() bool { return q.Healthy() == nil })
	wantNumbered(t, r.Stored(), 100)
}

// A server that takes requests and does not answer is one that is away.
func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", nil)
	q, _ := r.Receives(r.broker(r.url))
	r.publish(r.url, numbered(0, 1)...)
	r.UntilStored(1)
	r.untilEmpty(r.url) // so that only a Receive can meet it
	if err := r.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, patience, "the receiver says so", func() bool { return q.Healthy() != nil })
	if err := r.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.publish(r.url, numbered(1, 2)...)
	r.UntilStored(2)
}

// One entry of a request that deletes fails: its message comes again, as a copy, and the others do
// not. The receiver says so.
func TestPartOfADeleteFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", nil)
	r.publish(r.url, numbered(0, 9)...)
	var broken atomic.Bool
	logger, logged := pgtest.Logged()
	var copies atomic.Int64
	r.Receives(r.broker(r.url, func(op string, body []byte) ([]byte, error) {
		if op != "DeleteMessageBatch" || broken.Swap(true) {
			return body, nil
		}
		var in struct {
			QueueURL string `json:"QueueUrl"`
			Entries  []map[string]string
		}
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, err
		}
		in.Entries[1]["ReceiptHandle"] = "expired"
		return json.Marshal(in)
	}), func(c *queue.Config) {
		c.Logger, c.OnStored = logger, func(s queue.StoredEvent) { copies.Add(int64(s.Copies)) }
	})
	r.untilEmpty(r.url)
	ids := r.Stored() // without a key, in any order
	slices.Sort(ids)
	wantNumbered(t, ids, 9)
	if n := copies.Load(); n != 1 || !strings.Contains(logged(), "messages failed, and come again: ReceiptHandleIsInvalid") {
		t.Errorf("%d copies\n%s", n, logged())
	}
}

// A process ends between COMMIT and its deletes: another one finds the messages stored (Q1, Q2).
func TestEndBeforeDeletes(t *testing.T) {
	t.Parallel()
	r := newRig(t, ".fifo", nil)
	r.publish(r.url, numbered(0, 30)...)
	_, stop := r.Receives(r.broker(r.url, func(op string, body []byte) ([]byte, error) {
		if op == "DeleteMessageBatch" {
			return nil, errCut
		}
		return body, nil
	}))
	r.UntilStored(10)
	stop()
	if left := r.left(r.url); left == "0+0" {
		t.Fatal("messages were deleted")
	}
	r.Receives(r.broker(r.url))
	r.untilEmpty(r.url)
	wantNumbered(t, r.Stored(), 30)
}

// The database takes longer than the visibility timeout: two receivers hold the same messages at
// once, and they are stored once, in the order of their group (Q2, Q5).
func TestVisibilityShorterThanTheTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, ".fifo", map[string]string{"VisibilityTimeout": "1"})
	tx, err := r.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table onlyonce.event_log in exclusive mode`); err != nil {
		t.Fatal(err)
	}
	r.publish(r.url, numbered(0, 15)...)
	var received [2]atomic.Int64
	for i := range received {
		r.Receives(r.broker(r.url), func(c *queue.Config) {
			c.Identify = func(*queue.Delivery) error { received[i].Add(1); return nil }
		})
	}
	pgtest.Until(t, patience, "both hold messages", func() bool { return received[0].Load() > 0 && received[1].Load() > 0 })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.publish(r.url, numbered(15, 40)...)
	r.untilEmpty(r.url)
	wantNumbered(t, r.Stored(), 40)
}

// One Receive makes as many requests as it takes.
func TestReceivesMoreThanOneRequestHas(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, suffix := range []string{"", ".fifo"} {
		url := s.queue(suffix, map[string]string{"VisibilityTimeout": "600"})
		for _, m := range numbered(0, 57) {
			m.Key = []byte(m.ID)
			s.publish(url, m)
		}
		b := s.broker(url)
		if err := b.Begin(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		all, err := b.Receive(t.Context(), 33)
		if err != nil || len(all) != 33 {
			t.Errorf("%d deliveries, %v", len(all), err)
		}
		if suffix == "" {
			if err := b.Ack(t.Context(), all); err != nil || s.left(url) != "24+0" {
				t.Errorf("%v; left: %s", err, s.left(url))
			}
		}
	}
}

// Applied from end to end, with the headers.
func TestApplies(t *testing.T) {
	t.Parallel()
	r := newRig(t, ".fifo", nil)
	got := make(chan *consumer.Message, 1)
	sent := make(chan time.Time, 1)
	q := r.Queue(r.broker(r.url), func(c *queue.Config) {
		c.Identify = func(d *queue.Delivery) error { sent <- d.Time; return nil }
	})
	c, err := consumer.New(r.Pool, q, consumer.HandlerFunc(func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
		got <- m
		return nil
	}), consumer.Config{Scope: "s"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.publish(r.url, queue.Delivery{
		ID:      "a",
		Key:     []byte("k"),
		Body:    []byte("\x00\xff"),
		Headers: []consumer.Header{{Name: "X-H", Value: []byte("v")}},
	})
	if at := pgtest.Receive(t, patience, "the delivery", sent); at.Year() < 2020 {
		t.Errorf("it was sent at %v", at)
	}
	m := pgtest.Receive(t, patience, "the message", got)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var headers bytes.Buffer
	for _, h := range m.Headers[:len(m.Headers)-1] {
		fmt.Fprintf(&headers, "%s: %s\n", h.Name, h.Value)
	}
	want := "X-H: v\nAWS.MessageDeduplicationId: a\nAWS.MessageGroupId: k\n"
	good := headers.String() == want &&
		m.Headers[len(m.Headers)-1].Name == sqsqueue.DeliveryID &&
		m.ID() == "a" &&
		string(m.Key) == "k" &&
		string(m.Value) == "\x00\xff"
	if !good {
		t.Errorf("%q %q %q %s", m.ID(), m.Key, m.Value, &headers)
	}
}
