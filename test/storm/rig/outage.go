package rig

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/fleet"
)

// Kinds of blows that spare the processes.
const (
	// KindSwitchover makes the address of Postgres lead to a standby for some seconds, and then to
	// the primary again. The sockets to the primary break when it begins, as by a restart; those to
	// the standby stay open when it ends.
	KindSwitchover = "switchover"
	// KindClock makes Postgres' clock a week ahead for some seconds.
	KindClock = "clock"
)

// Twin names each standby in turn.
const Twin = "twin"

// outageLasts is how long a switchover and a step of the clock last at least: longer than the
// leases.
const outageLasts = 4 * time.Second

// HostPort returns a server's host and port.
func HostPort(p *devenv.Postgres) string {
	u, err := url.Parse(p.URL)
	if err != nil {
		panic(err) // devenv made it
	}
	return u.Host
}

// KillPostgres kills a server, and starts it again when it was down for so long.
func KillPostgres(ctx context.Context, p *devenv.Postgres, down time.Duration) error {
	if err := p.Kill(ctx); err != nil {
		return err
	}
	fleet.Pause(ctx, down)
	return p.Restart(ctx)
}

// SwitchOver is a [KindSwitchover]. Without a standby, which not every machine can make, it does
// nothing.
func (r *Rig) SwitchOver(ctx context.Context, f *Forwarder, primary, standby *devenv.Postgres, more time.Duration) error {
	if standby == nil {
		return nil
	}
	if err := primary.CaughtUp(ctx, Twin); err != nil {
		return err
	}
	begun := time.Now()
	f.Cut(HostPort(standby))
	fleet.Pause(ctx, outageLasts+more)
	f.Lead(HostPort(primary))
	r.switchovers = append(r.switchovers, fleet.Gap{From: begun, To: time.Now()})
	return nil
}

// storedSQL reads how many seconds after a time the next event was stored. In: the time. Out: one
// row; null: none was.
const storedSQL = `select extract(epoch from min(appended_at) - $1)::float8 from onlyonce.event_log where appended_at > $1`

// FirstStored returns the longest time from the end of a switchover, when the address led to the
// primary again, to the next event that was stored, in seconds. Events of the run must still be in
// the log.
func (r *Rig) FirstStored(ctx context.Context, db *Database) (longest float64, err error) {
	for _, o := range r.switchovers {
		var seconds *float64
		if err := db.Pool.QueryRow(ctx, storedSQL, o.To).Scan(&seconds); err != nil {
			return 0, err
		}
		if seconds != nil {
			longest = max(longest, *seconds)
		}
	}
	return longest, nil
}

// FailOver kills the primary, promotes its standby, and makes the address lead there. promoted is
// called before anything reaches the new primary. The old one is the caller's to stop.
func FailOver(ctx context.Context, f *Forwarder, primary, standby *devenv.Postgres, promoted func() error) error {
	if err := primary.Kill(ctx); err != nil {
		return err
	}
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	if err := promoted(); err != nil {
		return err
	}
	f.Cut(HostPort(standby))
	return nil
}

// gaps says how long nothing took effect.
func (s *Summary) gaps(r *Rig) {
	for _, g := range r.Fleet.Gaps() {
		s.Gap = max(s.Gap, g.To.Sub(g.From).Seconds())
		for _, o := range r.switchovers {
			if g.From.Before(o.To) && g.To.After(o.From) {
				s.GapSwitchover = max(s.GapSwitchover, g.To.Sub(g.From).Seconds())
				s.Resumed = max(s.Resumed, g.To.Sub(o.To).Seconds())
			}
		}
	}
}

// gapLine is the part of the summary line about traps and outages. It names what the machine has
// no means for.
func (s *Summary) gapLine() string {
	without := func(what string, n int, missing string) string {
		if missing != "" {
			return what + "=" + missing
		}
		return fmt.Sprintf("%s=%d", what, n)
	}
	return fmt.Sprintf(
		"traps=%d %s %s gap=%.1f gap_switchover=%.1f resumed=%.1f",
		s.Traps,
		without("switchovers", s.Switchovers, s.NoStandby),
		without("clock_steps", s.ClockSteps, s.NoClock),
		s.Gap,
		s.GapSwitchover,
		s.Resumed,
	)
}

// Clock makes a Postgres' clock one that [Rig.StepClock] moves, by libfaketime.
type Clock struct{ library, file string }

// libraries are where distributions install libfaketime.
var libraries = []string{
	"/usr/lib/*/faketime/libfaketime.so.1",
	"/usr/lib*/faketime/libfaketime.so.1",
	"/usr/local/lib/faketime/libfaketime.so.1",
}

// NewClock returns nil if the machine has no libfaketime.
func NewClock() (*Clock, error) {
	for _, pattern := range libraries {
		found, _ := filepath.Glob(pattern) // fails on a bad pattern only
		if len(found) == 0 {
			continue
		}
		f, err := os.CreateTemp("/tmp", "onlyonce-storm-*.clock") // where the server's user reads it
		if err != nil {
			return nil, err
		}
		c := &Clock{found[0], f.Name()}
		if err := f.Close(); err != nil {
			return nil, err
		}
		if err := os.Chmod(c.file, 0o644); err != nil {
			return nil, err
		}
		return c, c.set("+0")
	}
	return nil, nil
}

// Env is what a server's environment needs. The server reads the file once a second.
func (c *Clock) Env() []string {
	if c == nil {
		return nil
	}
	return []string{
		"LD_PRELOAD=" + c.library,
		"FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_CACHE_DURATION=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
		"FAKETIME_DISABLE_SHM=1",
	}
}

func (c *Clock) set(offset string) error {
	return os.WriteFile(c.file, []byte(offset+"\n"), 0o644) //nolint:gosec // another user reads it
}

// Close removes the file.
func (c *Clock) Close() error {
	if c == nil {
		return nil
	}
	return os.Remove(c.file)
}

// StepClock is a [KindClock]. Without libfaketime it does nothing.
func (r *Rig) StepClock(ctx context.Context, more time.Duration) error {
	if r.Clock == nil {
		return nil
	}
	begun := time.Now()
	if err := r.Clock.set("+7d"); err != nil {
		return err
	}
	fleet.Pause(ctx, outageLasts+more)
	err := r.Clock.set("+0")
	fleet.Pause(ctx, 2*time.Second) // until each backend has read it
	r.ClockAhead += time.Since(begun)
	return err
}
