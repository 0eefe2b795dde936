package main

import (
	"fmt"

	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// report is the outcome of a storm, and what -json prints.
type report struct {
	rig.Summary
	Events   int   `json:"answered"` // unique, each answered 200
	Requests int64 `json:"requests"`
	Refused  int64 `json:"refused"` // requests that were answered, and not with 200
	Forged   int   `json:"forged"`  // bodies that were answered 200 under another id
	Effects  int   `json:"effects"`
	Parked   int   `json:"parked"`
	Lost     int   `json:"lost"`
	Double   int   `json:"double"`
	Disorder int   `json:"disorder"`
	// Transactions that stored events, and the number of events of the largest.
	Sets       int `json:"sets"`
	LargestSet int `json:"largest_set"`

	KillsInWork int `json:"kills_in_work"` // kills in the middle of a request or batch
	Changes     int `json:"changes"`       // workers that joined or left in order
	Cuts        int `json:"cuts"`          // times that the connections to Postgres were cut
	Failovers   int `json:"failovers"`
}

// count copies what the run has counted.
func (r *report) count(s *storm) {
	r.Summary.Count(&s.Rig)
	r.NoClock = "not-played"
	if s.Standby == nil {
		r.NoStandby = "no-standby"
	}
	r.Events = int(s.senders.answered.Load())
	r.Requests = s.senders.requests.Load()
	r.Refused = s.senders.refused.Load()
	r.Forged = len(s.senders.forged)
	r.KillsInWork = s.Rig.KillsInBatch
	r.Changes = s.Struck[rig.KindChange]
	r.Cuts = s.Struck[blowCut]
	r.Failovers = s.Struck[blowFailover]
	r.PostgresKills += r.Failovers
}

// Details returns the errors of workers that gave up.
func (r *report) Details() []string { return r.Endings }

// Line returns the summary line.
func (r *report) Line(verdict string) string {
	return fmt.Sprintf(
		"storm-webhook %s seed=%d events=%d requests=%d refused=%d effects=%d lost=%d double=%d disorder=%d "+
			"forged=%d parked=%d sets=%d largest_set=%d"+
			" kills=%d kills_in_work=%d freezes=%d changes=%d cuts=%d failovers=%d postgres_kills=%d restarts=%d seconds=%.1f",
		verdict,
		r.Seed,
		r.Events,
		r.Requests,
		r.Refused,
		r.Effects,
		r.Lost,
		r.Double,
		r.Disorder,
		r.Forged,
		r.Parked,
		r.Sets,
		r.LargestSet,
		r.Kills,
		r.KillsInWork,
		r.Freezes,
		r.Changes,
		r.Cuts,
		r.Failovers,
		r.PostgresKills,
		r.Restarts,
		r.Seconds,
	)
}
