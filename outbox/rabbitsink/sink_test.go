package rabbitsink_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/rabbitsink"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(2 * time.Minute)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rig is an exchange with a quorum queue bound to placed.*, which takes at most so many messages.
type rig struct {
	*devenv.RabbitMQ
	t     *testing.T
	name  string // of the exchange and the queue
	limit int
}

var rigs atomic.Int64

func newRig(t *testing.T, limit int) *rig {
	t.Helper()
	r := &rig{servertest.RabbitMQ(t), t, fmt.Sprint("orders", rigs.Add(1)), limit}
	r.declare()
	return r
}

// declare makes the exchange and the queue, or does nothing if they are there.
func (r *rig) declare() {
	r.t.Helper()
	ch := r.channel()
	err := ch.ExchangeDeclare(r.name, "topic", true, false, false, false, nil)
	if err == nil {
		_, err = ch.QueueDeclare(r.name, true, false, false, false, amqp.Table{
			"x-queue-type": "quorum",
			"x-max-length": r.limit,
			"x-overflow":   "reject-publish",
		})
	}
	if err == nil {
		err = ch.QueueBind(r.name, "placed.*", r.name, false, nil)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// channel is a client of its own.
func (r *rig) channel() *amqp.Channel {
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

func (r *rig) sink(more ...func(*rabbitsink.Config)) *rabbitsink.Sink {
	r.t.Helper()
	cfg := rabbitsink.Config{Name: "events", Exchange: r.name, KeyWindow: time.Hour, Timeout: 5 * time.Second}
	for _, m := range more {
		m(&cfg)
	}
	s, err := rabbitsink.New(r.URL("guest"), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

// messages takes n messages from the queue.
func (r *rig) messages(n int) (all []amqp.Delivery) {
	r.t.Helper()
	ch := r.channel()
	pgtest.Until(r.t, patience, fmt.Sprintf("%d messages are there", n), func() bool {
		d, ok, err := ch.Get(r.name, true)
		if err != nil {
			r.t.Fatal(err)
		}
		if ok {
			all = append(all, d)
		}
		return len(all) == n
	})
	return all
}

func call(key, target, body string) *outbox.Attempt {
	return &outbox.Attempt{
		Key:    key,
		Method: http.MethodPost,
		Target: target,
		Header: http.Header{"Content-Type": {"text/plain"}, "X-Twice": {"a", "b"}},
		Body:   []byte(body),
	}
}

const key = "6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10"

// O10: the message that a call becomes. Another attempt has the same id, by which a consumer
// recognises it.
func TestO10Message(t *testing.T) {
	t.Parallel()
	r := newRig(t, 10)
	s := r.sink()
	if l := s.Limits(); s.Name() != "events" || l.KeyWindow != time.Hour || l.Timeout != 5*time.Second {
		t.Errorf("%s: %+v", s.Name(), l)
	}
	a := call(key, "/placed.eu", "17")
	a.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for range 2 {
		if got := s.Send(t.Context(), a); got.Outcome != outbox.Delivered {
			t.Fatalf("%+v", got)
		}
	}
	for _, m := range r.messages(2) {
		h := m.Headers
		good := m.RoutingKey == "placed.eu" &&
			string(m.Body) == "17" &&
			m.MessageId == key &&
			m.DeliveryMode == amqp.Persistent &&
			m.ContentType == "text/plain" &&
			h["X-Twice"] == "a, b" &&
			h["traceparent"] == a.Trace &&
			len(h) == 3
		if !good { // and the server's x-delivery-count
			t.Errorf("%+v", m)
		}
	}
}

// What is rejected, and what is tried again. The channel or the connection that an answer closes is
// replaced.
func TestAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	s := r.sink()
	own := call(key, "/placed.eu", "")
	own.Header.Set("Cc", "another-queue")
	long := call(key, "/placed.eu", "")
	long.Header["X-"+strings.Repeat("a", 254)] = []string{"v"}
	get := call(key, "/placed.eu", "")
	get.Method = http.MethodGet
	for want, a := range map[string]*outbox.Attempt{
		"the server's own":      own,
		"longer than 255 bytes": long,
		"must be POST":          get,
		"target":                call(key, "placed.eu", ""),
		"at most 255 bytes":     call(key, "/"+strings.Repeat("x", 256), ""),
		"is larger than config": call(key, "/placed.eu", strings.Repeat("x", 2<<20)),
	} {
		if got := s.Send(t.Context(), a); got.Outcome != outbox.Rejected || !got.Unseen || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: %+v", want, got)
		}
	}
	retried := func(s *rabbitsink.Sink, target, want string) {
		t.Helper()
		got := s.Send(t.Context(), call(key, target, ""))
		if got.Outcome != outbox.Postponed || !got.Unseen || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: %+v", want, got)
		}
	}
	retried(s, "/lost", "no queue has taken the message: NO_ROUTE")
	retried(r.sink(func(c *rabbitsink.Config) { c.Exchange = "nowhere" }), "/placed.eu", "no exchange 'nowhere'")
	reader, err := rabbitsink.New(r.URL("reader"), rabbitsink.Config{Name: "r", Exchange: r.name, KeyWindow: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	retried(reader, "/placed.eu", "access to exchange")
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	retried(reader, "/placed.eu", "the sink is closed")
	pgtest.Until(t, patience, "the queue is full", func() bool { // it takes a few more than its limit
		got := s.Send(t.Context(), call(key, "/placed.eu", ""))
		return got.Outcome == outbox.Retry && strings.Contains(got.Reason, "has not stored")
	})
	stopped := call(key, "/placed.eu", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := s.Send(ctx, stopped); got.Outcome == outbox.Delivered {
		t.Errorf("%+v", got)
	}
}

// Enqueued, sent by a relay through a kill of the server, and each message is there. It is the only
// test that kills the server, and runs alone.
func TestRelay(t *testing.T) {
	r := newRig(t, 1000)
	db := queuerig.New(t)
	s := r.sink()
	stop := db.Relays(s)
	db.Enqueues(0, 20, "/placed.eu")
	servertest.Strike(t, r.RabbitMQ, r.name, func() {
		// as far as it came
		if got := s.Send(t.Context(), call(key, "/placed.late", "")); got.Outcome != outbox.Retry && got.Outcome != outbox.Postponed {
			t.Errorf("%+v", got)
		}
		db.Enqueues(20, 40, "/placed.eu")
	})
	r.declare() // SIGKILL can lose a binding whose queue is kept; until it is back, each call is answered NO_ROUTE
	ch := r.channel()
	bodies := map[string]bool{}
	ids := map[string]bool{}
	pgtest.Until(t, patience, "all are there", func() bool {
		d, ok, err := ch.Get(r.name, true)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			bodies[string(d.Body)], ids[d.MessageId] = true, true
		}
		return len(bodies) == 40
	})
	if len(ids) != 40 { // of a lost confirmation there may be two, under one id
		t.Errorf("40 messages under %d ids", len(ids))
	}
	stop()
}

// While the server has no memory left for publishers, no call is made. It runs alone, because the
// server takes nothing from other tests either.
func TestServerThatBlocks(t *testing.T) {
	r := newRig(t, 10)
	s := r.sink(func(c *rabbitsink.Config) { c.Timeout = 200 * time.Millisecond })
	answers := func(what string, want func(outbox.Result) bool) {
		t.Helper()
		pgtest.Until(t, patience, what, func() bool { return want(s.Send(t.Context(), call(key, "/placed.eu", ""))) })
	}
	answers("a call is delivered", func(got outbox.Result) bool { return got.Outcome == outbox.Delivered })
	limit := func(of string) {
		t.Helper()
		if out, err := r.Ctl(t.Context(), "set_vm_memory_high_watermark", of); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	limit("0")
	answers("the sink knows that the server blocks", func(got outbox.Result) bool {
		return got.Outcome == outbox.Postponed && strings.Contains(got.Reason, "blocks publishers")
	})
	limit("0.4")
	answers("a call is delivered", func(got outbox.Result) bool { return got.Outcome == outbox.Delivered })
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := rabbitsink.New("amqp://guest:secret@host:x/", rabbitsink.Config{Timeout: 1, Client: amqp.Config{Recovery: &amqp.Recovery{}}})
	for _, want := range []string{
		"url:",
		"Config.Name",
		"Config.Exchange",
		"Config.KeyWindow",
		"Config.Timeout",
		"Config.Client: Recovery",
	} {
		good := err != nil &&
			strings.Contains(err.Error(), want) &&
			errors.Is(err, rabbitsink.ErrConfig) &&
			!strings.Contains(err.Error(), "secret")
		if !good {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
}
