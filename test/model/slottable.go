package main

func slotTable() (all []entry) {
	base := slotScope{
		slots:     2,
		offsets:   3,
		txs:       2,
		takeOvers: 0,
		pairs:     true,
		keys:      [2][slotOffsets]uint8{{0, 1, 0, 1, 0}, {0, 1, 0, 1, 0}},
	}
	add := func(name, want string, nightly bool, change func(*slotScope)) {
		all = append(all, entry{"slots/" + name, want, nightly, func() result {
			g := base
			change(&g)
			return explore(slotModel(&g))
		}})
	}
	lost := func(g *slotScope) { g.lost = 1 }
	taken := func(g *slotScope) { g.takeOvers = 1 }
	parks := func(g *slotScope) {
		g.parking = true
		g.fails = 2
		g.keys = [2][slotOffsets]uint8{{0, 0, 1}, {0, 0, 1}}
	}
	single := func(g *slotScope) {
		g.slots = 1
		g.txs = 3
		g.pairs = false
		g.lost = 1
	}
	aab := [slotOffsets]uint8{0, 0, 1, 0, 1}

	add("C1/an outcome is unknown (L1)", "", false, lost)
	add("C1/an outcome is unknown, old snapshots", "", false, func(g *slotScope) { lost(g); g.oldSnapshots = true })
	add("C1/an outcome is unknown, handlers fail, 4 messages", "", true, func(g *slotScope) {
		lost(g)
		g.offsets = 4
		g.fails = 1
	})
	add("C1/the same, old snapshots", "", true, func(g *slotScope) {
		lost(g)
		g.offsets = 4
		g.fails = 1
		g.oldSnapshots = true
	})
	add("C1/3 slots, 5 messages, an outcome is unknown", "", true, func(g *slotScope) {
		lost(g)
		g.slots = 3
		g.offsets = 5
		g.txs = 3
		g.pairs = false
	})
	add("C3/take-over (L2)", "", false, taken)
	add("C3/take-over, old snapshots", "", false, func(g *slotScope) { taken(g); g.oldSnapshots = true })
	add("C3/take-over, crash, an outcome is unknown", "", true, func(g *slotScope) { taken(g); lost(g); g.crash = true; g.txs = 3 })
	add("C3/take-over, ends well", "", false, func(g *slotScope) {
		taken(g)
		g.live = true
		g.pairs = false
	})
	add("C4/failover (L3)", "", false, func(g *slotScope) { g.failover = true })
	add("C4/failover, ends well", "", false, func(g *slotScope) {
		g.failover = true
		g.live = true
	})
	add("C4/failover, an outcome is unknown, handlers fail", "", true, func(g *slotScope) {
		lost(g)
		g.failover = true
		g.fails = 1
		g.txs = 3
	})
	add("C4/failover, take-over, an outcome is unknown", "", true, func(g *slotScope) {
		lost(g)
		taken(g)
		g.failover = true
		g.pairs = false
	})
	add("C4/failover, 4 messages, old snapshots", "", true, func(g *slotScope) {
		g.failover = true
		g.offsets = 4
		g.oldSnapshots = true
		g.pairs = false
	})
	add("C4/compacted log, take-over, ends well", "", false, func(g *slotScope) {
		taken(g)
		g.live = true
		g.pairs = false
		g.holes = 2
		g.anyOrder = true
	})
	add("C5/one slot, a late transaction (L4)", "", false, func(g *slotScope) { single(g) })
	add("C5/one slot, a late transaction, old snapshots", "", false, func(g *slotScope) { single(g); g.oldSnapshots = true })
	add("C6/parked keys, an outcome is unknown (L6)", "", true, func(g *slotScope) { parks(g); lost(g) })
	add("C6/parked keys, take-over", "", true, func(g *slotScope) { parks(g); taken(g) })
	add("C6/parked keys, failover", "", false, func(g *slotScope) { parks(g); g.failover = true })
	add("C6/parked keys, failover, an outcome is unknown", "", true, func(g *slotScope) { parks(g); lost(g); g.failover = true })
	add("C6/parked keys, ends well", "", false, func(g *slotScope) { parks(g); g.live = true })
	add("C7/replay and its end (L9)", "", false, func(g *slotScope) {
		taken(g)
		g.replay = true
		g.pairs = false
	})
	add("C7/replay and its end, an outcome is unknown", "", true, func(g *slotScope) { taken(g); lost(g); g.replay = true })
	add("C7/back to a Concurrency of 1", "", false, func(g *slotScope) {
		taken(g)
		g.one = true
		g.pairs = false
	})
	add("C7/back to a Concurrency of 1, an outcome is unknown", "", true, func(g *slotScope) { taken(g); lost(g); g.one = true })
	add("C7/another ordering key, exactness only", "", false, func(g *slotScope) { taken(g); g.anyOrder = true; g.keys[1] = aab })
	add("C7/another ordering key, an outcome is unknown", "", true, func(g *slotScope) {
		taken(g)
		lost(g)
		g.anyOrder = true
		g.keys[1] = aab
	})
	add("C8/truncated log (L10)", "", false, func(g *slotScope) { taken(g); g.truncate = true })

	fault := func(name, want string, scope func(*slotScope), seed func(*slotFaults)) {
		add(name, want, false, func(g *slotScope) { scope(g); seed(&g.faults) })
	}
	failover := func(g *slotScope) { g.failover = true }
	replayed := func(g *slotScope) {
		taken(g)
		g.replay = true
		g.pairs = false
	}
	toOne := func(g *slotScope) {
		taken(g)
		g.one = true
		g.pairs = false
	}
	fault(
		"C1/done without a primary key (L1)",
		"TWICE",
		func(g *slotScope) {
			lost(g)
			g.fails = 1
			g.txs = 3
		},
		func(f *slotFaults) { f.noKey = true },
	)
	fault("C2/halves at once, predecessors not asked for (L1)", "ORDER", func(g *slotScope) {
		lost(g)
		g.keys[0] = aab
		g.keys[1] = aab
	},
		func(f *slotFaults) {
			f.secondHalfFirst = true
			f.noPredecessors = true
		})
	fault("C2/predecessors not asked for, failover (L3)", "ORDER", failover, func(f *slotFaults) { f.noPredecessors = true })
	fault("C2/a key in two hands, predecessors not asked for (L6)", "ORDER", lost, func(f *slotFaults) {
		f.keyInTwoHands = true
		f.noPredecessors = true
	})
	fault("C3/take-over does not wait for the owner's lock (L2)", "ZOMBIE", taken, func(f *slotFaults) { f.raiseDoesNotWait = true })
	fault("C3/locked and read in one statement (L2)", "ZOMBIE", taken, func(f *slotFaults) { f.comparedBeforeLock = true })
	fault(
		"C3/old snapshots, the lease's row is not locked (L2)",
		"ZOMBIE",
		func(g *slotScope) { taken(g); g.oldSnapshots = true },
		func(f *slotFaults) { f.noRowLock = true },
	)
	fault(
		"T14/the lease's row alone is locked",
		"OVERTAKEN",
		func(g *slotScope) { taken(g); g.oldSnapshots = true },
		func(f *slotFaults) { f.rowInsteadOfLock = true },
	)
	fault("C4/position moved over what a process remembers (L3)", "LOST", failover, func(f *slotFaults) { f.sweepFromMemory = true })
	fault(
		"C4/an owner at rest never looks, failover (L3)",
		"WEDGED",
		func(g *slotScope) {
			g.failover = true
			g.live = true
		},
		func(f *slotFaults) { f.neverLooks = true },
	)
	fault("C5/pruned at once (L4)", "TWICE", single, func(f *slotFaults) { f.pruneAtOnce = true })
	fault("C5/position read before the transaction counts as open (L4)", "TWICE", single, func(f *slotFaults) { f.readBeforeBegin = true })
	fault("C5/position not compared (L4)", "TWICE", single, func(f *slotFaults) { f.positionNotCompared = true })
	fault(
		"C5/old snapshots, pruning waits only for transactions with an id (L4)",
		"TWICE",
		func(g *slotScope) { single(g); g.oldSnapshots = true },
		func(f *slotFaults) { f.pruneByID = true },
	)
	fault("C5/pruned by what was swept before a failover (L4)", "TWICE", failover, func(f *slotFaults) { f.pruneFromMemory = true })
	fault("C6/blocked keys from memory (L6)", "ORDER", parks, func(f *slotFaults) { f.blockedFromMemory = true })
	fault("C7/a replay keeps the rows in its own run (L9)", "LOST", replayed, func(f *slotFaults) { f.replayKeepsRows = true })
	fault("C7/the end of a replay drops the rows (L9)", "TWICE", replayed, func(f *slotFaults) { f.replayDropsRows = true })
	fault(
		"C7/a replay does not fence out (L9)",
		"RUN",
		func(g *slotScope) { g.replay = true },
		func(f *slotFaults) { f.comparedBeforeLock = true },
	)
	fault("C7/one transaction at a time beside rows (L9)", "TWICE", toOne, func(f *slotFaults) { f.chainBesideRows = true })
	fault(
		"C7/from slots to one at a time in the same epoch (L9)",
		"TWICE",
		func(g *slotScope) {
			toOne(g)
			g.slots = 1
			g.txs = 3
			g.lost = 1
			g.fails = 1
		},
		func(f *slotFaults) { f.chainInSameEpoch = true },
	)
	fault(
		"C8/only the position's own record compared (L10)",
		"PASSED",
		func(g *slotScope) { taken(g); g.truncate = true },
		func(f *slotFaults) { f.noHashes = true },
	)
	return all
}
