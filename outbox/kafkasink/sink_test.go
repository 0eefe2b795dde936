package kafkasink_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// O10: the record that a call becomes.
func TestO10Record(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		s := newSink(t, brokers, nil, topic)
		if l := s.Limits(); l.KeyWindow != 6*24*time.Hour || l.Timeout != 20*time.Second || s.Name() != "events" {
			t.Errorf("%s: %+v", s.Name(), l)
		}
		a := delivery(ids(1)[0], "/"+topic+"?key=order%2F17%00", `{"a":1}`)
		a.Header = map[string][]string{"Content-Type": {"application/json"}, "Ce_id": {"1", "2"}}
		wantOutcome(t, send(t, s, a), outbox.Delivered)
		wantOutcome(t, send(t, s, delivery(ids(2)[1], "/"+topic, "")), outbox.Delivered)
		got := read(t, brokers, topic, 2)
		var headers []string
		for _, h := range got[0].Headers {
			headers = append(headers, h.Key+"="+string(h.Value))
		}
		if h := strings.Join(headers, " "); h != "message-id="+a.Key+" ce_id=1 ce_id=2 content-type=application/json" {
			t.Errorf("headers %s", h)
		}
		if string(got[0].Key) != "order/17\x00" || string(got[0].Value) != `{"a":1}` {
			t.Errorf("key %q, value %q", got[0].Key, got[0].Value)
		}
		good := got[1].Key == nil &&
			got[1].Value != nil &&
			len(got[1].Value) == 0 &&
			header(got[1], kafkasink.MessageID) == ids(2)[1]
		if !good {
			t.Errorf("without a key and a body: %q, %#v, %v", got[1].Key, got[1].Value, got[1].Headers)
		}
	})
}

// O10: every request asks for all acknowledgements.
func TestO10AllAcks(t *testing.T) {
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	var acks atomic.Int32
	acks.Store(99)
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		acks.Store(int32(req.(*kmsg.ProduceRequest).Acks))
		return nil, nil, false
	})
	wantOutcome(t, send(t, newSink(t, c.ListenAddrs(), nil, topic), delivery(ids(1)[0], "/"+topic, "v")), outbox.Delivered)
	if acks.Load() != -1 {
		t.Errorf("acks = %d, want -1: all", acks.Load())
	}
}

// The record key chooses the partition as in Java. Without a record key every attempt at a call
// goes to the same partition.
func TestPartition(t *testing.T) {
	brokers := kafkatest.Fake(t)
	topic := kafkatest.Topic(t, brokers, 7, nil)
	s := newSink(t, brokers, nil, topic)
	var all []*outbox.Attempt
	for i, id := range ids(20) {
		all = append(
			all,
			delivery(id, fmt.Sprintf("/%s?key=%d", topic, i), "keyed"),
			delivery(id, "/"+topic, "first"),
			delivery(id, "/"+topic, "again"),
		)
	}
	for _, r := range sendAll(t, s, all) {
		wantOutcome(t, r, outbox.Delivered)
	}
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	where := map[string]int32{}
	used := map[int32]bool{}
	for _, r := range read(t, brokers, topic, len(all)) {
		if r.Key != nil {
			if want := java.Partition(r, 7); int(r.Partition) != want {
				t.Errorf("key %s is in partition %d, want %d", r.Key, r.Partition, want)
			}
			continue
		}
		id := header(r, kafkasink.MessageID)
		if p, ok := where[id]; ok && p != r.Partition {
			t.Errorf("%s is in partitions %d and %d", id, p, r.Partition)
		}
		where[id] = r.Partition
		used[r.Partition] = true
	}
	if len(where) != 20 || len(used) < 3 {
		t.Errorf("%d calls in %d partitions", len(where), len(used))
	}
}

// holdFirst makes a broker hold the first produce request, from when arrived is closed until the
// test closes release. It counts all requests.
func holdFirst(c *kfake.Cluster) (requests *atomic.Int32, arrived <-chan struct{}, release chan<- struct{}) {
	requests = new(atomic.Int32)
	came := make(chan struct{})
	goOn := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if requests.Add(1) == 1 {
			c.SleepControl(func() { close(came); <-goOn })
		}
		return nil, nil, false
	})
	return requests, came, goOn
}

// Calls that arrive during a request travel together in the next one, in their order.
func TestBatches(t *testing.T) {
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	requests, arrived, release := holdFirst(c)
	s := newSink(t, c.ListenAddrs(), nil, topic)
	results := make(chan outbox.Result, 41)
	begin := func(id, body string) { go func() { results <- send(t, s, delivery(id, "/"+topic, body)) }() }
	begin("first", "first")
	pgtest.Receive(t, patience, "arrived", arrived)
	for i, id := range ids(40) {
		before := kafkasink.Waiting(s)
		begin(id, fmt.Sprint(i))
		until(t, "it waits", func() bool { return kafkasink.Waiting(s) > before })
	}
	close(release)
	for range 41 {
		wantOutcome(t, <-results, outbox.Delivered)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	for i, r := range read(t, c.ListenAddrs(), topic, 41) {
		if want := fmt.Sprint(i - 1); i > 0 && string(r.Value) != want {
			t.Errorf("record %d is %q", i, r.Value)
		}
	}
}

// A record that is refused for its contents is judged alone: its neighbours in the batch are
// written (O10).
func TestTooLarge(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, map[string]string{"max.message.bytes": "2000"})
		s := newSink(t, brokers, nil, topic)
		var all []*outbox.Attempt
		for i, id := range ids(20) {
			size := 300
			if i == 7 {
				size = 5000
			}
			all = append(all, delivery(id, "/"+topic, strings.Repeat("x", size)))
		}
		for i, r := range sendAll(t, s, all) {
			want := outbox.Delivered
			if i == 7 {
				want = outbox.Rejected
				if !strings.Contains(r.Reason, "[10]") {
					t.Errorf("reason %q", r.Reason)
				}
			}
			wantOutcome(t, r, want)
		}
		if n := len(read(t, brokers, topic, 19)); n != 19 {
			t.Errorf("%d records", n)
		}
	})
}

func TestTopicMissing(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		there := kafkatest.Topic(t, brokers, 1, nil)
		missing := kafkatest.TopicName(t)
		s := newSink(t, brokers, nil, there, missing)
		r := send(t, s, delivery("k", "/"+missing, "v"))
		wantOutcome(t, r, outbox.Rejected)
		if !strings.Contains(r.Reason, "topic "+missing+" does not exist") {
			t.Errorf("reason %q", r.Reason)
		}
		wantOutcome(t, send(t, s, delivery("k", "/"+there, "v")), outbox.Delivered)
		topics, err := kafkatest.Admin(t, brokers).ListTopics(t.Context())
		if err != nil || topics.Has(missing) {
			t.Errorf("the topic was created (%v)", err)
		}
	})
}

// The meaning of a broker's codes.
func TestCodes(t *testing.T) {
	for code, want := range map[kafka.Error]outbox.AttemptOutcome{
		kafka.NotLeaderForPartition:        outbox.Retry,
		kafka.LeaderNotAvailable:           outbox.Retry,
		kafka.UnknownTopicOrPartition:      outbox.Retry,
		kafka.NotEnoughReplicas:            outbox.Postponed,
		kafka.NotEnoughReplicasAfterAppend: outbox.Retry,
		kafka.RequestTimedOut:              outbox.Retry,
		kafka.KafkaStorageError:            outbox.Retry,
		kafka.Unknown:                      outbox.Retry,
		kafka.InvalidMessage:               outbox.Retry,
		kafka.Error(999):                   outbox.Retry,
		kafka.MessageSizeTooLarge:          outbox.Rejected,
		kafka.RecordListTooLarge:           outbox.Rejected,
		kafka.InvalidRecord:                outbox.Rejected,
		kafka.TopicAuthorizationFailed:     outbox.Rejected,
		kafka.ClusterAuthorizationFailed:   outbox.Rejected,
		kafka.PolicyViolation:              outbox.Rejected,
	} {
		c := kafkatest.FakeCluster(t)
		topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
		c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := req.ResponseKind().(*kmsg.ProduceResponse)
			rt := kmsg.NewProduceResponseTopic()
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.ErrorCode, rp.ErrorMessage = int16(code), kmsg.StringPtr("secret payload")
			rt.Topic = topic
			rt.Partitions = append(rt.Partitions, rp)
			resp.Topics = append(resp.Topics, rt)
			return resp, nil, true
		})
		s := newSink(t, c.ListenAddrs(), nil, topic)
		r := send(t, s, delivery("k", "/"+topic, "v"))
		wantOutcome(t, r, want)
		if !strings.HasPrefix(r.Reason, fmt.Sprintf("[%d]", code)) || strings.Contains(r.Reason, "secret") {
			t.Errorf("%v: reason %q", code, r.Reason)
		}
		wantOutcome(t, send(t, s, delivery("k", "/"+topic, "v")), outbox.Delivered)
	}
}

func user(name string, op kmsg.ACLOperation) kfake.Opt {
	return kfake.User("PLAIN", name, "secret", kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "*",
		Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true})
}

// Missing rights park the call. A failing login is tried again, because it meets every call and the
// password can be corrected.
func TestPermissions(t *testing.T) {
	brokers := kafkatest.FakeCluster(
		t,
		kfake.EnableSASL(),
		kfake.EnableACLs(),
		kfake.SeedTopics(1, "orders"),
		kfake.Superuser("PLAIN", "root", "secret"),
		user("writer", kmsg.ACLOperationWrite),
		user("reader", kmsg.ACLOperationDescribe),
	).ListenAddrs()
	for _, c := range []struct {
		user, password string
		want           outbox.AttemptOutcome
	}{
		{"writer", "secret", outbox.Delivered},
		{"reader", "secret", outbox.Rejected},
		{"writer", "wrong", outbox.Postponed},
		{"", "", outbox.Postponed},
	} {
		s := newSink(t, brokers, func(cfg *kafkasink.Config) {
			cfg.Timeout = 10 * time.Second
			if c.user != "" {
				cfg.SASL = plain.Mechanism{Username: c.user, Password: c.password}
			}
		}, "orders")
		r := send(t, s, delivery("k", "/orders", "v"))
		t.Logf("%s: %v %s", c.user, r.Outcome, r.Reason)
		wantOutcome(t, r, c.want)
	}
}

func TestTLSAndSASL(t *testing.T) {
	cert, pool := kafkatest.Certificate(t)
	brokers := kafkatest.FakeCluster(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-256", "root", "secret"), kfake.SeedTopics(1, "orders")).ListenAddrs()
	mechanism, err := scram.Mechanism(scram.SHA256, "root", "secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tls  *tls.Config
		want outbox.AttemptOutcome
	}{{nil, outbox.Postponed}, {&tls.Config{}, outbox.Postponed}, {&tls.Config{RootCAs: pool}, outbox.Delivered}} {
		s := newSink(
			t,
			brokers,
			func(cfg *kafkasink.Config) {
				cfg.TLS = c.tls
				cfg.SASL = mechanism
				cfg.Timeout = 10 * time.Second
			},
			"orders",
		)
		wantOutcome(t, send(t, s, delivery("k", "/orders", "v")), c.want)
	}
}

// No process listens at the address, or one listens and never answers.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quick := func(cfg *kafkasink.Config) { cfg.Timeout = 300 * time.Millisecond }
	r := send(t, newSink(t, []string{l.Addr().String()}, quick, "orders"), delivery("k", "/orders", "v"))
	wantOutcome(t, r, outbox.Postponed)
	if r.Reason != "no acknowledgement within 300ms" {
		t.Errorf("reason %q", r.Reason)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, send(t, newSink(t, []string{l.Addr().String()}, nil, "orders"), delivery("k", "/orders", "v")), outbox.Postponed)
}

// The context of an attempt ends while the broker is silent. Send returns, and never reports the
// call as delivered (O10).
func TestCutOff(t *testing.T) {
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	_, arrived, release := holdFirst(c)
	s := newSink(t, c.ListenAddrs(), nil, topic)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan outbox.Result, 1)
	second := make(chan outbox.Result, 1)
	go func() { first <- s.Send(ctx, delivery("a", "/"+topic, "under way")) }()
	pgtest.Receive(t, patience, "arrived", arrived)
	go func() { second <- s.Send(ctx, delivery("b", "/"+topic, "waiting")) }()
	until(t, "the second waits", func() bool { return kafkasink.Waiting(s) == 1 })
	cancel()
	for _, ended := range []chan outbox.Result{first, second} {
		r := <-ended
		wantOutcome(t, r, outbox.Retry)
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("%v", r.Err)
		}
	}
	close(release)
	wantOutcome(t, send(t, s, delivery("c", "/"+topic, "later")), outbox.Delivered)
	for _, r := range read(t, c.ListenAddrs(), topic, 1) {
		if string(r.Value) == "waiting" {
			t.Error("a call was made although its context had ended")
		}
	}
}

// A call that may not start any more is left out of its batch; its neighbours are sent (O6).
func TestMayStartIsAskedLast(t *testing.T) {
	c := kafkatest.FakeCluster(t)
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	s := newSink(t, c.ListenAddrs(), nil, topic)
	for name, refused := range map[string][]error{
		"alone":        {outbox.ErrNotStarted},
		"among others": {nil, outbox.ErrNotStarted, nil, outbox.ErrNotStarted},
	} {
		for i, err := range kafkasink.SendBatch(t.Context(), s, topic, refused) {
			if !errors.Is(err, refused[i]) || (err == nil) != (refused[i] == nil) {
				t.Errorf("%s: call %d: %v, want %v", name, i, err, refused[i])
			}
		}
	}
	got := read(t, c.ListenAddrs(), topic, 2)
	if len(got) != 2 || string(got[0].Value) != "0" || string(got[1].Value) != "2" {
		t.Errorf("%d records", len(got))
	}
}

// Rows that Enqueue would have refused.
func TestRowsThatCannotBeSent(t *testing.T) {
	s := newSink(t, []string{"127.0.0.1:1"}, nil, "orders")
	for target, want := range map[string]string{
		"":                    "must be a slash and a topic",
		"/":                   "must be a slash",
		"/a/b":                "must be a slash",
		"/%6f":                "must be a slash",
		"/other":              "not among the sink's topics",
		"/orders?key=1&key=2": "no parameter but one key",
		"/orders?Key=1":       "no parameter but one key",
		"/orders?":            "no parameter but one key",
		"orders":              "target",
	} {
		r := send(t, s, delivery("k", target, "v"))
		wantOutcome(t, r, outbox.Rejected)
		if !strings.Contains(r.Reason, want) {
			t.Errorf("%q: reason %q, want %q", target, r.Reason, want)
		}
	}
	a := delivery("k", "/orders", "v")
	a.Header = map[string][]string{"Message-Id": {"mine"}}
	wantOutcome(t, send(t, s, a), outbox.Rejected)
	a = delivery("k", "/orders", "v")
	a.Method = "DELETE"
	wantOutcome(t, send(t, s, a), outbox.Rejected)
}

func TestConfigFaults(t *testing.T) {
	_, err := kafkasink.New(kafkasink.Config{})
	for _, want := range []string{"Name", "Brokers", "Topics", "KeyWindow"} {
		if !strings.Contains(err.Error(), "kafkasink: invalid configuration: Config."+want+": ") {
			t.Errorf("%s is not named: %v", want, err)
		}
	}
	_, err = kafkasink.New(kafkasink.Config{
		Name:       "x",
		Brokers:    []string{"localhost"},
		Topics:     []string{"a", "a", "b/c"},
		IDHeader:   "Message-Id",
		KeyWindow:  -1,
		Timeout:    time.Hour,
		BatchBytes: 1,
	})
	for _, want := range []string{
		`"localhost" is not host:port`,
		`"a" is listed twice`,
		`"b/c" is not the name`,
		"IDHeader",
		"KeyWindow",
		"Timeout: is 1h",
		"BatchBytes: is 1:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s: %v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "kafkasink: "); n != 7 || !errors.Is(err, kafkasink.ErrConfig) {
		t.Errorf("%d faults: %v", n, err)
	}
}
