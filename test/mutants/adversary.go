package main

// adversaryRules are repairs that the adversary must miss if they are taken out: its relevant
// histories must end in a breach.
var adversaryRules = []mutant{
	{rule: "T4 adversary: pruning does not wait", in: "consumer", decl: "(*pruning).step",
		old: "slices.Contains(open, t)", new: "false", pkg: "test/adversary", test: "TestT4LateDelivery"},
	{rule: "T7 adversary: fence and claim without a bound", in: "consumer", decl: "(*engine).fillTransaction",
		old: "e.c.bounded(work)", new: "context.WithCancel(work)", pkg: "test/adversary", test: "TestT7SilenceBeforeTheHandler"},
	{
		rule: "T7 adversary: an operator's transaction without a bound",
		in:   "internal/reports",
		decl: "BoundsSQL",
		old:  "set_config('idle_in_transaction_session_timeout', $2, true)",
		new:  "$2::text",
		pkg:  "test/adversary",
		test: "TestT7SilenceDuringADecision",
	},
	{rule: "S1 adversary: a relay's start without a bound", in: "outbox", decl: "(*Relay).Run",
		old: "process.AtStart(ctx)", new: "context.WithCancel(ctx)", pkg: "test/adversary", test: "TestS1SilentServerAtTheStart/relay"},
	{rule: "S1 adversary: a source's start without a bound", in: "internal/eventsource", decl: "(*Source).checkStreams",
		old: "process.AtStart(ctx)", new: "context.WithCancel(ctx)", pkg: "test/adversary", test: "TestS1SilentServerAtTheStart/consumer"},
	{rule: "S1 a consumer's start bounded by its statements", in: "consumer", decl: "(*Consumer).checkDatabases",
		old: "process.AtStart(ctx)", new: "c.bounded(ctx)", test: "TestS1StartHasABoundOfItsOwn"},
	{
		rule: "E3 adversary: a fetch without a bound",
		in:   "internal/eventsource",
		decl: "(*partition).bounded",
		old:  "min(p.s.cfg.LeaseTTL, readTimeout)",
		new:  "1000*p.s.cfg.LeaseTTL+0*readTimeout",
		pkg:  "test/adversary",
		test: "TestE3SilentServerAtTheFetch",
	},
	{rule: "C1 adversary: what is done does not exclude", in: schema, decl: "function onlyonce.fence_slot",
		old: "u.o; end $$;", new: "u.o on conflict do nothing; end $$;", pkg: "test/adversary", test: "TestC1CommitIsNotAnswered"},
	{rule: "N1 adversary: other databases are not asked", in: "shard", decl: "(*Set).register",
		old: "s.checkOthers(ctx, db, place)", new: "error(nil)", pkg: "test/adversary", test: "TestN1RegistrationIsCutOff"},
}
