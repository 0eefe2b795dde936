package main

func shareTable() (all []entry) {
	base := shareScope{offsets: 2, txs: 2, limit: 2, fails: 1, expiries: 1}
	add := func(name, want string, nightly bool, change func(*shareScope)) {
		all = append(all, entry{"share/" + name, want, nightly, func() result {
			g := base
			change(&g)
			return explore(shareModel(&g))
		}})
	}
	lost := func(g *shareScope) { g.lost = 1 }
	crash := func(g *shareScope) { g.crashes = 1 }
	failover := func(g *shareScope) { g.failover = true }
	add("G1/an outcome is unknown", "", false, lost)
	add("G1/an outcome is unknown, old snapshots", "", false, func(g *shareScope) { lost(g); g.oldSnapshots = true })
	add("G1/crash, an outcome is unknown, 3 transactions", "", true, func(g *shareScope) { lost(g); crash(g); g.txs = 3 })
	add("G1/the share group is reset", "", false, func(g *shareScope) { g.reset, g.fails = true, 0 })
	add("G3/crash, the keeper parks", "", false, crash)
	add("G3/crash, ends well", "", false, func(g *shareScope) { crash(g); g.live, g.keeperApplies = true, true })
	add("G3/failover, the keeper applies", "", false, func(g *shareScope) { failover(g); g.keeperApplies = true })
	add("G3/failover, ends well", "", false, func(g *shareScope) { failover(g); g.live, g.keeperApplies, g.fails = true, true, 0 })
	add("G3/failover, an outcome is unknown, 3 transactions", "", true, func(g *shareScope) { failover(g); lost(g); g.txs = 3 })
	add("G4/3 records, 2 locks end", "", true, func(g *shareScope) { g.offsets, g.expiries = 3, 2 })
	add("G6/take-over", "", false, func(g *shareScope) { g.takeOvers = 1 })
	add("G6/take-over, old snapshots, an outcome is unknown", "", false, func(g *shareScope) { lost(g); g.takeOvers, g.oldSnapshots, g.fails = 1, true, 0 })
	add("G6/take-over, failover, an outcome is unknown, 3 transactions", "", true, func(g *shareScope) { lost(g); failover(g); g.takeOvers, g.txs, g.fails = 1, 3, 0 })
	plain := func(g *shareScope) { g.takeOvers, g.plain, g.fails = 1, true, 0 }
	add("G6/a plain owner takes over, an outcome is unknown", "", false, func(g *shareScope) { plain(g); lost(g) })
	add("G6/a plain owner takes over, old snapshots, an outcome is unknown", "", false, func(g *shareScope) { plain(g); lost(g); g.oldSnapshots = true })
	add("G6/a plain owner takes over, ends well", "", false, func(g *shareScope) { plain(g); g.live, g.keeperApplies = true, true })
	add("G6/a plain owner and a keeper take over, failover, an outcome is unknown", "", true, func(g *shareScope) { plain(g); lost(g); failover(g); g.takeOvers = 2 })
	add("G6/a plain owner and a keeper take over, old snapshots, 3 transactions", "", true, func(g *shareScope) { plain(g); g.takeOvers, g.oldSnapshots, g.txs = 2, true, 3 })

	fault := func(name, want string, scope func(*shareScope), seed func(*shareFaults)) {
		add(name, want, false, func(g *shareScope) { scope(g); seed(&g.faults) })
	}
	late := func(g *shareScope) { lost(g); g.fails = 0 }
	fault("G1/done without a primary key", "TWICE", late, func(f *shareFaults) { f.noKey = true })
	fault("G1/position not compared", "TWICE", late, func(f *shareFaults) { f.positionNotCompared = true })
	fault("G3/the keeper asks, and parks without the key", "AND parked", func(g *shareScope) { lost(g); crash(g); g.txs = 3 }, func(f *shareFaults) { f.keeperAsksOnly = true })
	fault("G3/nobody looks for what the broker gave up", "WEDGED", func(g *shareScope) { crash(g); g.live = true }, func(f *shareFaults) { f.neverLooks = true })
	fault("G3/nobody looks for what was acknowledged and lost", "WEDGED", func(g *shareScope) { failover(g); g.live, g.fails, g.expiries = true, 0, 0 },
		func(f *shareFaults) { f.neverLooks = true })
	fault("G4/position follows the broker", "LOST", crash, func(f *shareFaults) { f.positionFollowsBroker = true })
	fault("G4/pruned at once", "TWICE", late, func(f *shareFaults) { f.pruneAtOnce = true })
	fault("G4/position read before the transaction counts as open", "TWICE", late, func(f *shareFaults) { f.readBeforeBegin = true })
	fault("G4/old snapshots, pruning waits only for transactions with an id", "TWICE", func(g *shareScope) { late(g); g.oldSnapshots = true },
		func(f *shareFaults) { f.pruneByID = true })
	fault("G6/a plain owner does not wait for delivered messages", "TWICE", plain,
		func(f *shareFaults) { f.takeOverDoesNotWait = true })
	fault("G6/a member without an epoch", "TWICE", plain, func(f *shareFaults) { f.noEpoch = true })
	fault("G6/locked and read in one statement", "TWICE", plain, func(f *shareFaults) { f.oneStatement = true })
	fault("G6/old snapshots, the lease's row is not locked", "TWICE", func(g *shareScope) { plain(g); g.oldSnapshots = true },
		func(f *shareFaults) { f.noRowLock = true })
	return all
}
