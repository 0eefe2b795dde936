package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// report is the outcome of a storm, and what -json prints. The names are the project's (see
// docs/glossary.md).
type report struct {
	Seed      uint64 `json:"seed"`
	Unique    int    `json:"unique"`    // distinct message ids
	Produced  int    `json:"produced"`  // records in the log, copies included
	Delivered int    `json:"delivered"` // times the handler was entered
	Effects   int    `json:"effects"`   // rows of effect
	// Records suppressed because their id was claimed.
	Duplicates   int `json:"duplicates"`
	Redelivered  int `json:"redelivered"`    // records that a second worker began with
	Parked       int `json:"parked"`         // messages set aside, and still so at the end
	Retried      int `json:"retried"`        // messages set aside, and applied from there
	Kills        int `json:"kills"`          // SIGKILLs to workers
	KillsInBatch int `json:"kills_in_batch"` // of them in the middle of a batch
	// How many of them were handled while a message was tried again from the database.
	KillsInRetry int `json:"kills_in_retry"`
	Freezes      int `json:"freezes"`    // SIGSTOPs to workers, beyond their session
	Rebalances   int `json:"rebalances"` // workers that joined or left in order
	// SIGKILLs to Postgres, those of failovers included.
	PostgresKills int `json:"postgres_kills"`
	BrokerKills   int `json:"broker_kills"` // SIGKILLs to a broker
	Failovers     int `json:"failovers"`    // promotions of a standby
	// Records whose effects failovers have lost, and that were done again.
	Lost int64 `json:"lost"`
	// Workers that gave up without a server, and were started again.
	Restarts int      `json:"restarts"`
	Seconds  float64  `json:"seconds"` // from the first record until all were handled
	OK       bool     `json:"ok"`      // every invariant holds
	Breaches []string `json:"breaches,omitempty"`
	Error    string   `json:"error,omitempty"`   // why the run did not come to its end
	Endings  []string `json:"endings,omitempty"` // the errors of workers that gave up
	Source   string   `json:"source"`            // what workers consume through
	Policy   string   `json:"policy"`            // what becomes of messages that fail
	Postgres string   `json:"postgres"`          // what was used
	Kafka    string   `json:"kafka"`             //
}

// count copies what the run has counted.
func (r *report) count(s *storm) {
	r.Kills, r.KillsInBatch, r.Freezes, r.Rebalances = s.struck[blowKill]+s.fleet.StrayKills(), s.inBatch, s.struck[blowFreeze], s.struck[blowRebalance]
	r.Failovers, r.BrokerKills, r.PostgresKills = s.struck[blowFailover], s.struck[blowBroker], s.struck[blowPostgres]+s.struck[blowFailover]
	r.Restarts, r.Endings, r.KillsInRetry = s.fleet.Restarts(), s.fleet.Endings(), s.inRetry
	for _, m := range s.marks {
		r.Lost += m.lost
	}
}

// write prints what is wrong, and last the summary line.
func (r report) write(human, stdout io.Writer, asJSON bool) error {
	for _, b := range r.Breaches {
		_, _ = fmt.Fprintln(human, "BREACH", b)
	}
	verdict := "ok"
	if !r.OK {
		verdict = "BREACH"
		if r.Error != "" {
			verdict = "FAILED"
		}
	}
	_, err := fmt.Fprintf(human, "storm %s seed=%d unique=%d produced=%d delivered=%d effects=%d duplicates=%d redelivered=%d parked=%d retried=%d kills=%d kills_in_batch=%d"+
		" kills_in_retry=%d freezes=%d rebalances=%d postgres_kills=%d broker_kills=%d failovers=%d lost=%d restarts=%d source=%s policy=%s seconds=%.1f\n",
		verdict, r.Seed, r.Unique, r.Produced, r.Delivered, r.Effects, r.Duplicates, r.Redelivered, r.Parked, r.Retried, r.Kills, r.KillsInBatch, r.KillsInRetry,
		r.Freezes, r.Rebalances, r.PostgresKills, r.BrokerKills, r.Failovers, r.Lost, r.Restarts, r.Source, r.Policy, r.Seconds)
	if err != nil || !asJSON {
		return err
	}
	return json.NewEncoder(stdout).Encode(r)
}
