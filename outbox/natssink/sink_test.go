package natssink_test

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/natssink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rig is a server with a stream ORDERS, which recognises copies for a tenth of a second.
type rig struct {
	t    *testing.T
	opts server.Options
	nats *server.Server
	js   jetstream.JetStream
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t,
		opts: server.Options{
			Host:       "127.0.0.1",
			Port:       server.RANDOM_PORT,
			JetStream:  true,
			StoreDir:   t.TempDir(),
			NoLog:      true,
			NoSigs:     true,
			MaxPayload: 1 << 16,
		},
	}
	r.start()
	t.Cleanup(r.stop)
	nc, err := nats.Connect(r.nats.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if r.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	_, err = r.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name:       "ORDERS",
		Subjects:   []string{"orders.>"},
		Duplicates: 100 * time.Millisecond,
		MaxMsgSize: 1 << 14,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) start() {
	r.t.Helper()
	opts := r.opts
	s, err := server.NewServer(&opts)
	if err != nil {
		r.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		r.t.Fatal("the server does not start")
	}
	r.nats, r.opts.Port = s, s.Addr().(*net.TCPAddr).Port
}

func (r *rig) stop() {
	r.nats.Shutdown()
	r.nats.WaitForShutdown()
}

func (r *rig) sink() *natssink.Sink {
	r.t.Helper()
	s, err := natssink.New(r.js, natssink.Config{
		Name:      "events",
		Subjects:  []string{"orders.>", "lost.*"},
		KeyWindow: time.Hour,
		Timeout:   5 * time.Second,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// messages returns what is in the stream, once it holds so many.
func (r *rig) messages(n int) (all []*nats.Msg) {
	r.t.Helper()
	nc := r.js.Conn()
	sub, err := nc.JetStream()
	if err != nil {
		r.t.Fatal(err)
	}
	reader, err := sub.SubscribeSync("orders.>", nats.OrderedConsumer())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = reader.Unsubscribe() }()
	for len(all) < n {
		msg, err := reader.NextMsg(patience)
		if err != nil {
			r.t.Fatalf("%d messages, want %d: %v", len(all), n, err)
		}
		all = append(all, msg)
	}
	return all
}

func (r *rig) stored() uint64 {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), "ORDERS")
	if err != nil {
		r.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
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

// O10: the message that a call becomes. Another attempt has the same id: the server recognises it
// within its window, and a consumer by the id after that.
func TestO10Message(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sink()
	if l := s.Limits(); s.Name() != "events" || l.KeyWindow != time.Hour || l.Timeout != 5*time.Second {
		t.Errorf("%s: %+v", s.Name(), l)
	}
	a := call(key, "/orders.placed", "17")
	a.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	pgtest.Until(t, patience, "the server has forgotten the id", func() bool {
		if got := s.Send(t.Context(), a); got.Outcome != outbox.Delivered {
			t.Fatalf("%+v", got)
		}
		return r.stored() == 2
	})
	for _, msg := range r.messages(2) {
		h := msg.Header
		good := msg.Subject == "orders.placed" &&
			string(msg.Data) == "17" &&
			h.Get(nats.MsgIdHdr) == key &&
			h.Get("Content-Type") == "text/plain" &&
			h.Get("traceparent") == a.Trace
		if !good {
			t.Errorf("%s %q %v", msg.Subject, msg.Data, h)
		}
	}
	// A message that has no room for the trace context.
	large := call(key, "/orders.placed", "")
	alone := nats.Msg{Header: nats.Header{"Content-Type": {"text/plain"}, nats.MsgIdHdr: {key}}}
	large.Body, large.Trace = make([]byte, int(r.js.Conn().MaxPayload())-alone.Size()), a.Trace
	if got := s.Send(t.Context(), large); strings.Contains(got.Reason, "maximum payload") {
		t.Errorf("%+v", got)
	}
}

// What is rejected, and what is tried again.
func TestAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sink()
	own := call(key, "/orders.placed", "")
	own.Header.Set("Nats-Expected-Stream", "X")
	get := call(key, "/orders.placed", "")
	get.Method = http.MethodGet
	for want, a := range map[string]*outbox.Attempt{
		"not among the sink's subjects": call(key, "/other.placed", ""),
		"without wildcards":             call(key, "/orders.*", ""),
		"must be a slash":               call(key, "/orders..placed", ""),
		"the server's own":              own,
		"must be POST":                  get,
		"maximum payload":               call(key, "/orders.placed", strings.Repeat("x", 1<<17)),
		"message size exceeds":          call(key, "/orders.placed", strings.Repeat("x", 1<<15)),
	} {
		if got := s.Send(t.Context(), a); got.Outcome != outbox.Rejected || !got.Unseen || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: %+v", want, got)
		}
	}
	if got := s.Send(t.Context(), call(key, "/lost.a", "")); got.Outcome != outbox.Postponed || !got.Unseen { // no stream has the subject
		t.Errorf("%+v", got)
	}
	r.stop()
	pgtest.Until(t, patience, "the client notices", func() bool { return !r.js.Conn().IsConnected() })
	if got := s.Send(t.Context(), call(key, "/orders.late", "")); got.Outcome != outbox.Postponed || !got.Unseen { // no connection
		t.Errorf("%+v", got)
	}
	r.start()
	pgtest.Until(t, patience, "the client is back", func() bool { return r.js.Conn().IsConnected() })
	pgtest.Until(t, patience, "the stream takes messages", func() bool {
		return s.Send(t.Context(), call(key, "/orders.placed", "")).Outcome == outbox.Delivered
	})
	// What was refused without a connection is not sent later.
	if msg := r.messages(1)[0]; msg.Subject != "orders.placed" {
		t.Errorf("%s was sent without an attempt", msg.Subject)
	}
}

// Enqueued, sent by a relay through a restart of the server, and once in the stream.
func TestRelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db := queuerig.New(t)
	stop := db.Relays(r.sink())
	db.Enqueues(0, 20, "/orders.placed")
	r.messages(20)
	r.stop()
	db.Enqueues(20, 40, "/orders.placed")
	r.start()
	pgtest.Until(t, patience, "the client is back", func() bool { return r.js.Conn().IsConnected() })
	bodies, ids := map[string]bool{}, map[string]bool{}
	for _, msg := range r.messages(40) {
		bodies[string(msg.Data)], ids[msg.Header.Get(nats.MsgIdHdr)] = true, true
	}
	if len(bodies) != 40 || len(ids) != 40 {
		t.Errorf("%d bodies under %d ids", len(bodies), len(ids))
	}
	stop()
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := natssink.New(nil, natssink.Config{Subjects: []string{"a..b", "$JS.API"}, Timeout: 1})
	for _, want := range []string{
		"js:",
		"Config.Name",
		`Config.Subjects: "a..b"`,
		`Config.Subjects: "$JS.API"`,
		"Config.KeyWindow",
		"Config.Timeout",
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, natssink.ErrConfig) {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := natssink.New(js, natssink.Config{Name: "events", Subjects: []string{"a"}, KeyWindow: 1}); err == nil ||
		!strings.Contains(err.Error(), "nats.ReconnectBufSize(-1)") {
		t.Errorf("a connection that sends later: %v", err)
	}
}
