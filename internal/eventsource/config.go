package eventsource

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// ErrConfig is wrapped by every error about a configuration.
var ErrConfig = errors.New("eventsource: bad configuration")

// Config says what a [Source] reads, and how. The zero value of a field is the default that its
// comment names; a value out of range is an error and never adjusted.
type Config struct {
	// Group names who consumes together: its members share the partitions. Required, at most 200
	// bytes.
	Group string

	// Topics are the streams to read. Required.
	Topics []string

	// Partitions is how many partitions a stream of Topics gets that is not there yet. 0: it must
	// be there.
	Partitions int

	// PollInterval is how often the members look for events that nobody has told of, and for
	// members that came or went. Default 500 ms, at least 10 ms. It bounds how long an event waits
	// that another process has appended.
	PollInterval time.Duration

	// LeaseTTL is how long the partitions of a member that died are nobody's. Default 15 s, from 1
	// s to 1 hour. Renewed at a third of it.
	LeaseTTL time.Duration

	// HandoverTimeout is how long a partition that another member is to have may go on until what
	// is under way has ended. Default 30 s, at least 100 ms. Then the lease is released all the
	// same. Keep it not below what letting go may take: docs/operations.md, "How long a stop
	// takes".
	HandoverTimeout time.Duration

	// FetchBytes is how much one fetch reads, and one event more. Default 1 MiB.
	FetchBytes int

	// Retention is how long events are kept that every consumer has passed: for replays. Default 7
	// days, at least 1 ms. What a consumer has not passed is kept for longer.
	Retention time.Duration

	// SegmentBytes is the size at which a segment of the log is followed by another one. Default
	// 256 MiB. There are six.
	SegmentBytes int64

	// Logger receives what no caller is there to be told. Nil: nothing is logged.
	Logger *slog.Logger
}

const maxGroup = 200

// Fault is one fault of a Config. It wraps ErrConfig.
type Fault struct {
	Field  string // "Config.Group"
	Reason string
}

func (f *Fault) Error() string { return fmt.Sprintf("%v: %s: %s", ErrConfig, f.Field, f.Reason) }
func (f *Fault) Unwrap() error { return ErrConfig }

// withDefaults fills in the zero values and returns every fault at once.
func (c Config) withDefaults(pool *pgxpool.Pool) (Config, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, &Fault{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	duration := func(field string, d *time.Duration, def, least time.Duration) {
		if *d == 0 {
			*d = def
		}
		if *d < least {
			fault("Config."+field, "%v is not at least %v", *d, least)
		}
	}
	if pool == nil {
		fault("pool", "must not be nil")
	}
	if c.Group == "" || len(c.Group) > maxGroup || !storable(c.Group) {
		fault("Config.Group", "must be 1 to %d bytes of UTF-8 without NUL: it names who consumes together", maxGroup)
	}
	if len(c.Topics) == 0 {
		fault("Config.Topics", "must not be empty")
	}
	for i, topic := range c.Topics {
		switch {
		case !validTopic.MatchString(topic):
			fault("Config.Topics", "%q must be 1 to 249 of A-Z a-z 0-9 . _ -", topic)
		case slices.Contains(c.Topics[:i], topic):
			fault("Config.Topics", "%q stands there twice", topic)
		}
	}
	if c.Partitions < 0 || c.Partitions > maxPartitions {
		fault("Config.Partitions", "%d is not from 0 to %d", c.Partitions, maxPartitions)
	}
	duration("PollInterval", &c.PollInterval, 500*time.Millisecond, 10*time.Millisecond)
	duration("LeaseTTL", &c.LeaseTTL, 15*time.Second, time.Second)
	if c.LeaseTTL > time.Hour {
		fault("Config.LeaseTTL", "%v is above %v", c.LeaseTTL, time.Hour)
	}
	duration("HandoverTimeout", &c.HandoverTimeout, 30*time.Second, 100*time.Millisecond)
	duration("Retention", &c.Retention, 7*24*time.Hour, time.Millisecond)
	if c.FetchBytes == 0 {
		c.FetchBytes = 1 << 20
	}
	if c.FetchBytes < 0 {
		fault("Config.FetchBytes", "%d is negative", c.FetchBytes)
	}
	if c.SegmentBytes < 0 {
		fault("Config.SegmentBytes", "%d is negative", c.SegmentBytes)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, errors.Join(faults...)
}

// rotation is what the ring's rotator is told.
func (c Config) rotation() ring.Config {
	return ring.Config{
		Retention: c.Retention, MaxAge: max(c.Retention/4, time.Millisecond), MaxBytes: c.SegmentBytes, LeaseTTL: c.LeaseTTL, Interval: time.Second,
		Timeout: max(c.LeaseTTL/3, time.Second),
		Hooks: ring.Hooks{
			Stepped: func(o ring.Outcome) {
				switch o.Action {
				case ring.Truncated:
					c.Logger.Info("onlyonce: a segment of the event log whose retention has passed was emptied", "slot", o.Slot)
				case ring.Needed, ring.Full:
					c.Logger.Warn("onlyonce: the event log grows", "slot", o.Slot, "why", o.Why)
				}
			},
			Failed: func(err error) { c.Logger.Warn("onlyonce: rotating the event log failed", "error", err) },
		},
	}
}
