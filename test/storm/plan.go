package main

import (
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// Kinds of blows, beside those of every storm.
const (
	blowRebalance = "rebalance" // a worker joins, or leaves in order
	blowBroker    = "broker"    // SIGKILL to a broker, then a restart
	blowFailover  = "failover"  // a standby that lacks the last commits is promoted
)

var (
	usual = fleet.Shares{
		{blowRebalance, 10},
		{rig.KindFreeze, 10},
		{rig.KindPostgres, 6},
		{blowBroker, 4},
		{rig.KindSwitchover, 4},
		{rig.KindClock, 3},
	}
	failovers = fleet.Shares{{blowFailover, 30}, {blowRebalance, 10}, {rig.KindFreeze, 10}, {blowBroker, 4}}
)
