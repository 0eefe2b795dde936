package kafkasink

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// MessageID is the record header that carries a call's key, unless Config.IDHeader names another.
const MessageID = "message-id"

// Config describes a cluster and the topics that may be written to. The zero value of a field is
// the default that its comment names.
type Config struct {
	// Name identifies the sink: calls with this name in Call.Sink are sent by it. Required.
	Name string

	// Brokers are the addresses (host:port) at which the sink first asks for the cluster, which
	// names its other brokers. Required.
	Brokers []string

	// Topics lists the topics that calls may name. A row cannot make the sink write to another
	// topic, and the sink asks the brokers for these topics only. They must exist; the sink does
	// not create them. Required.
	Topics []string

	// ClientID names this program in the brokers' logs and quotas. Defaults to "onlyonce".
	ClientID string

	// IDHeader is the record header that carries the call's key, in lower case. Defaults to
	// [MessageID].
	IDHeader string

	// KeyWindow is how long every consumer of the topics recognises a message-id. Set it below the
	// shortest horizon of their inboxes, or to [outbox.Forever] if they never forget one. See
	// outbox.Limits for the effect of a wrong value. An inbox of onlyonce in a new database forgets
	// after 7 days: then 6 days is a good value. Required.
	KeyWindow time.Duration

	// Timeout bounds one attempt, from connecting to the acknowledgement: 100 ms to 10 minutes. A
	// value below the time in which the brokers elect a leader is harmless, because the relay tries
	// again. A value below the time in which they acknowledge produces copies. Defaults to 30 s.
	Timeout time.Duration

	// BatchBytes is the largest request for one partition, in bytes before compression: 1 KiB to 64
	// MiB. A larger record travels alone. If it exceeds the topic's max.message.bytes, the broker
	// refuses batches and the sink sends their records one by one. Defaults to 512 KiB.
	BatchBytes int

	// TLS encrypts all connections. If its ServerName is empty, each broker's host is used.
	// Defaults to plain connections.
	TLS *tls.Config

	// SASL authenticates all connections; see packages sasl/plain and sasl/scram of kafka-go.
	// Defaults to no authentication.
	SASL sasl.Mechanism
}

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("kafkasink: invalid configuration")

// withDefaults fills in the defaults and returns every fault at once.
func (c Config) withDefaults() (Config, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if c.Name == "" {
		l.Add("Name", "must not be empty: calls name the sink by it, in Call.Sink")
	}
	c.Brokers = slices.Clone(c.Brokers)
	c.Topics = slices.Clone(c.Topics)
	if len(c.Brokers) == 0 {
		l.Add("Brokers", "must not be empty: name at least one broker, as host:port")
	}
	for _, b := range c.Brokers {
		host, port, err := net.SplitHostPort(b)
		n, bad := strconv.ParseUint(port, 10, 16)
		named := err == nil && host != ""
		if !named || bad != nil || n == 0 {
			l.Add("Brokers", "%q is not host:port", b)
		}
	}
	if len(c.Topics) == 0 {
		l.Add("Topics", "must not be empty: name the topics that calls may be written to")
	}
	for i, t := range c.Topics {
		if !validTopic(t) {
			l.Add("Topics",
				"%q is not the name of a topic: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', not \".\" or \"..\"",
				t)
		}
		if slices.Contains(c.Topics[:i], t) {
			l.Add("Topics", "%q is listed twice", t)
		}
	}
	c.ClientID = cmp.Or(c.ClientID, "onlyonce")
	c.IDHeader = cmp.Or(c.IDHeader, MessageID)
	if c.IDHeader != strings.ToLower(c.IDHeader) ||
		strings.ContainsFunc(c.IDHeader, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		l.Add("IDHeader", "%q must be visible ASCII in lower case", c.IDHeader)
	}
	if c.KeyWindow <= 0 {
		l.Add("KeyWindow", "must be set: how long every consumer recognises a message-id, or outbox.Forever")
	}
	l.Span("Timeout", &c.Timeout, 30*time.Second, 100*time.Millisecond, 10*time.Minute)
	c.BatchBytes = cmp.Or(c.BatchBytes, 512<<10)
	if c.BatchBytes < 1<<10 || c.BatchBytes > 64<<20 {
		l.Add("BatchBytes", "is %d: must be from 1 KiB to 64 MiB", c.BatchBytes)
	}
	return c, l.Err()
}

const (
	// dialTimeout bounds making a connection, including the TLS handshake and authentication.
	dialTimeout = 5 * time.Second
	// metadataAge bounds the age of kafka-go's view of the cluster.
	metadataAge = 2 * time.Second
)

// Sink writes calls to Kafka. Make one with [New]. It is safe for concurrent use.
type Sink struct {
	cfg       Config
	addr      net.Addr
	transport *kafka.Transport

	mu      sync.Mutex
	queues  map[topicPartition]*partitionQueue
	layouts map[string]topicLayout // topics, at most metadataAge old
}

// topicLayout is what the sink knows of a topic.
type topicLayout struct {
	partitions []int
	at         time.Time
}

// partitionQueue holds the calls that wait for one partition. It sends one request at a time: of
// two concurrent ones, the later could be written first.
type partitionQueue struct {
	waiting []*queuedCall
	sending bool // a goroutine sends
}

// topicPartition is a partition of a topic.
type topicPartition struct {
	topic     string
	partition int
}

// New returns a sink for one cluster. It does not connect. If the configuration is wrong, the error
// lists every fault, each with its field, and wraps [ErrConfig].
func New(cfg Config) (*Sink, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sink{
		cfg:     cfg,
		addr:    kafka.TCP(cfg.Brokers...),
		queues:  map[topicPartition]*partitionQueue{},
		layouts: map[string]topicLayout{},
		transport: &kafka.Transport{
			DialTimeout: dialTimeout, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL,
			Dial: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			// Without names the Transport would ask for all topics of the cluster, repeatedly.
			MetadataTTL: metadataAge, MetadataTopics: cfg.Topics,
		},
	}, nil
}

// validTopic reports whether brokers accept the name of a topic.
func validTopic(t string) bool {
	return t != "" && t != "." && t != ".." && len(t) <= 249 &&
		strings.Trim(t, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}
