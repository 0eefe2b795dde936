package rabbitqueue_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/rabbitqueue"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(2 * time.Minute)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rabbit is a queue of a test's own, on the server of all tests.
type rabbit struct {
	*devenv.RabbitMQ
	t     testing.TB
	name  string
	table amqp.Table // its arguments
}

var queues atomic.Int64

// newRabbit declares a quorum queue with a single active consumer.
func newRabbit(t testing.TB) *rabbit {
	t.Helper()
	r := &rabbit{
		RabbitMQ: servertest.RabbitMQ(t),
		t:        t,
		name:     fmt.Sprint("q", queues.Add(1)),
		table:    amqp.Table{"x-single-active-consumer": true},
	}
	r.declare(r.name, amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true})
	return r
}

// channel is a client of its own.
func (r *rabbit) channel() *amqp.Channel {
	r.t.Helper()
	conn, err := amqp.Dial(r.URL("guest"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		r.t.Fatal(err)
	}
	return ch
}

func (r *rabbit) declare(name string, args amqp.Table) {
	r.t.Helper()
	if _, err := r.channel().QueueDeclare(name, true, false, false, false, args); err != nil {
		r.t.Fatal(err)
	}
}

// publish publishes messages with their ids to the queue, and waits for the server's confirmations.
func (r *rabbit) publish(all ...queue.Delivery) {
	r.t.Helper()
	ch := r.channel()
	if err := ch.Confirm(false); err != nil {
		r.t.Fatal(err)
	}
	var last *amqp.DeferredConfirmation
	for _, d := range all {
		msg := amqp.Publishing{MessageId: d.ID, Body: d.Body, DeliveryMode: amqp.Persistent, Headers: amqp.Table{}}
		for _, h := range d.Headers {
			msg.Headers[h.Name] = string(h.Value)
		}
		var err error
		if last, err = ch.PublishWithDeferredConfirmWithContext(r.t.Context(), "", r.name, true, false, msg); err != nil {
			r.t.Fatal(err)
		}
	}
	if ok, err := last.WaitContext(r.t.Context()); !ok || err != nil {
		r.t.Fatalf("not confirmed: %v", err)
	}
}

func (r *rabbit) until(what string, cond func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, cond)
}

// left returns how many messages of the queue no receiver holds.
func (r *rabbit) left() int {
	r.t.Helper()
	q, err := r.channel().QueueDeclarePassive(r.name, true, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return q.Messages
}

func (r *rabbit) broker(more ...func(*rabbitqueue.Config)) *rabbitqueue.Broker {
	r.t.Helper()
	cfg := rabbitqueue.Config{Queue: r.name, Arguments: r.table}
	for _, m := range more {
		m(&cfg)
	}
	return rabbitqueue.New(r.URL("guest"), cfg)
}
