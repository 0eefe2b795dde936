package main

import (
	"fmt"

	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// report is the outcome of a storm, and what -json prints. The names are the project's (see
// docs/rules/words.md).
type report struct {
	rig.Summary
	Unique    int `json:"unique"`    // distinct message ids
	Produced  int `json:"produced"`  // records in the log, copies included
	Delivered int `json:"delivered"` // times the handler was entered
	Effects   int `json:"effects"`   // rows of effect
	// Records suppressed because their id was claimed.
	Duplicates   int `json:"duplicates"`
	Redelivered  int `json:"redelivered"`    // records that a second worker began with
	Parked       int `json:"parked"`         // messages set aside, and still so at the end
	Retried      int `json:"retried"`        // messages set aside, and applied from there
	KillsInBatch int `json:"kills_in_batch"` // kills in the middle of a batch
	// How many of them were handled while a message was tried again from the database.
	KillsInRetry int `json:"kills_in_retry"`
	Rebalances   int `json:"rebalances"`   // workers that joined or left in order
	BrokerKills  int `json:"broker_kills"` // SIGKILLs to a broker
	Failovers    int `json:"failovers"`    // promotions of a standby
	// Records whose effects failovers have lost, and that were done again.
	Lost int64 `json:"lost"`
	// Effects of workers of the next version, with -mixed.
	NextEffects int    `json:"next_effects"`
	Source      string `json:"source"` // what workers consume through
	Policy      string `json:"policy"` // what becomes of messages that fail
	// Transactions of a partition at once.
	Concurrency int    `json:"concurrency"`
	Isolation   string `json:"isolation"`
	PgBouncer   bool   `json:"pgbouncer"`
	Kafka       string `json:"kafka"` // what was used
}

// count copies what the run has counted.
func (r *report) count(s *storm) {
	r.Summary.Count(&s.Rig)
	r.PostgresKills += s.Struck[blowFailover]
	r.Rebalances = s.Struck[blowRebalance]
	r.BrokerKills = s.Struck[blowBroker]
	r.Failovers = s.Struck[blowFailover]
	if s.standby == nil {
		r.NoStandby = "no-standby"
	}
	r.KillsInBatch = s.inBatch
	r.KillsInRetry = s.inRetry
	for _, m := range s.marks {
		r.Lost += m.lost
	}
}

// Details returns nothing: the summary line has all of it.
func (r *report) Details() []string { return nil }

// Line returns the summary line.
func (r *report) Line(verdict string) string {
	return fmt.Sprintf(
		"storm %s seed=%d unique=%d produced=%d delivered=%d effects=%d duplicates=%d redelivered=%d "+
			"parked=%d retried=%d kills=%d kills_in_batch=%d"+
			" kills_in_retry=%d freezes=%d rebalances=%d postgres_kills=%d broker_kills=%d failovers=%d "+
			"lost=%d next_effects=%d restarts=%d source=%s policy=%s seconds=%.1f concurrency=%d isolation=%q pgbouncer=%t",
		verdict,
		r.Seed,
		r.Unique,
		r.Produced,
		r.Delivered,
		r.Effects,
		r.Duplicates,
		r.Redelivered,
		r.Parked,
		r.Retried,
		r.Kills,
		r.KillsInBatch,
		r.KillsInRetry,
		r.Freezes,
		r.Rebalances,
		r.PostgresKills,
		r.BrokerKills,
		r.Failovers,
		r.Lost,
		r.NextEffects,
		r.Restarts,
		r.Source,
		r.Policy,
		r.Seconds,
		r.Concurrency,
		r.Isolation,
		r.PgBouncer,
	)
}
