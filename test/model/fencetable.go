package main

func fenceTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*fenceScope)) {
		all = append(all, entry{"fence/" + name, want, nightly, func() result {
			g := fenceScope{offsets: 2, generations: 2}
			change(&g)
			return explore(fenceModel(&g))
		}})
	}
	add("F2/2 generations, 2 offsets", "", false, func(*fenceScope) {})
	add("F2/3 generations, 2 offsets", "", true, func(g *fenceScope) { g.generations = 3 })
	add("F2/2 generations, 3 offsets", "", true, func(g *fenceScope) { g.offsets = 3 })
	add("T4/1 member, old snapshots", "", false, func(g *fenceScope) {
		g.generations = 1
		g.oldSnapshots = true
	})
	add("T4/old snapshots", "", true, func(g *fenceScope) { g.oldSnapshots = true })
	add("T4/old snapshots, 3 offsets", "", true, func(g *fenceScope) {
		g.oldSnapshots = true
		g.offsets = 3
	})
	add("F1/1 member, lossy failover", "", false, func(g *fenceScope) {
		g.generations = 1
		g.failover = true
	})
	add("F1/lossy failover", "", true, func(g *fenceScope) { g.failover = true })
	add("F1/lossy failover, 3 generations", "", true, func(g *fenceScope) {
		g.failover = true
		g.generations = 3
	})

	add("T2/a fence that fails does not raise", "TWICE", false, func(g *fenceScope) { g.noRaise = true })
	add("T4/position not compared", "TWICE", false, func(g *fenceScope) { g.noPosition = true })
	add("T4/two rows from one offset", "TWICE", false, func(g *fenceScope) { g.noKey = true })
	add("T4/rows pruned at once", "TWICE", false, func(g *fenceScope) { g.pruneAtOnce = true })
	add("T4/old snapshots, pruning waits only for transactions with an id", "TWICE", false, func(g *fenceScope) {
		g.oldSnapshots = true
		g.pruneByID = true
	})
	add("T4/an unknown COMMIT taken for a success", "BEYOND", false, func(g *fenceScope) { g.unknownIsSuccess = true })
	add("T4/any position of mine taken for a success, failover", "BEYOND", false, func(g *fenceScope) {
		g.anyRowIsMine = true
		g.failover = true
		g.offsets = 3
	})
	add("F1/epoch without nonce, failover", "ZOMBIE", false, func(g *fenceScope) {
		g.epochOnly = true
		g.failover = true
		g.generations = 3
	})
	add("F2/owner not compared", "ZOMBIE", false, func(g *fenceScope) { g.noOwner = true })
	add("F2/take-over does not wait for the owner's lock", "ZOMBIE", false, func(g *fenceScope) { g.noLock = true })
	add("F2/locked and read in one statement", "ZOMBIE", false, func(g *fenceScope) { g.oneStatement = true })
	add("F2/old snapshots, the lease's row is not locked", "ZOMBIE", false, func(g *fenceScope) {
		g.oldSnapshots = true
		g.noRowLock = true
	})
	add("F2/take-over commits before it locks", "ZOMBIE", false, func(g *fenceScope) { g.raiseBeforeLock = true })
	add("F2/take-over without proof of membership", "FENCED", false, func(g *fenceScope) { g.raiseWithoutProof = true })
	return all
}
