package franzsource_test

import (
	"context"
	"crypto/tls"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// One broker of the list is frozen, and the process starts with another one.
func TestOneSilentBrokerOfFour(t *testing.T) {
	t.Parallel()
	kafkatest.OneSilentBrokerOfFour(t, func(brokers []string, topic string) consumer.Source {
		return franzsource.New(quick(brokers, topic))
	})
}

// The listener accepts connections and never answers. If the context ends while Run waits, that is
// not a failure.
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	addr := kafkatest.SilentBroker(t)
	kafkatest.WantAll(
		t,
		kafkatest.RunFails(t, franzsource.New(quick([]string{addr}, "topic"))),
		"franzsource: cannot reach any of ["+addr+"]",
		"is the broker running?",
	)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := franzsource.New(quick([]string{addr}, "topic")).Run(ctx, nil); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// Also if the broker has auto-creation on, which would choose the number of partitions.
func TestTopicIsNotCreated(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.AllowAutoTopicCreation()).ListenAddrs()
	missing := kafkatest.TopicName(t)
	kafkatest.WantAll(
		t,
		kafkatest.RunFails(t, franzsource.New(quick(brokers, missing))),
		`topic "`+missing+`" does not exist`,
		"create it first",
	)
	topics, err := kafkatest.Admin(t, brokers).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if topics.Has(missing) {
		t.Error("the topic was created")
	}
}

// A broker without transactions is refused, because it would be read wrong: it can be joined, but
// fetches fail.
func TestBrokerTooOld(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.FakeCluster(t, kfake.MaxVersions(kversion.V0_10_2())).ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(quick(brokers, topic))), "Kafka 0.11", brokers[0])
}

// All requests go through authentication, by each mechanism that users have, and a wrong password
// is reported as such.
func TestSASL(t *testing.T) {
	t.Parallel()
	for name, mechanism := range map[string]func(password string) sasl.Mechanism{
		"PLAIN":         func(p string) sasl.Mechanism { return plain.Auth{User: "root", Pass: p}.AsMechanism() },
		"SCRAM-SHA-256": func(p string) sasl.Mechanism { return scram.Auth{User: "root", Pass: p}.AsSha256Mechanism() },
		"SCRAM-SHA-512": func(p string) sasl.Mechanism { return scram.Auth{User: "root", Pass: p}.AsSha512Mechanism() },
	} {
		brokers := kafkatest.FakeCluster(
			t,
			kfake.EnableSASL(),
			kfake.Superuser(name, "root", "secret"),
			kfake.SeedTopics(1, "orders"),
		).ListenAddrs()
		cfg := quick(brokers, "orders")
		cfg.SASL = mechanism("wrong")
		kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(cfg)), brokers[0], "Config.SASL")
		cfg.SASL = mechanism("secret")
		kafkatest.Write(t, kafkatest.Client(t, brokers, kgo.SASL(cfg.SASL)), "orders", "v")
		h := join(t, cfg).Holds("orders", 0)
		if got := values(h.ReadTo(t, 0, 1)); !slices.Equal(got, []string{"v"}) {
			t.Errorf("%s: read %v", name, got)
		}
		if err := h.Commit(h.Ctx, 1, "x"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cfg.SASL = nil
		kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(cfg)), brokers[0], "do the brokers expect TLS or SASL")
	}
}

// DescribeConfigs is optional: without that permission retention and compaction are unknown.
func TestPermissions(t *testing.T) {
	t.Parallel()
	acl := func(of kmsg.ACLResourceType, op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: of, Name: "*", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	group := acl(kmsg.ACLResourceTypeGroup, kmsg.ACLOperationRead)
	brokers := kafkatest.FakeCluster(
		t,
		kfake.EnableSASL(),
		kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "root", "secret"),
		kfake.SeedTopics(1, "orders"),
		kfake.User("PLAIN",
			"reader",
			"secret",
			group,
			acl(kmsg.ACLResourceTypeTopic, kmsg.ACLOperationRead),
			acl(kmsg.ACLResourceTypeTopic, kmsg.ACLOperationDescribe)),
		kfake.User("PLAIN",
			"groupless",
			"secret",
			acl(kmsg.ACLResourceTypeTopic, kmsg.ACLOperationRead),
			acl(kmsg.ACLResourceTypeTopic, kmsg.ACLOperationDescribe)),
		kfake.User("PLAIN", "nobody", "secret", group),
	).ListenAddrs()
	as := func(user string) franzsource.Config {
		cfg := quick(brokers, "orders")
		cfg.SASL = plain.Auth{User: user, Pass: "secret"}.AsMechanism()
		return cfg
	}
	kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(as("nobody"))), `topic "orders"`, "Describe and Read")
	kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(as("groupless"))), "group-orders", "GROUP_AUTHORIZATION_FAILED")
	kafkatest.Write(t, kafkatest.Client(t, brokers, kgo.SASL(plain.Auth{User: "root", Pass: "secret"}.AsMechanism())), "orders", "v")
	h := join(t, as("reader")).Holds("orders", 0)
	if until, err := h.Retained(h.Ctx, 0); !until.IsZero() || err != nil {
		t.Errorf("retained until %v, %v", until, err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, pool := kafkatest.Certificate(t)
	brokers := kafkatest.FakeCluster(
		t,
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}),
		kfake.SeedTopics(1, "orders"),
	).ListenAddrs()
	cfg := quick(brokers, "orders")
	kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(cfg)), "franzsource:", brokers[0]) // plain, to a broker with TLS
	cfg.TLS = &tls.Config{}
	kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(cfg)), "certificate", brokers[0])
	cfg.TLS = &tls.Config{RootCAs: pool}
	h := join(t, cfg).Holds("orders", 0)
	if f := h.MustFetch(t, 0); f.Next != 0 {
		t.Errorf("fetched %+v", f)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	err := franzsource.New(franzsource.Config{}).Validate()
	if err == nil || strings.Count(err.Error(), "franzsource: Config.") != 3 {
		t.Errorf("%v", err)
	}
	if got := franzsource.New(franzsource.Config{}).Run(t.Context(), nil); got == nil || got.Error() != err.Error() {
		t.Errorf("Run returned %v", got)
	}
}
