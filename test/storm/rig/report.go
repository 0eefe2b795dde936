package rig

import (
	"encoding/json"
	"fmt"
	"io"
)

// Report is the outcome of a storm, and what -json prints.
type Report interface {
	// Shared returns the part that every storm has.
	Shared() *Summary
	// Details returns lines that come before the summary line.
	Details() []string
	// Line returns the summary line with a verdict, for example "storm ok seed=7 ...".
	Line(verdict string) string
}

// Summary is the part of a report that every storm has.
type Summary struct {
	Seed        uint64 `json:"seed"`
	Kills       int    `json:"kills"`       // SIGKILLs to workers
	Freezes     int    `json:"freezes"`     // SIGSTOPs to workers, until others had their work
	Switchovers int    `json:"switchovers"` // times that the address led to a standby
	ClockSteps  int    `json:"clock_steps"` // times that Postgres' clock was a week ahead
	// Why there were none, if the machine lacks what they need.
	NoStandby string `json:"no_standby,omitempty"`
	NoClock   string `json:"no_clock,omitempty"`
	// The longest time without an effect, of the whole run and around a switchover, and from the
	// moment at which the address led to the primary again to the next effect; in seconds.
	Gap           float64 `json:"gap"`
	GapSwitchover float64 `json:"gap_switchover"`
	Resumed       float64 `json:"resumed"`

	PostgresKills int `json:"postgres_kills"` // SIGKILLs to Postgres, those of failovers included
	// Traps that have ended a worker, or let it hang, in a function other than the handler.
	Traps int `json:"traps"`
	// Workers that gave up without a server, and were started again.
	Restarts int `json:"restarts"`
	// From the beginning of the stream until all was settled.
	Seconds  float64  `json:"seconds"`
	OK       bool     `json:"ok"` // every invariant holds
	Breaches []string `json:"breaches,omitempty"`
	Error    string   `json:"error,omitempty"`   // why the run did not come to its end
	Endings  []string `json:"endings,omitempty"` // the errors of workers that gave up
	Postgres string   `json:"postgres"`          // what was used
}

// Shared returns the part that every storm has.
func (s *Summary) Shared() *Summary { return s }

// Count copies what the run has counted.
func (s *Summary) Count(r *Rig) {
	s.Kills = r.Struck[KindKill] + r.Fleet.StrayKills()
	s.Freezes = r.Struck[KindFreeze]
	s.PostgresKills = r.Struck[KindPostgres]
	s.Traps = r.Fleet.Trapped()
	s.Restarts = r.Fleet.Restarts()
	s.Endings = r.Fleet.Endings()
	s.Switchovers = r.Struck[KindSwitchover]
	s.ClockSteps = r.Struck[KindClock]
	if r.Clock == nil {
		s.NoClock = "no-libfaketime"
	}
	s.gaps(r)
}

// write prints what is wrong, and last the summary line.
func write(r Report, human, stdout io.Writer, asJSON bool) error {
	s := r.Shared()
	for _, b := range s.Breaches {
		_, _ = fmt.Fprintln(human, "BREACH", b)
	}
	verdict := "ok"
	if !s.OK {
		verdict = "BREACH"
		if s.Error != "" {
			verdict = "FAILED"
		}
	}
	for _, line := range r.Details() {
		_, _ = fmt.Fprintln(human, line)
	}
	if _, err := fmt.Fprintln(human, r.Line(verdict), s.gapLine()); err != nil || !asJSON {
		return err
	}
	return json.NewEncoder(stdout).Encode(r)
}
