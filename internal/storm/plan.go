package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Kinds of blows.
const (
	blowKill      = "kill"      // SIGKILL to a worker, in mid-batch where one is met; another takes its place
	blowFreeze    = "freeze"    // SIGSTOP to a worker for longer than its session, then SIGCONT: a zombie
	blowRebalance = "rebalance" // a worker joins, or leaves in order
	blowPostgres  = "postgres"  // SIGKILL to all of Postgres, then a restart
	blowBroker    = "broker"    // SIGKILL to a broker, then a restart
	blowFailover  = "failover"  // a standby that lacks the last commits is promoted
)

// blow is one event of a storm.
type blow struct {
	kind string
	at   float64       // how much of the stream must be handled before it comes, as a share
	wait time.Duration // how long a server stays down, or a worker stands still beyond its session
}

// shares are how many of a hundred blows are of a kind; the others are kills.
type shares []struct {
	kind    string
	percent int
}

var (
	usual     = shares{{blowRebalance, 10}, {blowFreeze, 10}, {blowPostgres, 6}, {blowBroker, 4}}
	failovers = shares{{blowFailover, 30}, {blowRebalance, 10}, {blowFreeze, 10}, {blowBroker, 4}}
)

// makePlan draws n blows, spread over the stream. From eight on each kind is among them.
func makePlan(n int, of shares, random *rand.Rand) []blow {
	var kinds []string
	for _, s := range of {
		count := (n*s.percent + 50) / 100
		if n >= 8 {
			count = max(count, 1)
		}
		kinds = append(kinds, slices.Repeat([]string{s.kind}, count)...)
	}
	for len(kinds) < n {
		kinds = append(kinds, blowKill)
	}
	kinds = kinds[:n]
	random.Shuffle(n, func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	plan := make([]blow, n)
	for i, kind := range kinds {
		plan[i] = blow{kind: kind, at: (float64(i) + 0.2 + 0.6*random.Float64()) / float64(n+1), wait: time.Duration(random.IntN(1000)) * time.Millisecond}
	}
	return plan
}
