package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// SourceConfig says what a [Source] reads. The zero value of a field is the default that its comment names; a value out of range is an error
// of [NewSource].
type SourceConfig struct {
	// Group names who consumes together: its members share the partitions. Required, at most 200 bytes.
	Group string
	// Endpoints are those whose events are read, by their [Config].Name. Required.
	Endpoints []string
	// Partitions is the number that [Config].Partitions describes, if this process is the first. Defaults to 16.
	Partitions int
	// PollInterval is how often is looked for events that nobody has told of, and for members that came or went. Default 500 ms.
	PollInterval time.Duration
	// LeaseTTL is how long the partitions of a member that died are nobody's. Default 15 s, from 1 s to 1 hour.
	LeaseTTL time.Duration
	// HandoverTimeout is how long a partition that another member is to have may go on until what is under way has ended. Default 30 s.
	HandoverTimeout time.Duration
	// Retention is how long events are kept that every consumer has passed: for replays. Default 7 days. What a consumer has not passed is
	// kept for longer.
	Retention time.Duration
	// SegmentBytes is the size at which a segment of the log is followed by another one. Default 256 MiB. There are six.
	SegmentBytes int64
	// Logger receives what no caller is there to be told. Nil: nothing is logged.
	Logger *slog.Logger
}

// Source is the stored events of endpoints as a consumer reads them. An [Endpoint] has one of its own; make one for a
// consumer that reads several endpoints, or for a worker process that has no secrets:
//
//	source, err := webhook.NewSource(pool, webhook.SourceConfig{Group: "billing", Endpoints: []string{"stripe", "adyen"}})
//	worker, err := consumer.New(pool, source, handle, consumer.Config{Scope: "billing"})
//
// Members of a group share the partitions; each has one Source, for one Run. Name it in [Config].Sources of endpoints in the same
// process: it is then woken by each new event, and polls otherwise.
type Source struct{ *eventsource.Source }

var _ consumer.EventSource = (*Source)(nil)

// NewSource checks the configuration and returns every fault of it at once. It does not connect.
func NewSource(pool *pgxpool.Pool, cfg SourceConfig) (*Source, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	if len(cfg.Endpoints) == 0 {
		fault("SourceConfig.Endpoints", "must not be empty: name the endpoints whose events are read")
	}
	topics := make([]string, len(cfg.Endpoints))
	for i, endpoint := range cfg.Endpoints {
		topics[i] = Topic(endpoint)
		switch {
		case !validEndpoint.MatchString(endpoint):
			fault("SourceConfig.Endpoints", "%q must be 1 to 100 of A-Z a-z 0-9 . _ -", endpoint)
		case slices.Contains(cfg.Endpoints[:i], endpoint):
			fault("SourceConfig.Endpoints", "%q is there twice", endpoint)
		}
	}
	if cfg.Partitions == 0 {
		cfg.Partitions = 16
	}
	s, err := eventsource.NewSource(pool, eventsource.Config{Group: cfg.Group, Topics: topics, Partitions: cfg.Partitions, PollInterval: cfg.PollInterval,
		LeaseTTL: cfg.LeaseTTL, HandoverTimeout: cfg.HandoverTimeout, Retention: cfg.Retention, SegmentBytes: cfg.SegmentBytes, Logger: cfg.Logger})
	for _, one := range split(err) {
		var f *eventsource.Fault
		switch {
		case !errors.As(one, &f):
			faults = append(faults, one)
		case f.Field == "Config.Topics": // told above, by the endpoint
		default:
			fault(strings.Replace(f.Field, "Config.", "SourceConfig.", 1), "%s", f.Reason)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &Source{s}, nil
}

// split takes the faults of a configuration apart.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the outermost is errors.Join's
		return joined.Unwrap()
	}
	return []error{err}
}

// Run implements consumer.Source.
func (s *Source) Run(ctx context.Context, own func(context.Context, consumer.Partition) error) error {
	return s.Source.Run(ctx, own)
}
