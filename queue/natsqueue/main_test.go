package natsqueue_test

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/natsqueue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) { pgtest.Main(m) }

// nats is a server of a test's own, which can be stopped and started again.
type natsServer struct {
	t       testing.TB
	opts    server.Options
	running *server.Server
}

func newServer(t testing.TB) *natsServer {
	t.Helper()
	s := &natsServer{
		t: t,
		opts: server.Options{
			Host:      "127.0.0.1",
			Port:      server.RANDOM_PORT,
			JetStream: true,
			StoreDir:  t.TempDir(),
			NoLog:     true,
			NoSigs:    true,
		},
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *natsServer) start() {
	s.t.Helper()
	opts := s.opts
	running, err := server.NewServer(&opts)
	if err != nil {
		s.t.Fatal(err)
	}
	running.Start()
	if !running.ReadyForConnections(patience) {
		s.t.Fatal("the server does not start")
	}
	s.running, s.opts.Port = running, running.Addr().(*net.TCPAddr).Port
}

func (s *natsServer) stop() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// js is a client of its own.
func (s *natsServer) js() jetstream.JetStream {
	s.t.Helper()
	nc, err := nats.Connect(s.running.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

var streams atomic.Int64

// stream makes a stream, which recognises copies for a tenth of a second.
func (s *natsServer) stream() string {
	s.t.Helper()
	name := fmt.Sprintf("S%d", streams.Add(1))
	_, err := s.js().CreateStream(s.t.Context(), jetstream.StreamConfig{
		Name:       name,
		Subjects:   []string{name + ".>"},
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return name
}

// publish publishes messages with their ids, each as often as it takes to be acknowledged.
func (s *natsServer) publish(js jetstream.JetStream, stream string, all ...queue.Delivery) {
	s.t.Helper()
	for _, d := range all {
		msg := nats.NewMsg(stream + ".a")
		msg.Data = d.Body
		for _, h := range d.Headers {
			msg.Header.Add(h.Name, string(h.Value))
		}
		if d.ID != "" {
			msg.Header.Set(nats.MsgIdHdr, d.ID)
		}
		pgtest.Until(s.t, patience, "a message is published", func() bool {
			_, err := js.PublishMsg(s.t.Context(), msg)
			return err == nil
		})
	}
}

func (s *natsServer) broker(stream string, more ...func(*natsqueue.Config)) *natsqueue.Broker {
	s.t.Helper()
	cfg := natsqueue.Config{Stream: stream, Durable: "d", AckWait: time.Second}
	for _, m := range more {
		m(&cfg)
	}
	return natsqueue.New(s.js(), cfg)
}
