package natsqueue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/natsqueue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	queuetest.Conformance(t, queuetest.Harness{
		Queue: func(t testing.TB) queuetest.Target {
			stream, js := s.stream(), s.js()
			return queuetest.Target{
				Connect: func(testing.TB) queue.Broker { return s.broker(stream) },
				Publish: func(_ testing.TB, all ...queue.Delivery) { s.publish(js, stream, all...) },
			}
		},
		Unreachable: func(t testing.TB) queue.Broker {
			nc, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			return natsqueue.New(js, natsqueue.Config{Stream: "S", Durable: "d"})
		},
	})
}

// rig is a database and a stream.
type rig struct {
	*natsServer
	*queuerig.Rig
	stream string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	s := newServer(t)
	return &rig{natsServer: s, Rig: queuerig.New(t), stream: s.stream()}
}

// A producer that sends again after the stream's duplicate window has expired: the server stores
// two messages, and one is applied (Q2). Messages without an id are told apart by their sequence.
func TestIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := r.js()
	logger, logged := pgtest.Logged()
	r.Receives(r.broker(r.stream, func(c *natsqueue.Config) { c.Logger = logger }))
	count := func() uint64 {
		s, err := js.Stream(t.Context(), r.stream)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs
	}
	r.publish(js, r.stream, queue.Delivery{ID: "a", Body: []byte("1")})
	pgtest.Until(t, patience, "the server has forgotten the id", func() bool {
		r.publish(js, r.stream, queue.Delivery{ID: "a", Body: []byte("1")})
		return count() == 2
	})
	none := queue.Delivery{Body: []byte("none")}
	r.publish(js, r.stream, none, none)
	r.UntilStored(3)
	pgtest.Until(t, patience, "all are acknowledged", func() bool {
		c, err := js.Consumer(t.Context(), r.stream, "d")
		return err == nil && c.CachedInfo().NumAckPending == 0 && c.CachedInfo().NumPending == 0
	})
	ids := strings.Join(r.Stored(), " ")
	if len(r.Stored()) != 3 || !strings.Contains(ids, r.stream+"/") || strings.Count(logged(), "no Nats-Msg-Id") != 1 {
		t.Errorf("stored: %s\n%s", ids, logged())
	}
}

// The consumer's settings that would lose messages end a receiver; one that fits is not changed
// (Q3).
func TestQ3ConsumerThatDrops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := r.js()
	for name, c := range map[string]jetstream.ConsumerConfig{
		"MaxDeliver":        {MaxDeliver: 5},
		"AckPolicy":         {AckPolicy: jetstream.AckAllPolicy},
		"BackOff":           {MaxDeliver: 3, BackOff: []time.Duration{time.Second, 2 * time.Second}},
		"HeadersOnly":       {HeadersOnly: true},
		"InactiveThreshold": {InactiveThreshold: time.Hour},
		"MemoryStorage":     {MemoryStorage: true},
	} {
		c.Durable = "drops-" + name
		if _, err := js.CreateConsumer(t.Context(), r.stream, c); err != nil {
			t.Fatal(err)
		}
		q := r.Queue(r.broker(r.stream, func(cfg *natsqueue.Config) { cfg.Durable = c.Durable }))
		if err := q.Receive(t.Context()); !errors.Is(err, queue.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Q3: a pull is within the limits of the consumer; the server refuses one above them each time.
// These may be the stream's, for a consumer that is made here.
func TestQ3ConsumerThatLimitsPulls(t *testing.T) {
	t.Parallel()
	for name, limited := range map[string]func(r *rig) error{
		"consumer": func(r *rig) error {
			_, err := r.js().CreateConsumer(r.T.Context(), r.stream, jetstream.ConsumerConfig{
				Durable:           "d",
				MaxRequestBatch:   7,
				MaxRequestExpires: 300 * time.Millisecond,
			})
			return err
		},
		"server": func(r *rig) error {
			r.opts.JetStreamLimits.MaxRequestBatch = 7
			r.stop()
			r.start()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if err := limited(r); err != nil {
				t.Fatal(err)
			}
			js := r.js()
			publish := func(from, to int) {
				for n := from; n < to; n++ {
					r.publish(js, r.stream, queue.Delivery{ID: fmt.Sprintf("m%04d", n)})
				}
			}
			publish(0, 50)
			r.Receives(r.broker(r.stream), func(c *queue.Config) { c.Batch = 256 })
			r.UntilStored(50)
			publish(50, 60) // for these it waits
			r.UntilStored(60)
		})
	}
}

// Without an id of the producer's, a message keeps its id at each delivery. When a stream comes
// back from an earlier state, its sequences are given again: other messages get other ids (Q2).
func TestQ2SequencesThatAreGivenAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	deliver := func(body string) (id string) {
		t.Helper()
		if body != "" {
			if _, err := r.js().Publish(t.Context(), r.stream+".a", []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		b := r.broker(r.stream)
		if err := b.Begin(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(patience)
		for time.Now().Before(until) {
			all, err := b.Receive(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 1 {
				return all[0].ID
			}
		}
		t.Fatal("nothing is delivered")
		return ""
	}
	before := t.TempDir()
	r.stop()
	if err := os.CopyFS(before, os.DirFS(r.opts.StoreDir)); err != nil {
		t.Fatal(err)
	}
	r.start()
	first := deliver("10")
	if again := deliver(""); again != first {
		t.Errorf("delivered as %s, and again as %s", first, again)
	}
	r.stop()
	if err := os.RemoveAll(r.opts.StoreDir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(r.opts.StoreDir, os.DirFS(before)); err != nil {
		t.Fatal(err)
	}
	r.start()
	if other := deliver("10"); other == first {
		t.Errorf("two messages have the id %s", other)
	}
}

// A pull that waits is no longer than the consumer allows: it ends without a message, and is not
// refused (Q3).
func TestQ3ConsumerThatLimitsWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	limits := jetstream.ConsumerConfig{Durable: "d", MaxRequestExpires: 300 * time.Millisecond}
	if _, err := r.js().CreateConsumer(t.Context(), r.stream, limits); err != nil {
		t.Fatal(err)
	}
	b := r.broker(r.stream)
	if err := b.Begin(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if all, err := b.Receive(t.Context(), 1); err != nil || len(all) > 0 {
		t.Errorf("%d messages of an empty stream: %v", len(all), err)
	}
}

// A stream that keeps messages for longer than copies are said to come ends a receiver (Q6).
func TestQ6MaxAge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.js().UpdateStream(t.Context(), jetstream.StreamConfig{
		Name:       r.stream,
		Subjects:   []string{r.stream + ".>"},
		Duplicates: 100 * time.Millisecond,
		MaxAge:     2 * time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Queue(r.broker(r.stream)).Receive(t.Context()); !errors.Is(err, queue.ErrConfig) ||
		!strings.Contains(err.Error(), "keeps messages for 2h0m0s") {
		t.Error(err)
	}
}

// If the consumer is missing, the one that is made delivers all of the stream. It is made when
// queue has compared the age of that with what is forgotten, and not before (Q6).
func TestQ6MissingConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := r.js()
	r.publish(js, r.stream, queue.Delivery{ID: "a"})
	b := r.broker(r.stream)
	for _, ordered := range []bool{false, true} {
		if err := b.Begin(t.Context(), ordered); err != nil || anew(b).IsZero() {
			t.Fatalf("%v, %v", anew(b), err)
		}
		if _, err := js.Consumer(t.Context(), r.stream, "d"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
	}
	for subject, old := range map[string]bool{".a": true, ".b": false} {
		b := r.broker(r.stream, func(c *natsqueue.Config) { c.Subjects = []string{r.stream + subject} })
		if err := b.Begin(t.Context(), false); err != nil || anew(b).IsZero() == old {
			t.Errorf("of %s: %v, %v", subject, anew(b), err)
		}
	}
	_, stop := r.Receives(b)
	r.UntilStored(1)
	stop()
	if err := b.Begin(t.Context(), false); err != nil || !anew(b).IsZero() {
		t.Errorf("%v, %v", anew(b), err)
	}
}

func anew(b *natsqueue.Broker) time.Time {
	oldest, _ := b.Anew()
	return oldest
}

// The consumer is deleted. A receiver does not make another one if ids of messages in the stream
// are forgotten, whatever the horizon is by now; and if somebody else has made one that delivers
// them all, they are parked, and not stored again (Q6, K9).
func TestQ6ConsumerIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := r.js()
	for n := range 10 {
		r.publish(js, r.stream, queue.Delivery{ID: fmt.Sprint(n)})
	}
	_, stop := r.Receives(r.broker(r.stream))
	r.UntilStored(10)
	stop()
	if err := js.DeleteConsumer(t.Context(), r.stream, "d"); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, r.Pool, `update onlyonce.streams set created_at = created_at - interval '1 minute'`)
	pgtest.Exec(t, r.Pool, `update onlyonce.rings set forgotten = clock_timestamp(), horizon = '1 day' where name = 'standard_keys'`)
	for segment := range 10 {
		pgtest.Exec(t, r.Pool, fmt.Sprintf(`truncate onlyonce_segments.standard_keys_%d`, segment))
	}
	q := r.Queue(r.broker(r.stream))
	if err := q.Receive(t.Context()); !errors.Is(err, queue.ErrConfig) ||
		!strings.Contains(err.Error(), "has no consumer d") ||
		!strings.Contains(err.Error(), "may be forgotten") {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), r.stream, jetstream.ConsumerConfig{
		Durable:   "d",
		AckPolicy: jetstream.AckExplicitPolicy,
	}); err != nil {
		t.Fatal(err)
	}
	r.Receives(r.broker(r.stream))
	pgtest.Until(t, patience, "all are parked", func() bool {
		return pgtest.One[int](t, r.Pool, `select count(*) from onlyonce.parked where reason = 'too-old'`) == 10
	})
	if n := pgtest.One[int](t, r.Pool, `select count(*) from onlyonce.event_log`); n != 10 {
		t.Errorf("%d are stored", n)
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := queue.New(nil, natsqueue.New(nil, natsqueue.Config{Stream: "a.b", Subjects: []string{""}, AckWait: 1}), queue.Config{})
	for _, want := range []string{"js:", "Config.Stream", "Config.Durable", "Config.Subjects", "Config.AckWait"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
}

// The server is away at the start, comes, and goes in the middle: all is stored once.
func TestServerThatComesAndGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := r.js()
	b := r.broker(r.stream)
	r.stop()
	q, _ := r.Receives(b)
	unhealthy := func() bool { return q.Healthy() != nil }
	pgtest.Until(t, patience, "the receiver says so", unhealthy)
	r.start()
	for n := range 50 {
		r.publish(js, r.stream, queue.Delivery{ID: fmt.Sprint(n)})
	}
	r.UntilStored(50)
	r.stop()
	pgtest.Until(t, patience, "the receiver says so", unhealthy)
	r.start()
	for n := range 50 {
		r.publish(js, r.stream, queue.Delivery{ID: fmt.Sprint(50 + n)})
	}
	r.UntilStored(100)
	pgtest.Until(t, patience, "the receiver works", func() bool { return q.Healthy() == nil })
	if n := len(r.Stored()); n != 100 {
		t.Errorf("%d are stored", n)
	}
}

// Another client of the consumer takes messages and keeps them: with Ordered they are stored in the
// stream's order all the same (Q5).
func TestQ5OrderBesideAThief(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := r.js()
	const all = 300
	for n := range all / 3 {
		r.publish(js, r.stream, queue.Delivery{ID: fmt.Sprintf("m%04d", n)})
	}
	q, _ := r.Receives(r.broker(r.stream), func(c *queue.Config) {
		c.Ordered, c.Batch = true, 7
		c.Identify = func(d *queue.Delivery) error { d.Key = []byte(d.Header(natsqueue.HeaderSubject)); return nil }
	})
	r.UntilStored(all / 3)
	thief, err := js.Consumer(t.Context(), r.stream, "d")
	if err != nil {
		t.Fatal(err)
	}
	stolen := 0
	for n := all / 3; n < all; n++ {
		r.publish(js, r.stream, queue.Delivery{ID: fmt.Sprintf("m%04d", n)})
		if n%20 == 0 && stolen < 3 {
			if batch, err := thief.FetchNoWait(2); err == nil {
				for range batch.Messages() {
					stolen++
				}
			}
		}
	}
	r.UntilStored(all)
	for i, id := range r.Stored() {
		if want := fmt.Sprintf("m%04d", i); id != want {
			t.Fatalf("%d: %s, want %s; %d were stolen", i, id, want, stolen)
		}
	}
	t.Logf("%d were stolen; %v", stolen, q.Healthy())
}

// Applied from end to end, with the headers and the subject.
func TestApplies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := make(chan *consumer.Message, 1)
	c, err := consumer.New(
		r.Pool,
		r.Queue(r.broker(r.stream)),
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
	r.publish(r.js(), r.stream, queue.Delivery{ID: "a", Body: []byte("b"), Headers: []consumer.Header{{Name: "X-H", Value: []byte("v")}}})
	m := pgtest.Receive(t, patience, "the message", got)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if h := fmt.Sprint(m.Headers); m.ID() != "a" ||
		string(m.Value) != "b" ||
		h != fmt.Sprintf("[{Nats-Msg-Id %v} {X-H %v} {Nats-Subject %v}]", []byte("a"), []byte("v"), []byte(r.stream+".a")) {
		t.Errorf("%q %q %s", m.ID(), m.Value, h)
	}
}

// A stream that refuses new messages because of a limit says so, by the limit; one that discards
// old messages, or has room again, does not.
func TestFull(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	js := s.js()
	body := make([]byte, 400)
	for name, c := range map[string]struct {
		limits jetstream.StreamConfig
		want   string
	}{
		"messages": {
			jetstream.StreamConfig{MaxMsgs: 3, Discard: jetstream.DiscardNew},
			"stream messages has its 3 messages (MaxMsgs), and discards new ones",
		},
		"bytes": {
			jetstream.StreamConfig{MaxBytes: 1500, Discard: jetstream.DiscardNew},
			"of its 1500 bytes (MaxBytes), and discards new messages",
		},
		"old":       {jetstream.StreamConfig{MaxMsgs: 3}, ""},
		"unlimited": {jetstream.StreamConfig{Discard: jetstream.DiscardNew}, ""},
	} {
		c.limits.Name = name
		c.limits.Subjects = []string{name}
		stream, err := js.CreateStream(t.Context(), c.limits)
		if err != nil {
			t.Fatal(err)
		}
		b := natsqueue.New(js, natsqueue.Config{Stream: name, Durable: "d"})
		full := func() string {
			t.Helper()
			why, err := b.Full(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return why
		}
		if why := full(); why != "" {
			t.Errorf("%s: full while it is empty: %s", name, why)
		}
		refused := false
		for range 10 {
			_, err := js.Publish(t.Context(), name, body)
			refused = refused || err != nil
		}
		if refused != (c.want != "") {
			t.Errorf("%s: the server refuses: %v", name, refused)
		}
		if why := full(); !strings.Contains(why, c.want) || (why == "") != (c.want == "") {
			t.Errorf("%s: %q", name, why)
		}
		if err := stream.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if why := full(); why != "" {
			t.Errorf("%s: full after a purge: %s", name, why)
		}
	}
	if _, err := natsqueue.New(js, natsqueue.Config{Stream: "none", Durable: "d"}).Full(t.Context()); err == nil {
		t.Error("a stream that does not exist has room")
	}
}
