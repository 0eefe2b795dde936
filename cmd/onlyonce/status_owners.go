package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// ownersSQL lists the consumer processes that have written what they know of their partitions, by scope. A process that was killed leaves
// its row for a day.
const ownersSQL = `
select scope, host, pid, started_at, seen_at, extract(epoch from clock_timestamp() - seen_at)::float8 as seen_age_seconds, partitions
  from onlyonce.owners order by scope, host, pid, started_at`

// silentAfter is the age from which a process's row says nothing of the present: it writes one every 10 seconds.
const silentAfter = 30 * time.Second

type ownerRow struct {
	Scope          string    `json:"scope"`
	Host           string    `json:"host"`
	PID            int32     `json:"pid"`
	StartedAt      time.Time `json:"started_at"`
	SeenAt         time.Time `json:"seen_at"`
	SeenAgeSeconds float64   `json:"seen_age_seconds"`

	Partitions json.RawMessage `json:"partitions"`
}

// ownedPartition is an element of onlyonce.owners.partitions; ages are in seconds at seen_at.
type ownedPartition struct {
	Topic        string   `json:"topic"`
	Partition    int32    `json:"partition"`
	Lag          int64    `json:"lag"`
	Paused       bool     `json:"paused"`
	Halted       string   `json:"halted"`
	Detail       string   `json:"detail"`
	HaltedFor    float64  `json:"halted_for"`
	LastBatchAge *float64 `json:"last_batch_age"`
	LastStable   int64    `json:"last_stable"`
	WaitingFor   float64  `json:"waiting_for"`
}

func (o *ownerRow) silent() bool { return o.SeenAgeSeconds > silentAfter.Seconds() }

// writeOwners shows a line for each process, and one for each partition that a living one reports as halted, or as waiting for a Kafka transaction.
func (a *app) writeOwners(owners []ownerRow) error {
	var rows [][]string
	var halts []string
	for _, o := range owners {
		var all []ownedPartition
		if err := json.Unmarshal(o.Partitions, &all); err != nil {
			return fmt.Errorf("onlyonce.owners.partitions of %s, pid %d: %w", o.Host, o.PID, err)
		}
		lag, halted, last := int64(0), 0, ""
		var youngest *float64
		for _, p := range all {
			lag += p.Lag
			if p.LastBatchAge != nil && (youngest == nil || *p.LastBatchAge < *youngest) {
				youngest = p.LastBatchAge
			}
			if p.WaitingFor > 0 && !o.silent() {
				halts = append(halts, fmt.Sprintf("waiting: %s %s/%d, at offset %d for %s: a Kafka transaction is open", o.Scope, p.Topic, p.Partition, p.LastStable, ago(p.WaitingFor+o.SeenAgeSeconds)))
			}
			if p.Halted == "" {
				continue
			}
			halted++
			if !o.silent() {
				halts = append(halts, fmt.Sprintf("halted: %s %s/%d, %s for %s: %s", o.Scope, p.Topic, p.Partition, p.Halted, ago(p.HaltedFor+o.SeenAgeSeconds), p.Detail))
			}
		}
		if youngest != nil {
			last = ago(*youngest+o.SeenAgeSeconds) + " ago"
		}
		seen := ago(o.SeenAgeSeconds) + " ago"
		if o.silent() {
			seen += " (silent)"
		}
		rows = append(rows, []string{o.Scope, o.Host, strconv.Itoa(int(o.PID)), seen, strconv.Itoa(len(all)), number(lag), last, strconv.Itoa(halted)})
	}
	_, _ = fmt.Fprintf(a.out, "\nProcesses: %d\n", len(owners))
	a.section([]string{"SCOPE", "HOST", "PID", "SEEN", "PARTITIONS", "LAG", "LAST BATCH", "HALTED"}, rows)
	for _, h := range halts {
		_, _ = fmt.Fprintln(a.out, h)
	}
	return nil
}

func ago(seconds float64) string {
	return max(0, time.Duration(seconds*float64(time.Second))).Round(time.Second).String()
}
