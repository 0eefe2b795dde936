package kafkasource

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"time"

	"github.com/segmentio/kafka-go/sasl"
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
	// RebalanceTimeout is how long a rebalance waits for this process to let its partitions go. Default 30 s. Keep it
	// above the consumer's DrainTimeout: a member that is late loses its partitions, and what it did not
	// commit until then is done again by another (its effects stay single).
	RebalanceTimeout time.Duration
	// HeartbeatInterval is the time between two signs of life, and so how soon this process hears of a rebalance. Default: a
	// third of SessionTimeout, at most 3 s. Below a third, so that a lost heartbeat or two do no harm.
	HeartbeatInterval time.Duration
	// PartitionWatchInterval is how often the topics are looked at for new partitions, which lead to a rebalance. Default 5 s.
	PartitionWatchInterval time.Duration

	// FetchMaxBytes is how much one fetch from one partition returns at most, compressed as it is stored. Default 1 MiB. A
	// record batch that is larger is returned whole. Each partition holds up to about three fetches in memory.
	FetchMaxBytes int
	// FetchMaxWait is how long a fetch waits at the broker where there is nothing new. Default 500 ms. It delays no
	// record; more means fewer requests for idle partitions.
	FetchMaxWait time.Duration

	// TLS encrypts all connections. Nil: they are plain. An empty ServerName becomes each broker's host.
	TLS *tls.Config
	// SASL authenticates all connections; see packages sasl/plain and sasl/scram of kafka-go. Nil: not.
	SASL sasl.Mechanism

	// Logger receives what no caller is there to be told: a broker's error that is tried again, a rebalance, a generation that
	// ended at once. Nil: nothing is logged. Keys and payloads are never logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.SessionTimeout, 10*time.Second)
	def(&c.RebalanceTimeout, 30*time.Second)
	def(&c.HeartbeatInterval, min(c.SessionTimeout/3, 3*time.Second))
	def(&c.PartitionWatchInterval, 5*time.Second)
	def(&c.FetchMaxWait, 500*time.Millisecond)
	if c.FetchMaxBytes == 0 {
		c.FetchMaxBytes = 1 << 20
	}
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
	var faults []error
	fault := func(field, rule string, args ...any) {
		faults = append(faults, fmt.Errorf("kafkasource: Config.%s: %s", field, fmt.Sprintf(rule, args...)))
	}
	if len(c.Brokers) == 0 {
		fault("Brokers", "must name a broker at least, as host:port")
	}
	for _, b := range c.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			fault("Brokers", "%q is not host:port", b)
		}
	}
	if c.GroupID == "" {
		fault("GroupID", "must not be empty: it is what the processes that share the work have in common")
	}
	if len(c.Topics) == 0 {
		fault("Topics", "must name a topic at least")
	}
	for i, t := range c.Topics {
		switch {
		case t == "":
			fault("Topics", "must not hold an empty name")
		case slices.Contains(c.Topics[:i], t):
			fault("Topics", "names %q twice", t)
		}
	}
	durations := []struct {
		field string
		value time.Duration
	}{
		{"SessionTimeout", c.SessionTimeout}, {"RebalanceTimeout", c.RebalanceTimeout}, {"HeartbeatInterval", c.HeartbeatInterval},
		{"PartitionWatchInterval", c.PartitionWatchInterval}, {"FetchMaxWait", c.FetchMaxWait},
	}
	for _, d := range durations {
		switch {
		case d.value < 0:
			fault(d.field, "is %v: must be positive, or 0 for the default", d.value)
		case d.value > 0 && d.value < time.Millisecond:
			fault(d.field, "is %v: the unit is a millisecond", d.value)
		case d.value.Milliseconds() > math.MaxInt32:
			fault(d.field, "is %v: Kafka counts milliseconds in 32 bits", d.value)
		}
	}
	if w := c.withDefaults(); w.SessionTimeout > 0 && w.HeartbeatInterval >= w.SessionTimeout {
		fault("HeartbeatInterval", "is %v: must be below SessionTimeout, %v, and should be at most a third of it", w.HeartbeatInterval, w.SessionTimeout)
	}
	if c.FetchMaxBytes < 0 || c.FetchMaxBytes > math.MaxInt32 {
		fault("FetchMaxBytes", "is %d: must be positive and fit into 32 bits, or 0 for the default", c.FetchMaxBytes)
	}
	return errors.Join(faults...)
}
