package webhook

import (
	"cmp"
	"context"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/primary"
)

var validEndpoint = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// SourceConfig configures a [Source]. The zero value of a field is the default that its comment
// names; a value out of range is an error of [NewSource].
type SourceConfig struct {
	// Group names the consumers that share the partitions. They have one scope. Consumers with
	// scopes of their own each handle every event, and need groups of their own. At most 200 bytes.
	// Defaults to the consumer's Scope.
	Group string
	// Endpoints are the endpoints to read, by their [Config].Name. Required.
	Endpoints []string
	// Partitions is the number of partitions if this process is the first to use the stream; see
	// [Config].Partitions. Defaults to 16.
	Partitions int
	// PollInterval is how often the source polls for events without a wake-up, for example those of
	// other processes, and for members that joined or left. Defaults to 500 ms.
	PollInterval time.Duration
	// LeaseTTL is how long the partitions of a dead member stay without an owner, from 1 s to 1
	// hour. Defaults to 15 s.
	LeaseTTL time.Duration
	// HandoverTimeout is how long a member may finish its running work on a partition before
	// another member takes over. Defaults to 30 s.
	HandoverTimeout time.Duration
	// Retention is how long events are kept after every consumer has passed them, for replays.
	// Events that a consumer has not passed are kept for longer. Defaults to 7 days.
	Retention time.Duration
	// SegmentBytes is the size, in bytes, at which the log starts another segment. There are six.
	// Defaults to 256 MiB.
	SegmentBytes int64
	// Logger receives events that cannot be returned as an error. Defaults to slog.Default(), at
	// WARN and above.
	Logger *slog.Logger
}

// Source reads the stored events of endpoints for a consumer. An [Endpoint] is a source itself.
// Make a Source for a consumer of several endpoints, or for a worker process without secrets:
//
//	source, err := webhook.NewSource(pool, webhook.SourceConfig{Endpoints: []string{"stripe", "adyen"}})
//	worker, err := consumer.New(pool, source, consumer.HandlerFunc(handle), consumer.Config{Scope: "billing"})
//
// The members of a group share the partitions. Each has one Source, for one Run. An endpoint of the
// same process wakes it after each commit; for events of other processes it polls.
type Source struct{ *eventsource.Source }

var (
	_ consumer.Source = (*Source)(nil)
	_ claimed.Source  = (*Source)(nil)
)

// NewSource checks the configuration and returns every fault of it at once. It does not connect.
func NewSource(pool *pgxpool.Pool, cfg SourceConfig) (*Source, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "SourceConfig"}
	l.Join(primary.CheckPool(ErrConfig, pool))
	if len(cfg.Endpoints) == 0 {
		l.Add("Endpoints", "must not be empty: name the endpoints whose events are read")
	}
	topics := make([]string, len(cfg.Endpoints))
	for i, endpoint := range cfg.Endpoints {
		topics[i] = Topic(endpoint)
		switch {
		case !validEndpoint.MatchString(endpoint):
			l.Add("Endpoints", "%q must be 1 to 100 of A-Z a-z 0-9 . _ -", endpoint)
		case slices.Contains(cfg.Endpoints[:i], endpoint):
			l.Add("Endpoints", "%q must not be listed twice", endpoint)
		}
	}
	cfg.Partitions = cmp.Or(cfg.Partitions, 16)
	s, err := eventsource.NewSourceFor(pool, eventsource.Config{
		Group:           cfg.Group,
		Topics:          topics,
		Partitions:      cfg.Partitions,
		PollInterval:    cfg.PollInterval,
		LeaseTTL:        cfg.LeaseTTL,
		HandoverTimeout: cfg.HandoverTimeout,
		Retention:       cfg.Retention,
		SegmentBytes:    cfg.SegmentBytes,
		Logger:          cfg.Logger,
	}, ErrConfig, "SourceConfig", nil)
	l.Join(err)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Source{s}, nil
}

// Run implements consumer.Source.
func (s *Source) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return s.Source.Run(ctx, own)
}
