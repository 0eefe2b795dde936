package main

func parkTable() (all []entry) {
	add := func(name, want string, change func(*parkScope)) {
		all = append(all, entry{"parking/" + name, want, false, func() result {
			g := parkScope{messages: 3, failures: 2, crashes: 1, discards: true}
			change(&g)
			return explore(parkModel(&g))
		}})
	}
	copies := func(g *parkScope) {
		g.messages = 2
		g.copies = true
	}
	old := func(g *parkScope) { copies(g); g.older = true }

	add("D4/3 messages, 2 failures, a crash", "", func(*parkScope) {})
	add("D4/3 messages, 3 failures, 2 crashes", "", func(g *parkScope) {
		g.failures = 3
		g.crashes = 2
	})
	add("D4/nothing crashes, and no owner looks for rows", "", func(g *parkScope) {
		g.crashes = 0
		g.noSweep = true
	})
	add("K7/a copy of message 0", "", copies)
	add("K7/a copy, after the key was forgotten", "", old)

	add("D4/the worker does not look whether a key is blocked", "INVERTED", func(g *parkScope) { g.noLook = true })
	add("D4/an attempt settles its row at its end", "AND parked", func(g *parkScope) { g.settleLast = true })
	add("D4/a worker that parks behind does not promote", wedged, func(g *parkScope) {
		g.noPromoteBehind = true
		g.crashes = 0
		g.noSweep = true
	})
	add("D4/an attempt that settles does not promote", wedged, func(g *parkScope) {
		g.noPromoteSettled = true
		g.crashes = 0
		g.noSweep = true
	})
	add("D4/no owner looks for rows that wait for nothing", wedged, func(g *parkScope) { g.noSweep = true })
	add("K7/parking does not claim the key, and claims look at parked rows first", "AND parked", func(g *parkScope) {
		copies(g)
		g.parkWithoutClaim = true
		g.probeFirst = true
	})
	add("K7/claims do not look at parked rows", "AND parked", func(g *parkScope) { old(g); g.noProbe = true })
	add("K7/claims look at parked rows first", "AND parked", func(g *parkScope) { old(g); g.probeFirst = true })
	add("K7/an attempt does not claim the key again", "TWICE", func(g *parkScope) { old(g); g.settleWithoutKey = true })
	add("K7/an attempt takes its claimed key for a duplicate", "LOST", func(g *parkScope) { copies(g); g.conflictIsDuplicate = true })
	add("K7/giving up does not claim the key again", "AND given up", func(g *parkScope) { old(g); g.discardWithout = true })
	return all
}
