package brake

import (
	"cmp"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Settings are a consumer.Brake, for whatever has one.
type Settings struct {
	Off                         bool
	Window, Percent, MinSamples int
	ProbeInterval               time.Duration
}

// WithDefaults fills in the zero values.
func (s Settings) WithDefaults() Settings {
	s.Window = cmp.Or(s.Window, 50)
	s.Percent = cmp.Or(s.Percent, 90)
	s.MinSamples = cmp.Or(s.MinSamples, min(20, s.Window))
	s.ProbeInterval = cmp.Or(s.ProbeInterval, 30*time.Second)
	return s
}

// Check notes what is wrong with settings that have their defaults. [fields.List.Signs] finds the
// rest.
func (s Settings) Check(l *fields.List) {
	if s.Percent > 100 {
		l.Add("Brake.Percent", "is %d: must be at most 100; Brake.Off switches the brake off", s.Percent)
	}
	if s.MinSamples > s.Window {
		l.Add("Brake.MinSamples", "is %d: must be at most Brake.Window, %d", s.MinSamples, s.Window)
	}
}

// New returns a window in which messages that were given up count as failed.
func (s Settings) New() *Window {
	return &Window{Off: s.Off, Size: s.Window, Percent: s.Percent, Least: s.MinSamples, Counts: GivenUp}
}

// GivenUp reports whether a message with this reason counts as failed. Conflicts are the producers'
// fault, and crashes have limits of their own.
func GivenUp(reason string) bool {
	return reason == parked.NoKey || reason == parked.TooOld || reason == parked.Permanent || reason == parked.Exhausted
}
