package main

func relayTable() (all []entry) {
	base := relayScope{calls: 3, keys: [relayCalls]uint8{1, 1, 2}, writer: [relayCalls]uint8{0, 1, 2}, leases: 1, fails: 1}
	add := func(name, want string, nightly bool, change func(*relayScope)) {
		all = append(all, entry{"relay/" + name, want, nightly, func() result {
			g := base
			change(&g)
			return explore(relayModel(&g))
		}})
	}
	taken := func(g *relayScope) { g.leases = 2 }
	lost := func(g *relayScope) { g.lost = 1 }
	two := func(g *relayScope) {
		g.calls = 2
		g.keys = [relayCalls]uint8{1, 1}
	}
	apart := func(g *relayScope) {
		g.calls = 2
		g.keys = [relayCalls]uint8{0, 0}
	}
	pair := func(g *relayScope) {
		g.calls = 4
		g.keys = [relayCalls]uint8{1, 2, 1, 2}
		g.writer = [relayCalls]uint8{0, 0, 1, 1}
	}
	triple := func(g *relayScope) {
		g.calls = 4
		g.keys = [relayCalls]uint8{1, 2, 1, 1}
		g.writer = [relayCalls]uint8{0, 0, 0, 1}
	}
	held := func(g *relayScope) {
		g.lost = 1
		g.holds = 1
	}
	one := func(g *relayScope) {
		g.calls = 3
		g.keys = [relayCalls]uint8{1, 2, 1}
		g.writer = [relayCalls]uint8{0, 0, 0}
	}
	operator := func(g *relayScope) {
		g.rejects = true
		g.discard = 1
	}

	add("O2/3 transactions", "", true, func(*relayScope) {})
	add("O2/3 transactions, no call fails", "", false, func(g *relayScope) { g.fails = 0 })
	add("O2/3 transactions, transaction ids at any time", "", true, func(g *relayScope) { g.early = true })
	add("O2/2 batches of 2 calls", "", false, pair)
	add("O2/a batch of 3 calls, and one of 1", "", false, triple)
	add("O2/a batch of 3 calls, an outcome is unknown", "", false, func(g *relayScope) { one(g); lost(g) })
	add("O2/a batch of 3 calls, take-over", "", false, func(g *relayScope) { one(g); taken(g); g.fails = 0 })
	add("O2/a batch of 3 calls, take-over, an outcome is unknown", "", true, func(g *relayScope) { one(g); taken(g); lost(g) })
	add("O2/an outcome is unknown", "", false, func(g *relayScope) { two(g); lost(g); g.early = true })
	add("O2/a sink that takes no calls for a while, an outcome is unknown", "", false, func(g *relayScope) { two(g); held(g) })
	add("O4/a key, an operator, ends well", "", false, func(g *relayScope) {
		two(g)
		operator(g)
		g.fails = 2
		g.live = true
	})
	add("O4/a batch of 3 calls, an operator, ends well", "", false, func(g *relayScope) { one(g); operator(g); g.live = true })
	// A row is retrying only if it is the first of its key.
	add("O4/picked without asking for earlier calls of the key: holds too", "", false, func(g *relayScope) {
		one(g)
		operator(g)
		g.fails = 2
		g.faults.pickedOutOfTurn = true
	})
	add("O5/take-over", "", false, func(g *relayScope) { two(g); taken(g) })
	add("O5/take-over, an outcome is unknown, ends well", "", true, func(g *relayScope) {
		two(g)
		taken(g)
		lost(g)
		g.live = true
		g.fails = 0
	})
	add("O5/take-over, ends well", "", false, func(g *relayScope) {
		two(g)
		taken(g)
		g.live = true
		g.fails = 0
	})
	add("O5/the lane is given back", "", false, func(g *relayScope) { two(g); taken(g); g.drains = true })
	add("O5/the lane is given back, a batch of 3 calls, ends well", "", true, func(g *relayScope) {
		one(g)
		taken(g)
		g.live = true
		g.drains = true
		g.fails = 0
	})

	fault := func(name, want string, scope func(*relayScope), seed func(*relayFaults)) {
		add(name, want, false, func(g *relayScope) { scope(g); seed(&g.faults) })
	}
	early := func(g *relayScope) { two(g); g.early = true }
	fault("O2/transactions in progress at the pass before are ignored", "LOST", early, func(f *relayFaults) { f.inProgressIgnored = true })
	fault("O2/a pass goes by transaction ids", "ORDER", early, func(f *relayFaults) { f.byTransaction = true })
	fault(
		"O2/the next owner goes on with a target of its own",
		"LOST",
		func(g *relayScope) { early(g); taken(g) },
		func(f *relayFaults) { f.targetNotStored = true },
	)
	fault(
		"O2/last id is kept in the next pass",
		"LOST",
		func(g *relayScope) {
			g.keys = [relayCalls]uint8{}
			g.fails = 0
		},
		func(f *relayFaults) { f.lastKept = true },
	)
	fault("O2/a batch is read on from its first id", "LOST", pair, func(f *relayFaults) { f.batchByFirstID = true })
	fault("O2/last id of the whole batch", "LOST", pair, func(f *relayFaults) { f.lastOfBatch = true })
	fault(
		"O2/the rest of a pass is forgotten before the end of its chunk is committed",
		"LOST",
		func(g *relayScope) { apart(g); held(g) },
		func(f *relayFaults) { f.restForgotten = true },
	)
	fault(
		"O3/version not compared",
		"LOST",
		func(g *relayScope) { apart(g); lost(g) },
		func(f *relayFaults) { f.versionNotCompared = true },
	)
	fault(
		"O2/the rest of a chunk is begun while its end is unknown",
		"TWO",
		func(g *relayScope) { apart(g); lost(g) },
		func(f *relayFaults) { f.callsWhileUnknown = true },
	)
	fault("O4/id drawn before the lock", "ORDER", two, func(f *relayFaults) { f.idBeforeLock = true })
	fault(
		"O4/lock of the first call's key only",
		"ORDER",
		func(g *relayScope) { pair(g); g.keys = [relayCalls]uint8{1, 2, 2, 1} },
		func(f *relayFaults) { f.firstLockOnly = true },
	)
	fault("O4/read without asking which keys are blocked", "ORDER", two, func(f *relayFaults) { f.blockedNotAsked = true })
	fault(
		"O4/blocked keys asked once in a pass",
		"ORDER",
		func(g *relayScope) { g.keys = [relayCalls]uint8{1, 1, 1} },
		func(f *relayFaults) { f.blockedKept = true },
	)
	fault("O4/the next call of a key follows a failure", "ORDER", one, func(f *relayFaults) { f.followsFailure = true })
	fault("O4/a call under way is picked", "TWO", two, func(f *relayFaults) { f.pickedWhileUnderWay = true })
	fault(
		"O4/parked while under way, and due at once",
		"TWO",
		func(g *relayScope) { two(g); lost(g) },
		func(f *relayFaults) { f.cutDueAtOnce = true },
	)
	fault(
		"O4/keys under way not remembered, an operator",
		"ORDER",
		func(g *relayScope) { two(g); operator(g) },
		func(f *relayFaults) { f.keysUnderWayIgnored = true },
	)
	fault(
		"O4/the cursor moves before the calls are parked",
		"LOST",
		func(g *relayScope) { two(g); taken(g) },
		func(f *relayFaults) { f.cursorBeforeParking = true },
	)
	fault("O4/a call that takes long is not parked", "LOST", two, func(f *relayFaults) { f.lateNotParked = true })
	fault(
		"O5/a call that waits for its turn is not parked when the lane is given back",
		"LOST",
		func(g *relayScope) { one(g); taken(g); g.drains = true },
		func(f *relayFaults) { f.waitingNotParked = true },
	)
	fault(
		"O4/a settlement does not promote",
		wedged,
		func(g *relayScope) { two(g); g.live = true },
		func(f *relayFaults) {
			f.noPromoteSettled = true
			f.noSweep = true
		},
	)
	fault(
		"O4/a relay that parks behind another call does not promote",
		wedged,
		func(g *relayScope) { two(g); g.live = true },
		func(f *relayFaults) {
			f.noPromoteBehind = true
			f.noSweep = true
		},
	)
	fault(
		"O4/nobody looks for calls that wait for nothing",
		wedged,
		func(g *relayScope) { two(g); taken(g); g.live = true },
		func(f *relayFaults) { f.noSweep = true },
	)
	fault("O5/the lease is not held", "ZOMBIE", func(g *relayScope) { two(g); taken(g) }, func(f *relayFaults) { f.noHold = true })
	fault(
		"O5/take-over does not wait for the lease's lock",
		"ZOMBIE",
		func(g *relayScope) { two(g); taken(g) },
		func(f *relayFaults) { f.raiseDoesNotWait = true },
	)
	return all
}
