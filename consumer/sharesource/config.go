package sharesource

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// Config has the topics, the groups and the connections of a Source. The zero value of a field is
// the default that its comment names. Validate reports every wrong value at once.
type Config struct {
	// Brokers are the addresses (host:port) at which the source first asks for the cluster, which
	// names its other brokers. Required.
	Brokers []string

	// GroupID is the share group. Required.
	GroupID string

	// KeeperGroupID is the consumer group of the keepers. It owns the cursors in the database, and
	// its committed offsets are the positions. It must not be GroupID, because Kafka's groups of
	// all types share their names. Defaults to GroupID with ".keeper" after it.
	KeeperGroupID string

	// Topics are the names of the topics to read. They must exist; they may be compacted. Required.
	Topics []string

	// ClientID names this program in the brokers' logs and quotas. Defaults to "onlyonce".
	ClientID string

	// MaxRecords is the most records that this process holds at a time. It fetches more when all of
	// them are acknowledged or given back, so with a low value a slow message holds up fewer
	// others. Defaults to 500.
	MaxRecords int

	// SessionTimeout and RebalanceTimeout are those of the keepers' group; see
	// franzsource.Config. Default to 10 s and 30 s.
	SessionTimeout, RebalanceTimeout time.Duration

	// TLS encrypts all connections. If its ServerName is empty, each broker's host is used.
	// Defaults to plain connections.
	TLS *tls.Config

	// SASL authenticates all connections; see packages sasl/plain, sasl/scram and others of
	// franz-go. Defaults to no authentication.
	SASL sasl.Mechanism

	// Logger receives events that cannot be returned as an error. Keys and payloads are never
	// logged. Defaults to slog.Default(), at WARN and above.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.KeeperGroupID = cmp.Or(c.KeeperGroupID, c.GroupID+".keeper")
	c.ClientID = cmp.Or(c.ClientID, "onlyonce")
	c.MaxRecords = cmp.Or(c.MaxRecords, 500)
	c.Logger = fields.Logger(c.Logger)
	c.Brokers, c.Topics = slices.Clone(c.Brokers), slices.Clone(c.Topics)
	return c
}

// faults returns every fault of the configuration as the user wrote it.
func (c Config) faults() error {
	faults := kafkalog.Settings{Brokers: c.Brokers, GroupID: c.GroupID, Topics: c.Topics,
		SessionTimeout: c.SessionTimeout, RebalanceTimeout: c.RebalanceTimeout}.Faults("sharesource")
	if c.KeeperGroupID == c.GroupID && c.GroupID != "" {
		faults = append(faults, fmt.Errorf("sharesource: Config.KeeperGroupID: must not be GroupID, %q: a share group and a consumer group cannot have one name", c.GroupID))
	}
	if c.MaxRecords < 0 || c.MaxRecords > math.MaxInt32 {
		faults = append(faults, fmt.Errorf("sharesource: Config.MaxRecords: is %d: must be positive and fit into 32 bits, or 0 for the default", c.MaxRecords))
	}
	return errors.Join(faults...)
}

// keeper returns the configuration of the source that the keepers read.
func (c Config) keeper() franzsource.Config {
	return franzsource.Config{Brokers: c.Brokers, GroupID: c.KeeperGroupID, Topics: c.Topics, ClientID: c.ClientID,
		SessionTimeout: c.SessionTimeout, RebalanceTimeout: c.RebalanceTimeout, TLS: c.TLS, SASL: c.SASL, Logger: c.Logger}
}
