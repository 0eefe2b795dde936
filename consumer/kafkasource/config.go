package kafkasource

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

// Config says which topics a Source reads, and as whom. The zero value of a field means its documented default; Validate refuses
// values that make no sense and lists every one.
type Config struct {
	// Brokers are addresses (host:port) to begin with; the cluster names the others. Required.
	Brokers []string
	// GroupID is the Kafka consumer group. Its members share the partitions of the topics. Required.
	GroupID string
	// Topics are the names of the topics to read. They must exist, and none may be compacted. Required.
	Topics []string
	// ClientID names this program in the brokers' logs and quotas. Default "onlyonce".
	ClientID string

	// SessionTimeout is how long after the last sign of life of a process the group gives its partitions to others.
	// Default 10 s. Shorter: a killed process is replaced sooner, and a pause of the process or the network sooner costs a rebalance.
	// The brokers bound it (group.min.session.timeout.ms, by default 6 s, and group.max.session.timeout.ms).
	SessionTimeout time.Duration
	// RebalanceTimeout is how long a rebalance waits for this process to let its partitions go. Default 30 s. A member that is late
	// loses its partitions, and what it did not commit until then is done again by another (its effects stay single). So keep it not
	// below what letting go may take: docs/operations.md, "How long a stop takes".
	RebalanceTimeout time.Duration
	// HeartbeatInterval is the time between two signs of life, and so how soon this process hears of a rebalance. Default: a
	// third of SessionTimeout, at most 3 s. Below a third, so that a lost heartbeat or two do no harm.
	HeartbeatInterval time.Duration
	// PartitionWatchInterval is how often the topics are looked at for new partitions, which lead to a rebalance. Default 5 s.
	PartitionWatchInterval time.Duration

	// FetchMaxBytes is how much one fetch from one partition returns at most, compressed as it is stored. Default 1 MiB. A
	// record batch that is larger is returned whole. It stays as it is until the consumer has room for its messages
	// (consumer.Config.PrefetchBytes), and less is asked for where there is little.
	FetchMaxBytes int
	// FetchMaxWait is how long a fetch waits at the broker where there is nothing new. Default 500 ms. It delays no
	// record; more means fewer requests for idle partitions.
	FetchMaxWait time.Duration
	// MaxRecordBytes is how large one record may be, uncompressed. Default 64 MiB. A larger one is an error that names its offset, and the
	// partition waits there: a few bytes can be made to unpack to any number. A process needs memory for one such record of each partition.
	MaxRecordBytes int

	// TLS encrypts all connections. Nil: they are plain. An empty ServerName becomes each broker's host.
	TLS *tls.Config
	// SASL authenticates all connections; see packages sasl/plain and sasl/scram of kafka-go. Nil: not.
	SASL sasl.Mechanism

	// Logger receives what no caller is there to be told: a broker's error that is tried again, a rebalance, a generation that
	// ended at once. Nil: nothing is logged. Keys and payloads are never logged.
	Logger *slog.Logger
}

// settings are what this adapter has in common with others.
func (c Config) settings() kafkalog.Settings {
	return kafkalog.Settings{Brokers: c.Brokers, GroupID: c.GroupID, Topics: c.Topics,
		SessionTimeout: c.SessionTimeout, RebalanceTimeout: c.RebalanceTimeout, HeartbeatInterval: c.HeartbeatInterval,
		PartitionWatchInterval: c.PartitionWatchInterval, FetchMaxBytes: c.FetchMaxBytes, FetchMaxWait: c.FetchMaxWait,
		MaxRecordBytes: c.MaxRecordBytes}
}

func (c Config) withDefaults() Config {
	d := c.settings().WithDefaults()
	c.SessionTimeout, c.RebalanceTimeout, c.HeartbeatInterval = d.SessionTimeout, d.RebalanceTimeout, d.HeartbeatInterval
	c.PartitionWatchInterval, c.FetchMaxBytes, c.FetchMaxWait = d.PartitionWatchInterval, d.FetchMaxBytes, d.FetchMaxWait
	c.MaxRecordBytes = d.MaxRecordBytes
	if c.ClientID == "" {
		c.ClientID = "onlyonce"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Brokers, c.Topics = slices.Clone(c.Brokers), slices.Clone(c.Topics)
	return c
}

// faults returns everything that is wrong with the configuration as the user wrote it.
func (c Config) faults() error {
	return errors.Join(c.settings().Faults("kafkasource")...)
}
