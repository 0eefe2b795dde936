package kafkasource_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	kgoplain "github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	kafkatest.WantAll(
		t,
		kafkatest.RunFails(t, kafkasource.New(quick([]string{addr}, "topic"))),
		"kafkasource: cannot reach any of ["+addr+"]",
		"connection refused",
		"is the broker running?",
	)
}

// One broker of the list is frozen, and the process starts with another one.
func TestOneSilentBrokerOfFour(t *testing.T) {
	t.Parallel()
	kafkatest.OneSilentBrokerOfFour(t, func(brokers []string, topic string) consumer.Source {
		return kafkasource.New(quick(brokers, topic))
	})
}

// A broker falls silent between the first question and the one about compaction, and the process
// starts with another one.
func TestBrokerThatFallsSilent(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.FakeCluster(t, kfake.NumBrokers(3))
	brokers := cluster.ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	over := make(chan struct{})
	defer close(over)
	var asked atomic.Bool
	cluster.ControlKey(kmsg.DescribeConfigs.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		if !asked.Swap(true) {
			cluster.SleepControl(func() { <-over }) // other requests go on
		}
		return nil, nil, false
	})
	kafkatest.RunStarts(t, kafkasource.New(quick(brokers, topic)))
}

// The listener accepts connections and never answers.
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	addr := kafkatest.SilentBroker(t)
	kafkatest.WantAll(
		t,
		kafkatest.RunFails(t, kafkasource.New(quick([]string{addr}, "topic"))),
		"kafkasource: cannot reach any of ["+addr+"]",
		"is the broker running?",
	)

	// If the context ends while Run waits, that is not a failure, and Run does not wait until it
	// would give the broker up, after 30 s.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	started := time.Now()
	if err := kafkasource.New(quick([]string{addr}, "topic")).Run(ctx, nil); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if d := time.Since(started); d > 20*time.Second {
		t.Errorf("returned after %v", d)
	}
}

func TestTopicMissing(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		there := kafkatest.Topic(t, brokers, 1, nil)
		missing := kafkatest.TopicName(t)
		kafkatest.WantAll(
			t,
			kafkatest.RunFails(t, kafkasource.New(quick(brokers, there, missing))),
			`topic "`+missing+`" does not exist`,
			"create it first",
		)
	})
}

// Also if the broker has auto-creation on, which would choose the number of partitions.
func TestTopicIsNotCreated(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.AllowAutoTopicCreation()).ListenAddrs()
	missing := kafkatest.TopicName(t)
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(quick(brokers, missing))), "does not exist")
	topics, err := kafkatest.Admin(t, brokers).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if topics.Has(missing) {
		t.Error("the topic was created")
	}
}

// F8: a compacted topic has lost records on purpose, and is refused.
func TestCompactedTopicRefused(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		for _, policy := range []string{"compact", "compact,delete"} {
			topic := kafkatest.Topic(t, brokers, 1, map[string]string{"cleanup.policy": policy})
			kafkatest.WantAll(
				t,
				kafkatest.RunFails(t, kafkasource.New(quick(brokers, topic))),
				`topic "`+topic+`" is compacted`,
				"cleanup.policy="+policy,
				"not handled yet",
				"package franzsource",
			)
		}
	})
}

// user is a principal of kfake and its permissions for topics and groups.
func user(name string, onTopics ...kmsg.ACLOperation) kfake.Opt {
	acls := []kfake.ACL{{Resource: kmsg.ACLResourceTypeGroup, Name: "*", Pattern: kmsg.ACLResourcePatternTypeLiteral,
		Operation: kmsg.ACLOperationRead, Allow: true}}
	for _, op := range onTopics {
		acls = append(acls, kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "*", Pattern: kmsg.ACLResourcePatternTypeLiteral,
			Operation: op, Allow: true})
	}
	return kfake.User("PLAIN", name, "secret", acls...)
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "root", "secret"),
		kfake.SeedTopics(1, "orders"),
		user("reader", kmsg.ACLOperationRead, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs),
		user("blind", kmsg.ACLOperationRead, kmsg.ACLOperationDescribe), user("nobody")).ListenAddrs()
	as := func(user, password string) kafkasource.Config {
		cfg := quick(brokers, "orders")
		cfg.SASL = plain.Mechanism{Username: user, Password: password}
		return cfg
	}
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(as("blind", "secret"))), `topic "orders"`, "permission DescribeConfigs")
	kafkatest.WantAll(
		t,
		kafkatest.RunFails(t, kafkasource.New(as("nobody", "secret"))),
		`topic "orders"`,
		"Describe, Read and DescribeConfigs",
	)
	// A real broker answers so; kfake closes the connection.
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(as("reader", "wrong"))), brokers[0], "Config.SASL")
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(quick(brokers, "orders"))), "do the brokers expect TLS or SASL")
	h := join(t, as("reader", "secret")).Holds("orders", 0)
	if err := h.Commit(h.Ctx, 0, "x"); err != nil {
		t.Error(err)
	}
	kafkatest.Write(t, kafkatest.Client(t, brokers, kgo.SASL(kgoplain.Auth{User: "root", Pass: "secret"}.AsMechanism())), "orders", "v")
	if got := values(h.ReadTo(t, 0, 1)); !slices.Equal(got, []string{"v"}) {
		t.Errorf("read %v", got)
	}
}

// All requests, including the source's own, go through TLS and authentication.
func TestTLSAndSASL(t *testing.T) {
	t.Parallel()
	cert, pool := kafkatest.Certificate(t)
	brokers := kafkatest.FakeCluster(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "root", "secret"), kfake.SeedTopics(1, "orders")).ListenAddrs()
	cfg := quick(brokers, "orders")
	cfg.SASL = plain.Mechanism{Username: "root", Password: "secret"}
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(cfg)), "kafkasource:", brokers[0]) // plain, to a broker with TLS
	cfg.TLS = &tls.Config{}
	kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(cfg)), "certificate", brokers[0])
	cfg.TLS = &tls.Config{RootCAs: pool}
	h := join(t, cfg).Holds("orders", 0)
	if err := h.Commit(h.Ctx, 0, "x"); err != nil {
		t.Error(err)
	}
	if f := h.MustFetch(t, 0); f.Next != 0 {
		t.Errorf("fetched %+v", f)
	}
}

// SCRAM does not send the password and takes more than one exchange to log in.
func TestSCRAM(t *testing.T) {
	t.Parallel()
	for name, algorithm := range map[string]scram.Algorithm{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512} {
		brokers := kafkatest.FakeCluster(
			t,
			kfake.EnableSASL(),
			kfake.Superuser(name, "root", "secret"),
			kfake.SeedTopics(1, "orders"),
		).ListenAddrs()
		cfg := quick(brokers, "orders")
		for password, wrong := range map[string]bool{"wrong": true, "secret": false} {
			mechanism, err := scram.Mechanism(algorithm, "root", password)
			if err != nil {
				t.Fatal(err)
			}
			cfg.SASL = mechanism
			if wrong {
				kafkatest.WantAll(t, kafkatest.RunFails(t, kafkasource.New(cfg)), brokers[0], "Config.SASL")
				continue
			}
			h := join(t, cfg).Holds("orders", 0)
			if err := h.Commit(h.Ctx, 1, "x"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if f := h.MustFetch(t, 0); f.Next != 0 {
				t.Errorf("%s: fetched %+v", name, f)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  kafkasource.Config
		want []string
	}{
		"empty": {kafkasource.Config{}, []string{"Config.Brokers", "Config.GroupID", "Config.Topics"}},
		"bad": {kafkasource.Config{Brokers: []string{"localhost"}, GroupID: "g", Topics: []string{"a", "", "a"}, SessionTimeout: -1,
			RebalanceTimeout: time.Microsecond, FetchMaxBytes: -1, FetchMaxWait: 40 * 24 * time.Hour},
			[]string{
				`"localhost" is not host:port`,
				"an empty name",
				`"a" twice`,
				"SessionTimeout: is -1ns",
				"RebalanceTimeout: is 1µs",
				"FetchMaxBytes: is -1",
				"FetchMaxWait: is 960h",
			}},
		"heartbeat": {
			kafkasource.Config{Brokers: []string{"h:1"}, GroupID: "g", Topics: []string{"a"}, HeartbeatInterval: 10 * time.Second},
			[]string{"HeartbeatInterval: is 10s: must be below SessionTimeout, 10s"},
		},
		"good":  {kafkasource.Config{Brokers: []string{"h:1", "[::1]:2"}, GroupID: "g", Topics: []string{"a", "b"}}, nil},
		"short": {kafkasource.Config{Brokers: []string{"h:1"}, GroupID: "g", Topics: []string{"a"}, SessionTimeout: time.Second}, nil},
	} {
		s := kafkasource.New(c.cfg)
		err := s.Validate()
		if len(c.want) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no fault found", name)
			continue
		}
		kafkatest.WantAll(t, err.Error(), c.want...)
		if n := strings.Count(err.Error(), "kafkasource: Config."); n != len(c.want) {
			t.Errorf("%s: %d faults, want %d: %v", name, n, len(c.want), err)
		}
		if got := s.Run(t.Context(), nil); got == nil || got.Error() != err.Error() {
			t.Errorf("%s: Run returned %v", name, got)
		}
	}
}
