package eventsource

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// ErrConfig is wrapped by every error about a configuration.
var ErrConfig = errors.New("eventsource")

// Config configures a [Source]. The zero value of a field is the default that its comment names. A
// value out of range is an error and never adjusted.
type Config struct {
	// Group names the consumers that work together: its members share the partitions, and have one
	// scope. At most 200 bytes. Defaults to the consumer's scope.
	Group string

	// Topics are the streams to read. Required.
	Topics []string

	// Partitions is how many partitions a stream of Topics gets if it does not exist yet: up to
	// 1,024. Defaults to 0: every stream must exist.
	Partitions int

	// PollInterval is how often members look for events without a notification if they have found
	// none for a while, and for members that came or went: at least 10 ms. An event that another
	// process has appended waits for a fiftieth of the time since the event before it, at least a
	// twentieth of PollInterval and at most all of it. Defaults to 500 ms.
	PollInterval time.Duration

	// LeaseTTL is how long the partitions of a dead member have no holder: 1 s to 1 hour. Members
	// renew their leases after a third of it. Defaults to 15 s.
	LeaseTTL time.Duration

	// HandoverTimeout is how long work on a partition may go on after the partition is due to
	// another member: at least 100 ms. After that, the member releases the lease even if the work
	// has not ended. Do not set it below the time that a stop may take: docs/operations/deploy.md,
	// "How long a stop takes". Defaults to 30 s.
	HandoverTimeout time.Duration

	// FetchBytes is how many bytes one fetch reads; the last event may exceed it. Defaults to 1
	// MiB.
	FetchBytes int

	// Retention is how long events are kept that every consumer has passed, for example for
	// replays: at least 1 ms. An event that a consumer has not passed is kept for longer. Defaults
	// to 7 days.
	Retention time.Duration

	// SegmentBytes is the size at which a segment of the log is followed by another one, in bytes.
	// There are six segments. Defaults to 256 MiB.
	SegmentBytes int64

	// Logger receives events that cannot be returned as an error. Defaults to slog.Default(), at
	// WARN and above.
	Logger *slog.Logger
}

const maxGroup = 200

// Fault is one fault of a Config. It wraps ErrConfig.
type Fault struct {
	Field  string // "Config.Group"
	Reason string
}

// NewSourceFor is NewSource for a package that has these settings in a configuration of its own.
// Its faults wrap the sentinel, and begin with the name of its struct; renamed has the fields that
// have other names there. Faults of the pool and of the topics are left to the package's own
// checks.
func NewSourceFor(pool *pgxpool.Pool, cfg Config, sentinel error, structName string, renamed map[string]string) (*Source, error) {
	l := &fields.List{}
	events, err := NewSource(pool, cfg)
	for _, one := range fields.Split(err) {
		var f *Fault
		if !errors.As(one, &f) {
			l.Join(one)
			continue
		}
		field := strings.TrimPrefix(f.Field, "Config.")
		switch field {
		case "Topics", "pool":
			continue
		}
		l.Join(fmt.Errorf("%w: %s.%s: %s", sentinel, structName, cmp.Or(renamed[field], field), f.Reason))
	}
	return events, l.Err()
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
		*d = cmp.Or(*d, def)
		if *d < least {
			fault("Config."+field, "is %v: must be at least %v", *d, least)
		}
	}
	if pool == nil {
		fault("pool", "must not be nil")
	}
	if len(c.Group) > maxGroup || !isStorable(c.Group) {
		fault("Config.Group", "must be at most %d bytes of UTF-8 without NUL: it names who consumes together", maxGroup)
	}
	if len(c.Topics) == 0 {
		fault("Config.Topics", "must not be empty")
	}
	for i, topic := range c.Topics {
		switch {
		case !validTopic.MatchString(topic):
			fault("Config.Topics", "%q must be 1 to 249 of A-Z a-z 0-9 . _ -", topic)
		case slices.Contains(c.Topics[:i], topic):
			fault("Config.Topics", "%q is listed twice", topic)
		}
	}
	if c.Partitions < 0 || c.Partitions > maxPartitions {
		fault("Config.Partitions", "is %d: must be from 0 to %d", c.Partitions, maxPartitions)
	}
	duration("PollInterval", &c.PollInterval, 500*time.Millisecond, 10*time.Millisecond)
	duration("LeaseTTL", &c.LeaseTTL, 15*time.Second, time.Second)
	if c.LeaseTTL > time.Hour {
		fault("Config.LeaseTTL", "%v is above %v", c.LeaseTTL, time.Hour)
	}
	duration("HandoverTimeout", &c.HandoverTimeout, 30*time.Second, 100*time.Millisecond)
	duration("Retention", &c.Retention, 7*24*time.Hour, time.Millisecond)
	c.FetchBytes = cmp.Or(c.FetchBytes, 1<<20)
	if c.FetchBytes < 0 {
		fault("Config.FetchBytes", "%d is negative", c.FetchBytes)
	}
	if c.SegmentBytes < 0 {
		fault("Config.SegmentBytes", "%d is negative", c.SegmentBytes)
	}
	c.Logger = fields.Logger(c.Logger)
	return c, errors.Join(faults...)
}

// rotation returns the settings of the ring's rotator.
func (c Config) rotation() ring.Config {
	return ring.Config{
		Retention: c.Retention, MaxAge: max(c.Retention/4, time.Millisecond), MaxBytes: c.SegmentBytes, LeaseTTL: c.LeaseTTL, Interval: time.Second,
		Timeout: max(c.LeaseTTL/3, time.Second),
		Hooks: ring.Hooks{
			Stepped: func(o ring.StepResult) {
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
