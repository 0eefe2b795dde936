package franzsource

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// Config has the topics, the group and the connections of a Source. The zero value of a field is
// the default that its comment names. Validate reports every wrong value at once.
type Config struct {
	// Brokers are the addresses (host:port) at which the source first asks for the cluster, which
	// names its other brokers. Required.
	Brokers []string

	// GroupID is the Kafka consumer group. Its members share the partitions of the topics.
	// Required.
	GroupID string

	// Topics are the names of the topics to read. They must exist; they may be compacted. Required.
	Topics []string

	// InstanceID makes this process a static member (KIP-345). If it ends or is killed and joins
	// again under the same id within SessionTimeout, it gets its partitions back without a
	// rebalance. In return, Run does not leave the group when it ends, so no other process works on
	// the partitions until SessionTimeout has passed. Each process of a group needs an id of its
	// own: two with the same id fence each other, and Run of the first one fails. Defaults to a
	// dynamic member.
	InstanceID string

	// ClientID names this program in the brokers' logs and quotas. Defaults to "onlyonce".
	ClientID string

	// SessionTimeout is how long the group waits for a sign of life before it gives the partitions
	// of a process to others. If it is shorter, a killed process is replaced sooner, but a shorter
	// pause of the process or the network costs a rebalance. The brokers restrict it
	// (group.min.session.timeout.ms, by default 6 s, and group.max.session.timeout.ms). Defaults to
	// 10 s.
	SessionTimeout time.Duration

	// RebalanceTimeout is how long this process may take to release a partition. Partitions that
	// stay are not affected. After it the partition goes to another member, which handles
	// uncommitted messages again; each still takes effect once. Set it above the time that a
	// release may take: see docs/operations/deploy.md, "How long a stop takes". Defaults to 30 s.
	RebalanceTimeout time.Duration

	// HeartbeatInterval is the time between two signs of life, and so how soon this process learns
	// of a rebalance. Keep it below a third of SessionTimeout, so that one or two lost heartbeats
	// do no harm. Defaults to a third of SessionTimeout, at most 3 s.
	HeartbeatInterval time.Duration

	// FetchMaxBytes is how many bytes one fetch from one partition returns at most, compressed as
	// they are stored. A larger record batch is returned whole. The batch stays compressed until
	// the consumer has room for its messages (consumer.Config.PrefetchBytes); if there is little
	// room, the source asks for less. Fetches from one broker travel together: a response holds at
	// most 50 MiB, or FetchMaxBytes if that is more. Defaults to 1 MiB.
	FetchMaxBytes int

	// FetchMaxWait is how long a fetch waits at the broker if there are no new records. It delays
	// no record; a longer wait means fewer requests for idle partitions. Defaults to 500 ms.
	FetchMaxWait time.Duration

	// MaxRecordBytes is the largest record that is read, in bytes, uncompressed. A larger one is an
	// error that names its offset, and the partition waits there: a few compressed bytes can unpack
	// to any size. A process needs memory for one such record of each partition. Defaults to 64
	// MiB.
	MaxRecordBytes int

	// TLS encrypts all connections. If its ServerName is empty, each broker's host is used.
	// Defaults to plain connections.
	TLS *tls.Config

	// SASL authenticates all connections; see packages sasl/plain, sasl/scram and others of
	// franz-go. Defaults to no authentication.
	SASL sasl.Mechanism

	// Logger receives events that cannot be returned as an error: for example a retried error of a
	// broker, a rebalance, or a generation that ended at once. Keys and payloads are never logged.
	// Defaults to slog.Default(), at WARN and above.
	Logger *slog.Logger
}

// settings returns the fields that all adapters for Kafka share.
func (c Config) settings() kafkalog.Settings {
	return kafkalog.Settings{Brokers: c.Brokers, GroupID: c.GroupID, Topics: c.Topics,
		SessionTimeout: c.SessionTimeout, RebalanceTimeout: c.RebalanceTimeout, HeartbeatInterval: c.HeartbeatInterval,
		FetchMaxBytes: c.FetchMaxBytes, FetchMaxWait: c.FetchMaxWait, MaxRecordBytes: c.MaxRecordBytes}
}

func (c Config) withDefaults() Config {
	d := c.settings().WithDefaults()
	c.SessionTimeout, c.RebalanceTimeout, c.HeartbeatInterval = d.SessionTimeout, d.RebalanceTimeout, d.HeartbeatInterval
	c.FetchMaxBytes, c.FetchMaxWait, c.MaxRecordBytes = d.FetchMaxBytes, d.FetchMaxWait, d.MaxRecordBytes
	c.ClientID = cmp.Or(c.ClientID, "onlyonce")
	c.Logger = fields.Logger(c.Logger)
	c.Brokers, c.Topics = slices.Clone(c.Brokers), slices.Clone(c.Topics)
	return c
}

// faults returns every fault of the configuration as the user wrote it.
func (c Config) faults() error {
	return errors.Join(c.settings().Faults("franzsource")...)
}

// instance returns InstanceID in the form of requests: nil for a dynamic member.
func (c Config) instance() *string {
	if c.InstanceID == "" {
		return nil
	}
	return &c.InstanceID
}
