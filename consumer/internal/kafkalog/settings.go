package kafkalog

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"slices"
	"time"
)

// Settings are the fields that the adapters' configurations have in common, under the same names.
// There they are explained.
type Settings struct {
	Brokers []string
	GroupID string
	Topics  []string

	SessionTimeout    time.Duration
	RebalanceTimeout  time.Duration
	HeartbeatInterval time.Duration

	FetchMaxBytes  int
	FetchMaxWait   time.Duration
	MaxRecordBytes int
}

// WithDefaults replaces zero values.
func (s Settings) WithDefaults() Settings {
	s.SessionTimeout = cmp.Or(s.SessionTimeout, 10*time.Second)
	s.RebalanceTimeout = cmp.Or(s.RebalanceTimeout, 30*time.Second)
	s.HeartbeatInterval = cmp.Or(s.HeartbeatInterval, min(s.SessionTimeout/3, 3*time.Second))
	s.FetchMaxWait = cmp.Or(s.FetchMaxWait, 500*time.Millisecond)
	s.FetchMaxBytes = cmp.Or(s.FetchMaxBytes, 1<<20)
	s.MaxRecordBytes = cmp.Or(s.MaxRecordBytes, 64<<20)
	return s
}

// Faults returns everything that is wrong with settings as the user wrote them, each naming a field
// of that package's Config.
func (s Settings) Faults(pkg string) []error {
	var faults []error
	fault := func(field, rule string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: Config.%s: %s", pkg, field, fmt.Sprintf(rule, args...)))
	}
	if len(s.Brokers) == 0 {
		fault("Brokers", "must not be empty: name at least one broker, as host:port")
	}
	for _, b := range s.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			fault("Brokers", "%q is not host:port", b)
		}
	}
	if s.GroupID == "" {
		fault("GroupID", "must not be empty: it is what the processes that share the work have in common")
	}
	if len(s.Topics) == 0 {
		fault("Topics", "must not be empty")
	}
	for i, t := range s.Topics {
		switch {
		case t == "":
			fault("Topics", "must not hold an empty name")
		case slices.Contains(s.Topics[:i], t):
			fault("Topics", "names %q twice", t)
		}
	}
	durations := []struct {
		field string
		value time.Duration
	}{
		{"SessionTimeout", s.SessionTimeout},
		{"RebalanceTimeout", s.RebalanceTimeout},
		{"HeartbeatInterval", s.HeartbeatInterval},
		{"FetchMaxWait", s.FetchMaxWait},
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
	if w := s.WithDefaults(); w.SessionTimeout > 0 && w.HeartbeatInterval >= w.SessionTimeout {
		fault("HeartbeatInterval",
			"is %v: must be below SessionTimeout, %v, and should be at most a third of it",
			w.HeartbeatInterval,
			w.SessionTimeout)
	}
	if s.FetchMaxBytes < 0 || s.FetchMaxBytes > math.MaxInt32 {
		fault("FetchMaxBytes", "is %d: must be positive and fit into 32 bits, or 0 for the default", s.FetchMaxBytes)
	}
	if s.MaxRecordBytes < 0 || s.MaxRecordBytes > math.MaxInt32 {
		fault("MaxRecordBytes", "is %d: must be positive and fit into 32 bits, or 0 for the default", s.MaxRecordBytes)
	}
	return faults
}
