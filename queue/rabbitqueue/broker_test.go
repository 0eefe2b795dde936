package rabbitqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/queue/rabbitqueue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	queuetest.Conformance(t, queuetest.Harness{
		Queue: func(t testing.TB) queuetest.Target {
			r := newRabbit(t)
			return queuetest.Target{
				Connect: func(testing.TB) queue.Broker { return r.broker() },
				Publish: func(_ testing.TB, all ...queue.Delivery) { r.publish(all...) },
			}
		},
		Unreachable: func(testing.TB) queue.Broker {
			return rabbitqueue.New("amqp://127.0.0.1:1/", rabbitqueue.Config{Queue: "q"})
		},
	})
}

// rig is a database and a queue.
type rig struct {
	*rabbit
	*queuerig.Rig
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return &rig{newRabbit(t), queuerig.New(t)}
}

func (r *rig) stored() string { return strings.Join(r.Stored(), " ") }

// messages returns messages and their ids as stored returns them.
func messages(from, to int) (all []queue.Delivery, ids string) {
	for n := from; n < to; n++ {
		all = append(all, queue.Delivery{ID: fmt.Sprintf("m%03d", n), Body: []byte("body")})
		ids += " " + all[len(all)-1].ID
	}
	return all, strings.TrimPrefix(ids, " ")
}

func ordered(c *queue.Config) {
	c.Ordered = true
	c.Identify = func(d *queue.Delivery) error { d.Key = []byte(d.Header(rabbitqueue.HeaderRoutingKey)); return nil }
}

// A producer that sends again is found by the message-id. A message without one is parked, unless a
// function names another one (Q2).
func TestQ2Identity(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.Receives(r.broker())
	a := queue.Delivery{ID: "a", Body: []byte("1")}
	r.publish(a, a, queue.Delivery{Body: []byte("none")})
	parked := func() int {
		return pgtest.One[int](t, r.Pool, `select count(*) from onlyonce.parked where reason = 'no-key'`)
	}
	r.until("one is stored, and one is parked", func() bool { return r.stored() == "a" && parked() == 1 && r.left() == 0 })
	stop()
	r.Receives(r.broker(), func(c *queue.Config) {
		c.Identify = func(d *queue.Delivery) error { d.ID = d.Header("Order"); return nil }
	})
	r.publish(queue.Delivery{Headers: []consumer.Header{{Name: "Order", Value: []byte("b")}}})
	r.until("it is stored under its header", func() bool { return slices.Contains(strings.Fields(r.stored()), "b") })
}

// A queue that would lose messages, or their order, ends the receiver with an error that names the
// field. What can be set right meanwhile does not (Q3, Q5).
func TestQ3QueueThatDrops(t *testing.T) {
	t.Parallel()
	r := newRabbit(t)
	for name, args := range map[string]amqp.Table{
		"classic": nil,
		"limited": {"x-queue-type": "quorum", "x-delivery-limit": 5},
		"many":    {"x-queue-type": "quorum"},
	} {
		r.declare(name, args)
	}
	of := func(name string, args amqp.Table) *rabbitqueue.Broker {
		return r.broker(func(c *rabbitqueue.Config) { c.Queue, c.Arguments = name, args })
	}
	refused := func(b *rabbitqueue.Broker, ordered bool, want string) {
		t.Helper()
		defer b.End()
		if err := b.Begin(t.Context(), ordered); !errors.Is(err, queue.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	refused(of("classic", nil), false, `Config.Queue: "classic" must be a quorum queue`)
	refused(of("limited", nil), false, "Config.Arguments: must be those of the queue")
	refused(of("many", nil), true, "Config.Arguments: x-single-active-consumer must be true for queue")
	refused(of("many", r.table), true, "Config.Arguments: must be those of the queue")
	for want, b := range map[string]*rabbitqueue.Broker{
		`Config.Queue: there is no queue "nowhere"`: of("nowhere", nil),
		"the user needs the rights to configure": rabbitqueue.New(
			r.URL("reader"),
			rabbitqueue.Config{Queue: r.name, Arguments: r.table},
		),
		"rabbitqueue: connecting: Exception (403) Reason: \"username or password not allowed\"": rabbitqueue.New(
			"amqp://guest:wrong@"+r.Addr,
			rabbitqueue.Config{Queue: r.name},
		),
		"vhost nowhere not found": rabbitqueue.New(
			r.URL("guest")+"nowhere",
			rabbitqueue.Config{Queue: r.name},
		),
		"rabbitqueue: connecting: dial tcp 127.0.0.1:1: connect: co": rabbitqueue.New(
			"amqp://127.0.0.1:1",
			rabbitqueue.Config{Queue: r.name},
		),
	} {
		if err := b.Begin(t.Context(), false); err == nil || errors.Is(err, queue.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	b := rabbitqueue.New("http://guest:secret@host/", rabbitqueue.Config{Prefetch: -1, Client: amqp.Config{Recovery: &amqp.Recovery{}},
		Arguments: amqp.Table{"x-queue-type": "classic", "x-delivery-limit": 20, "x-odd": struct{}{}}})
	_, err := queue.New(nil, b, queue.Config{})
	for _, want := range []string{
		"url:",
		"Config.Queue",
		"Config.Arguments: x-queue-type",
		"Config.Arguments: x-delivery-limit is 20",
		"Config.Arguments: table",
		"Config.Prefetch",
		"Config.Client: Recovery",
	} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
}

// The server closes the channel while messages are unacknowledged: they come again. A late
// acknowledgement fails, and acknowledges none of the new channel's messages, whose numbers are the
// same (Q1).
func TestQ1LateAcknowledgement(t *testing.T) {
	t.Parallel()
	r := newRabbit(t)
	all, _ := messages(0, 3)
	r.publish(all...)
	b := r.broker()
	receive := func() (got []*queue.Delivery) {
		t.Helper()
		if err := b.Begin(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		for len(got) < 3 {
			some, err := b.Receive(t.Context(), 3)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, some...)
		}
		return got
	}
	first := receive()
	if err := b.Ack(t.Context(), first[1:2]); err != nil { // as if the first one had been refused
		t.Fatal(err)
	}
	_ = b.Ack(t.Context(), first[1:2]) // of which the server knows nothing any more
	r.until("the server closes the channel", func() bool {
		_, err := b.Receive(t.Context(), 3)
		return err != nil && strings.Contains(err.Error(), "unknown delivery tag")
	})
	if err := b.Ack(t.Context(), first[:1]); err == nil {
		t.Error("a closed channel took an acknowledgement")
	}
	b.End()
	all, _ = messages(3, 4)
	r.publish(all...)
	second := receive()
	good := second[0].Redelivered &&
		second[0].ID == "m000" &&
		second[1].ID == "m002" &&
		second[2].ID == "m003" &&
		!second[2].Redelivered
	if !good {
		t.Errorf("came again: %+v %+v %+v", second[0], second[1], second[2])
	}
	for _, late := range [][]*queue.Delivery{first, first[1:2]} {
		if err := b.Ack(t.Context(), late); err == nil {
			t.Error("a late acknowledgement is said to have worked")
		}
	}
	b.End()
	r.until("all three are there", func() bool { return r.left() == 3 })
}

// Messages that a batch acknowledges in one frame are those of the batch (Q1).
func TestQ1AcknowledgesTheBatchAlone(t *testing.T) {
	t.Parallel()
	r := newRabbit(t)
	all, _ := messages(0, 6)
	r.publish(all...)
	b := r.broker()
	if err := b.Begin(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	var got []*queue.Delivery
	for len(got) < 6 {
		some, err := b.Receive(t.Context(), 6)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, some...)
	}
	for _, part := range [][]*queue.Delivery{got[:2], got[3:5]} {
		if err := b.Ack(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	b.End()
	r.until("two messages are left", func() bool { return r.left() == 2 })
	if err := b.Begin(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	defer b.End()
	rest, err := b.Receive(t.Context(), 6)
	if err != nil || len(rest) == 0 || rest[0].ID != "m002" {
		t.Errorf("%d came again, %v", len(rest), err)
	}
}

// dying kills the server between COMMIT and the acknowledgement, once.
type dying struct {
	*rabbitqueue.Broker
	kill func()
}

func (d *dying) Ack(ctx context.Context, all []*queue.Delivery) error {
	d.kill()
	return d.Broker.Ack(ctx, all)
}

// The server is killed between COMMIT and the acknowledgement, and again while messages are
// unacknowledged and the receiver waits for them: all is stored once, in order (Q1, Q5). It is the
// only test that kills the server, and runs alone.
func TestQ1ServerIsKilled(t *testing.T) {
	r := newRig(t)
	all, ids := messages(0, 60)
	r.publish(all[:40]...)
	killed := make(chan struct{})
	b := &dying{r.broker(), sync.OnceFunc(func() {
		servertest.Strike(t, r.RabbitMQ, r.name, func() {})
		close(killed)
	})}
	q, _ := r.Receives(b, ordered, func(c *queue.Config) { c.Batch = 10 })
	<-killed
	_, first40 := messages(0, 40)
	r.until("all are stored", func() bool { return r.stored() == first40 })
	servertest.Strike(t, r.RabbitMQ, r.name, func() {
		r.until("the receiver says so", func() bool { return q.Healthy() != nil })
	})
	r.publish(all[35:]...)
	r.until("the others are stored", func() bool { return r.stored() == ids })
	r.until("nothing is left", func() bool { return r.left() == 0 && q.Healthy() == nil })
}

// The queue is deleted under a receiver, and declared again.
func TestQueueThatIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q, _ := r.Receives(r.broker())
	all, ids := messages(0, 2)
	r.publish(all[0])
	r.until("the receiver works", func() bool { return r.stored() == "m000" })
	if _, err := r.channel().QueueDelete(r.name, false, false, false); err != nil {
		t.Fatal(err)
	}
	r.until("the receiver says so", func() bool { return q.Healthy() != nil && strings.Contains(q.Healthy().Error(), "there is no queue") })
	r.declare(r.name, amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true})
	r.publish(all[1])
	r.until("both are stored", func() bool { return r.stored() == ids })
}

// Two receivers take turns, each with messages that the other one had: the order is the queue's
// (Q5).
func TestQ5TakeOvers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all, ids := messages(0, 200)
	r.publish(all...)
	for n := 0; r.stored() != ids && n < 200; n++ {
		b := &dying{r.broker(), func() {}}
		batches := 0
		failed := make(chan struct{})
		b.kill = func() { // the session's connection is gone before its acknowledgement, each second time
			if batches++; batches == 2 {
				b.End()
				close(failed)
			}
		}
		_, stop := r.Receives(b, ordered, func(c *queue.Config) { c.Batch = 7 })
		r.until("a session fails, or all are stored", func() bool {
			select {
			case <-failed:
				return true
			default:
				return r.stored() == ids
			}
		})
		stop()
	}
	if got := r.stored(); got != ids {
		t.Errorf("stored: %s", got)
	}
}

// Applied from end to end, with the headers, the properties and the routing key.
func TestApplies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := make(chan *consumer.Message, 1)
	c, err := consumer.New(
		r.Pool,
		r.Queue(r.broker()),
		consumer.HandlerFunc(func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
			got <- m
			return nil
		}),
		consumer.Config{Scope: "s"},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	if err := r.channel().PublishWithContext(t.Context(), "", r.name, true, false, amqp.Publishing{
		MessageId:     "a",
		Body:          []byte("b"),
		ContentType:   "text/plain",
		CorrelationId: "c",
		Headers: amqp.Table{
			"n":                7,
			"s":                "v",
			"t":                amqp.Table{"x": []any{"y"}},
			"at":               time.Unix(0, 0),
			"none":             nil,
			"Amqp-Routing-Key": "forged",
		},
	}); err != nil {
		t.Fatal(err)
	}
	m := pgtest.Receive(t, patience, "the message", got)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var headers []string
	for _, h := range m.Headers {
		headers = append(headers, h.Name+"="+string(h.Value))
	}
	want := `at=1970-01-01T00:00:00Z n=7 none= s=v t={"x":["y"]} Content-Type=text/plain Amqp-Correlation-Id=c Amqp-Routing-Key=` + r.name
	if h := strings.Join(headers, " "); m.ID() != "a" || string(m.Value) != "b" || h != want {
		t.Errorf("%q %q %s", m.ID(), m.Value, h)
	}
}
