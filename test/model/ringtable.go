package main

func ringTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*ringScope)) {
		all = append(all, entry{"ring/" + name, want, nightly, func() result {
			g := ringScope{slots: 3, claimers: 2, keys: 1, segments: 4, claims: 2, rotators: 2, leases: 2}
			change(&g)
			return explore(ringModel(&g))
		}})
	}
	one := func(g *ringScope) {
		g.rotators = 1
		g.leases = 1
	}
	filters := func(g *ringScope) {
		one(g)
		g.filters = true
		g.keep = 1
		g.segments = 5
	}
	pair := func(g *ringScope) {
		one(g)
		g.keys = 2
		g.claims = 1
	}

	add("K4/2 claimers, a claim each, 1 rotator", "", false, func(g *ringScope) { one(g); g.claims = 1 })
	add("K4/2 claimers, 2 claims each, 1 rotator", "", false, one)
	add("K4/2 claimers, a claim each, 2 rotators", "", true, func(g *ringScope) { g.claims = 1 })
	add("K4/2 claimers, 2 claims each, 2 rotators", "", true, func(*ringScope) {})
	add("K4/3 claimers, a claim each, 2 rotators", "", true, func(g *ringScope) {
		g.claimers = 3
		g.claims = 1
	})
	add("K4/5 slots, 2 segments kept, 7 segments, 1 rotator", "", true, func(g *ringScope) {
		one(g)
		g.slots = 5
		g.keep = 2
		g.segments = 7
	})
	add("K4/2 keys in a claim, no deadlock", "", false, pair)
	add("K4/2 keys in a claim, 3 claimers, no deadlock", "", false, func(g *ringScope) { pair(g); g.claimers = 3 })
	add("K5/filters, a claim each, 1 rotator", "", false, func(g *ringScope) { filters(g); g.claims = 1 })
	add("K5/filters, 2 claims each, 1 rotator", "", true, filters)

	fault := func(name, want string, scope func(*ringScope), seed func(*ringFaults)) {
		add(name, want, false, func(g *ringScope) { scope(g); seed(&g.faults) })
	}
	full := func(g *ringScope) { g.segments = 5 }
	fault("K4/row read before the claim has an id", "DOUBLE", full, func(f *ringFaults) { f.stateBeforeID = true })
	fault("K4/closed without waiting for writers", "DOUBLE", full, func(f *ringFaults) { f.closeAtOnce = true })
	fault("K4/truncated without waiting for readers", "DOUBLE", one, func(f *ringFaults) { f.truncateAtOnce = true })
	add("K4/truncated whatever the row says", "IN USE", true, func(g *ringScope) { full(g); g.faults.truncateUnchecked = true })
	fault("K4/steps check neither lease nor version", "DOUBLE", full, func(f *ringFaults) { f.stepsUnchecked = true })
	fault("K4/announced while a segment drains", "DOUBLE", full, func(f *ringFaults) { f.announceWhileDraining = true })
	fault("K4/not inserted into the draining segment", "DOUBLE", full, func(f *ringFaults) { f.drainingSkipped = true })
	fault("K4/a conflict in the draining segment ignored", "DOUBLE", full, func(f *ringFaults) { f.drainingIgnored = true })
	fault("K4/closed segments not asked", "DOUBLE", full, func(f *ringFaults) { f.closedSkipped = true })
	fault("K1/an uncommitted copy taken for a duplicate", "FALSE", full, func(f *ringFaults) { f.uncommittedIsDuplicate = true })
	fault("K4/keys of a claim not sorted", "DEADLOCK", pair, func(f *ringFaults) { f.unsorted = true })
	add("K5/a filter of the slot, not of its close", "DOUBLE", true, func(g *ringScope) { filters(g); g.faults.filterOfSlot = true })
	fault("K5/a filter believed without a query", "FALSE", filters, func(f *ringFaults) { f.filterTrusted = true })
	return all
}
