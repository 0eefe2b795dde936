package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/self"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
)

// secret is a file with a secret, which a test changes.
type secret struct {
	t    *testing.T
	file string
}

func newSecret(t *testing.T, word string) secret {
	t.Helper()
	s := secret{t, filepath.Join(t.TempDir(), "secret")}
	s.change(word)
	return s
}

func (s secret) change(word string) {
	s.t.Helper()
	if err := os.WriteFile(s.file, []byte(word+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// starts starts a relay of one sink.
func (f *fixture) starts(sink string) *self.Program {
	f.t.Helper()
	config := fileOf(f.t, `{"poll_interval": "20ms", "backoff_min": "20ms", "backoff_max": "100ms", "sinks": [`+sink+`]}`)
	return start(f.t, []string{program.EnvPostgres + "=" + f.url}, "-config", config, "-metrics", "127.0.0.1:0")
}

// tried are attempts that did not deliver.
var tried = regexp.MustCompile(`outbox_attempts_total\{sink="events",outcome="(postponed|retry)"\} [1-9]`)

// refused waits until an attempt was made in vain: the login is wrong.
func refused(t *testing.T, p *self.Program) {
	t.Helper()
	eventually(t, "an attempt is in vain", func() bool { return tried.MatchString(p.Scrape("/metrics")) })
}

// ends stops the relay in order. It must not have logged a secret.
func ends(t *testing.T, p *self.Program, secrets ...string) {
	t.Helper()
	if status := p.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr())
	}
	for _, s := range secrets {
		if strings.Contains(p.Stderr(), s) {
			t.Errorf("%s is logged:\n%s", s, p.Stderr())
		}
	}
}

// The relay logs in to NATS with a password from a file. The file is wrong at first, and read anew
// for the next connection. Its monitor says that it does not sync, and the relay warns.
func TestNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	nats1, err := server.NewServer(&server.Options{
		Host:      "127.0.0.1",
		Port:      server.RANDOM_PORT,
		HTTPHost:  "127.0.0.1",
		HTTPPort:  server.RANDOM_PORT,
		JetStream: true,
		StoreDir:  t.TempDir(),
		NoLog:     true,
		NoSigs:    true,
		Username:  "shop",
		Password:  "right-word",
	})
	if err != nil {
		t.Fatal(err)
	}
	nats1.Start()
	t.Cleanup(func() { nats1.Shutdown(); nats1.WaitForShutdown() })
	if !nats1.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect(nats1.ClientURL(), nats.UserInfo("shop", "right-word"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	password := newSecret(t, "wrong-word")
	p := f.starts(fmt.Sprintf(
		`{"type": "nats", "name": "events", "servers": [%q], "subjects": ["orders.>"], "key_window": "1h", "monitors": ["http://%s"],
		"user": {"command": ["echo", "shop"]}, "password": {"file": %q}}`,
		nats1.ClientURL(),
		nats1.MonitorAddr(),
		password.file,
	))
	eventually(t, "it warns of messages that are not on disk", func() bool { return strings.Contains(p.Stderr(), "sync_interval: always") })
	f.enqueue(outbox.Call{Sink: "events", Target: "/orders.placed", ID: "1", Body: []byte("event")})
	refused(t, p)
	password.change("right-word")
	f.delivered(1)
	msg, err := stream.GetLastMsgForSubject(t.Context(), "orders.placed")
	if err != nil || string(msg.Data) != "event" || msg.Header.Get(nats.MsgIdHdr) == "" {
		t.Errorf("%v, %v", msg, err)
	}
	ends(t, p, "wrong-word", "right-word")
}

// The relay logs in to RabbitMQ with a password from a file, which is read anew for the next
// connection.
func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	broker := servertest.RabbitMQ(t)
	f := newFixture(t)
	conn, err := amqp.Dial(broker.URL("guest"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err == nil {
		err = ch.ExchangeDeclare("relay", "topic", true, false, false, false, nil)
	}
	if err == nil {
		_, err = ch.QueueDeclare("relay", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	}
	if err == nil {
		err = ch.QueueBind("relay", "placed.*", "relay", false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	password := newSecret(t, "wrong-word")
	p := f.starts(fmt.Sprintf(`{"type": "rabbitmq", "name": "events", "url": "amqp://%s/", "exchange": "relay", "key_window": "1h",
		"user": {"command": ["echo", "guest"]}, "password": {"file": %q}}`, broker.Addr, password.file))
	f.enqueue(outbox.Call{Sink: "events", Target: "/placed.eu", ID: "1", Body: []byte("event")})
	refused(t, p)
	password.change("guest")
	f.delivered(1)
	msg, ok, err := ch.Get("relay", true)
	good := err == nil && ok && string(msg.Body) == "event" && msg.MessageId != ""
	if !good {
		t.Errorf("%v, %v, %v", msg, ok, err)
	}
	ends(t, p, "wrong-word")
}

// The relay signs its requests to SQS with keys from a file, which is read anew for each request.
func TestSQS(t *testing.T) {
	t.Parallel()
	moto := servertest.Moto(t)
	f := newFixture(t)
	client := sqs.New(sqs.Options{
		Region:       "eu-central-1",
		BaseEndpoint: &moto.URL,
		Credentials:  credentials.NewStaticCredentialsProvider("test", "test", ""),
	})
	made, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{
		QueueName:  aws.String("orders.fifo"),
		Attributes: map[string]string{"FifoQueue": "true"},
	})
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(moto.URL)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var signed []string
	behind := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		signed = append(signed, r.Header.Get("Authorization")+" "+r.Header.Get("X-Amz-Security-Token"))
		mu.Unlock()
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	key := newSecret(t, "AKIAONE")
	p := f.starts(fmt.Sprintf(
		`{"type": "sqs", "name": "events", "region": "eu-central-1", "endpoint": %q, "queues": [%q], "key_window": "5m",
		"access_key_id": {"file": %q}, "secret_access_key": {"command": ["echo", "s3cret"]},
		"session_token": {"command": ["echo", "t0ken"]}}`,
		proxy.URL,
		*made.QueueUrl,
		key.file,
	))
	for i, id := range []string{"AKIAONE", "AKIATWO"} {
		key.change(id)
		f.enqueue(outbox.Call{Sink: "events", Target: "/orders.fifo", ID: id, Body: []byte(id)})
		f.delivered(i + 1)
		mu.Lock()
		if last := signed[len(signed)-1]; !strings.Contains(last, "Credential="+id+"/") || !strings.HasSuffix(last, " t0ken") {
			t.Errorf("signed %s", last)
		}
		mu.Unlock()
	}
	out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: made.QueueUrl, MaxNumberOfMessages: 10})
	if err != nil || len(out.Messages) != 2 {
		t.Errorf("%d messages, %v", len(out.Messages), err)
	}
	ends(t, p, "s3cret", "t0ken", "AKIATWO")
}
