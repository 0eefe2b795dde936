package main

// adversaryRules are repairs that the adversary must miss if they are taken out: its relevant
// histories must end in a breach.
var adversaryRules = []mutant{
	{rule: "T4 adversary: pruning does not wait", file: "consumer/prune.go",
		old: "return slices.Contains(open, t) }) {", new: "return false }) {",
		pkg: "./test/adversary", test: "TestT4LateDelivery"},
	{rule: "T7 adversary: fence and claim without a bound", file: "consumer/attempt.go",
		old: "	before, cancel := e.c.bounded(work) // up to the handler", new: "	before, cancel := context.WithCancel(work)",
		pkg: "./test/adversary", test: "TestT7SilenceBeforeTheHandler"},
	{rule: "T7 adversary: an operator's transaction without a bound", file: "ops/decide.go",
		old: "set_config('idle_in_transaction_session_timeout', $2, true)`", new: "$2::text`",
		pkg: "./test/adversary", test: "TestT7SilenceDuringADecision"},
	{rule: "O8 adversary: no wait before close", file: "internal/ring/steps.go",
		old: "		if !passed {\n			return StepResult{Action: Waiting, Slot: *st.draining}", new: "		if false {\n			return StepResult{Action: Waiting, Slot: *st.draining}",
		pkg: "./test/adversary", test: "TestO8RotatorThatIsCutOff"},
	{rule: "S1 adversary: a relay's start without a bound", file: "outbox/relay.go",
		old: "asking, asked := context.WithTimeout(ctx, pace.Start)", new: "asking, asked := context.WithTimeout(ctx, 1000*pace.Start)",
		pkg: "./test/adversary", test: "TestS1SilentServerAtTheStart/relay"},
	{rule: "S1 adversary: a source's start without a bound", file: "internal/eventsource/source.go",
		old: "ctx, cancel := context.WithTimeout(ctx, pace.Start)", new: "ctx, cancel := context.WithTimeout(ctx, 1000*pace.Start)",
		pkg: "./test/adversary", test: "TestS1SilentServerAtTheStart/consumer"},
	{rule: "E3 adversary: a fetch without a bound", file: "internal/eventsource/partition.go",
		old: "min(p.s.cfg.LeaseTTL, readTimeout)", new: "1000*p.s.cfg.LeaseTTL+0*readTimeout",
		pkg: "./test/adversary", test: "TestE3SilentServerAtTheFetch"},
	{rule: "G1 adversary: what is done does not exclude", file: schemaConsumer,
		old: "      from unnest(fence_share.offsets, fence_share.hashes) with ordinality u (o, h, n) order by u.o;\n",
		new: "      from unnest(fence_share.offsets, fence_share.hashes) with ordinality u (o, h, n) order by u.o on conflict do nothing;\n",
		pkg: "./test/adversary", test: "TestG1CommitIsNotAnswered"},
	{rule: "N1 adversary: other databases are not asked", file: "shard/home.go",
		old: "		if err := s.checkOthers(ctx, db, place); err != nil {", new: "		if err := error(nil); err != nil {",
		pkg: "./test/adversary", test: "TestN1RegistrationIsCutOff"},
}
