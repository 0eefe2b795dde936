package main

import (
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/ops"
)

// writeOwners shows a line for each process, and one for each partition that a living process
// reports as halted, or as waiting for a Kafka transaction.
func (a *app) writeOwners(owners []ops.Owner) {
	var rows [][]string
	var halts []string
	for _, o := range owners {
		lag, halted, last := int64(0), 0, ""
		var youngest *float64
		for _, p := range o.Partitions {
			lag += p.Lag
			if p.LastBatchAge != nil && (youngest == nil || *p.LastBatchAge < *youngest) {
				youngest = p.LastBatchAge
			}
			if p.WaitingFor > 0 && !o.Silent() {
				halts = append(halts, fmt.Sprintf("waiting: %s %s/%d, at offset %d for %s: a Kafka transaction is open", o.Scope, p.Topic, p.Partition, p.LastStable, ago(p.WaitingFor+o.SeenAgeSeconds)))
			}
			if p.Halted == "" {
				continue
			}
			halted++
			if !o.Silent() {
				halts = append(halts, fmt.Sprintf("halted: %s %s/%d, %s for %s: %s", o.Scope, p.Topic, p.Partition, p.Halted, ago(p.HaltedFor+o.SeenAgeSeconds), p.Detail))
			}
		}
		if youngest != nil {
			last = ago(*youngest+o.SeenAgeSeconds) + " ago"
		}
		seen := ago(o.SeenAgeSeconds) + " ago"
		if o.Silent() {
			seen += " (silent)"
		}
		rows = append(rows, []string{o.Scope, o.Host, strconv.Itoa(int(o.PID)), seen, strconv.Itoa(len(o.Partitions)), number(lag), last, strconv.Itoa(halted)})
	}
	_, _ = fmt.Fprintf(a.out, "\nProcesses: %d\n", len(owners))
	a.section([]string{"SCOPE", "HOST", "PID", "SEEN", "PARTITIONS", "LAG", "LAST BATCH", "HALTED"}, rows)
	for _, h := range halts {
		_, _ = fmt.Fprintln(a.out, h)
	}
}
