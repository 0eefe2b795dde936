package main

import "github.com/onlyonce/onlyonce/test/fleet"

// Kinds of blows.
const (
	// SIGKILL to a worker, in mid-batch if possible; another takes its place.
	blowKill = fleet.Kill
	// SIGSTOP to a worker for longer than its session, then SIGCONT: a zombie.
	blowFreeze    = "freeze"
	blowRebalance = "rebalance" // a worker joins, or leaves in order
	blowPostgres  = "postgres"  // SIGKILL to all of Postgres, then a restart
	blowBroker    = "broker"    // SIGKILL to a broker, then a restart
	blowFailover  = "failover"  // a standby that lacks the last commits is promoted
)

var (
	usual     = fleet.Shares{{blowRebalance, 10}, {blowFreeze, 10}, {blowPostgres, 6}, {blowBroker, 4}}
	failovers = fleet.Shares{{blowFailover, 30}, {blowRebalance, 10}, {blowFreeze, 10}, {blowBroker, 4}}
)
