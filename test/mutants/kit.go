package main

// allCrashes makes TestSoundProgramAtEveryPoint play each crash, and not one of three.
const allCrashes = "ONLYONCE_TEST_CRASHES=all"

// kitRules are rules that a user's test with onlyoncetest misses if they are taken out of the
// engine: a sound program must then have a verdict.
//
// Three rules are not among them, because no program can see the lack of them in its tables. If a
// lost answer is taken for success (T4), the position in the database brings the batch back (F1).
// If a batch handler sees copies (T1), the claim that raises rolls its work back. If parking does
// not claim (D3), the copy of a message that is still parked is found among the parked ones.
var kitRules = []mutant{
	{rule: "T2 kit: claim does not raise", in: schema, decl: "function onlyonce.claim_RING_fresh",
		old: "case cur EACH_SLOT{when SLOT then insert into onlyonce_segments.SEGMENT (key, fingerprint) " +
			"select unnest(keys), unnest(fingerprints) order by 1;}",
		new: "case cur EACH_SLOT{when SLOT then insert into onlyonce_segments.SEGMENT (key, fingerprint) " +
			"select unnest(keys), unnest(fingerprints) order by 1 on conflict do nothing;}",
		pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/ids", extra: allCrashes},
	{rule: "T2 kit: fence does not raise", in: schema, decl: "function onlyonce.fence",
		old: fenceLock, new: fenceOpen, pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{
		rule:  "F1 kit: memory counts",
		in:    schema,
		decl:  "function onlyonce.fence",
		old:   "stands is distinct from fence.expected",
		new:   "false",
		pkg:   "onlyoncetest",
		test:  "TestSoundProgramAtEveryPoint/positions",
		extra: allCrashes,
	},
	{rule: "F1 kit: Kafka's offset counts", in: "consumer", decl: "(*worker).acquire",
		old: "max(w.redoUntil, was)",
		new: "max(w.redoUntil, was) }; if o, _, _ := w.p.Committed(ctx); o >= 0 { cur.run, cur.position = " +
			"cur.run+1, o; _, _ = w.c.pool.Exec(ctx, `update onlyonce.cursors set run = run + 1, run_start = $2 where id = $1`, cur.id, o)",
		pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "F1 kit: position is not kept", in: schema, decl: "view onlyonce.positions",
		old: "coalesce(p.next_offset, c.run_start) as next_offset", new: "c.run_start as next_offset",
		pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{
		rule:  "F1 kit: idle owner does not look",
		in:    "consumer",
		decl:  "(*pollAnswer).decision",
		old:   ", a.position < a.knownPosition",
		new:   "",
		pkg:   "onlyoncetest",
		test:  "TestSoundProgramAtEveryPoint/positions",
		extra: allCrashes,
	},
	{rule: "F1 kit: retry is not fenced", in: schema, decl: "function onlyonce.settle",
		old: settleHold, new: settleOpen, pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/retries", extra: allCrashes},
	{rule: "T1 kit: record before the work", in: "consumer", decl: "(*applier).handleBatch",
		old: "if err != nil { return err }", new: "if err != nil { return err }; _ = ap.run(until.working, ap.plan(nil, next))",
		pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "T8 kit: no fallback", in: "consumer", decl: "(*engine).transact",
		old: "first = next", new: "_ = next",
		pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/ids", extra: allCrashes},
	{rule: "O1 kit: identity", in: "outbox", decl: "callKey",
		old: "call.Name, call.ID", new: `call.Name, ""`, pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/ids", extra: allCrashes},
	{rule: "H17 kit: unknown COMMIT as done", in: "idempotency", decl: "(*handlerRun).storeHeld",
		old: "return run.resolve(h, rep, sent, err)", new: "_ = sent; return finalOutcome(rep)",
		pkg: "onlyoncetest", test: "TestSoundProgramAtEveryPoint/http", extra: allCrashes},
	{rule: "H18 kit: key of a step", in: "idempotency", decl: "(*servedRequest).stepKey",
		old: "key, name", new: "key, name, req.token.String()", pkg: "onlyoncetest", test: "TestSoundProgramWithRemote/step"},
	{
		rule: "Q1 kit: acknowledged before COMMIT",
		in:   "queue",
		decl: "(*receiver).storeOnce",
		old:  "for part := range",
		new: "var early []*Delivery; for _, in := range all { early = append(early, in.delivery) }; _ = " +
			"r.broker.Ack(ctx, early); for part := range",
		pkg:  "onlyoncetest",
		test: "TestJudges/sound/messages_of_a_queue_in_order",
	},
	{
		rule: "Q2 kit: no claim",
		in:   "internal/intake",
		decl: "(*Store).fill",
		old:  "case Known: it.Outcome = Copied",
		new:  "case Known: err = s.take(ctx, tx, e)",
		pkg:  "onlyoncetest",
		test: "TestJudges/sound/messages_of_a_queue_in_order",
	},
	// Faults of a user's own, in the examples: the tests that stand there find them.
	{rule: "T1 kit: payments-api writes past the transaction", in: "examples/payments-api", decl: "(*API).charge",
		old: "tx.QueryRow", new: "a.pool.QueryRow", test: "TestChargesOnce"},
	{rule: "T1 kit: webhook-ingest writes past the transaction", in: "examples/webhook-ingest", decl: "(*ingest).handle",
		old: "tx.Queue(", new: "_, _ = in.pool.Exec(context.Background(),", test: "TestEventsOnce"},
	// The kit itself: what a verdict says.
	{rule: "kit: writes past the transaction head a verdict", in: "onlyoncetest", decl: "(*play).headed",
		old: "if i < 0", new: "if i >= -1", test: "TestJudges/faulty/queries_past_the_transaction"},
	{rule: "kit: the line that called a statement", in: "onlyoncetest", decl: "originOf",
		old: "o.outer = line", new: "_ = line", test: "TestJudges/faulty/queries_past_the_transaction"},
	{rule: "kit: order of calls", in: "onlyoncetest", decl: "otherOrder",
		old: "b[key][i] != line", new: "false", test: "TestJudges/faulty/order_of_calls"},
	{rule: "kit: batches of one", in: "onlyoncetest", decl: "singles",
		old: "if can.single", new: "if false", test: "TestJudges/faulty/state_of_a_session"},
	{rule: "kit: parts without a Logger", in: "internal/process", decl: "Logger",
		old: "return p.(*Process).Logger", new: "_ = p; return given", pkg: "onlyoncetest", test: "TestProgramWithoutLoggerIsQuiet"},
	{rule: "kit: queue's messages are not waited for", in: "onlyoncetest", decl: "(*play).acknowledged",
		old: "b.Left() > 0", new: "b == nil", test: "TestJudges/sound/messages_of_a_queue_in_order"},
	// The kit itself: a part that has not begun yet is waited for.
	{rule: "kit: relay is not waited for", in: "onlyoncetest", decl: "(*play).unbegun",
		old: "if waits {", new: "if waits && false {", test: "TestLatePartsAreAwaited/relay"},
	{
		rule: "kit: consumer of events is not waited for",
		in:   "onlyoncetest",
		decl: "(*play).unbegun",
		old:  "err != nil || topic == nil",
		new:  `err != nil || topic == nil || *topic != ""`,
		test: "TestLatePartsAreAwaited/consumer_of_events",
	},
	// The kit itself: what is compared.
	{rule: "kit: drawn by the words of a default", in: "onlyoncetest", decl: "columnsSQL",
		old:  "exists (select from drawn d where",
		new:  "exists (select from pg_attrdef d where pg_get_expr(d.adbin, d.adrelid) ~ 'now' and",
		test: "TestSoundAndFaultyPrograms/all/attempts_counted_in_memory"},
	{rule: "kit: links to drawn ids are left out", in: "onlyoncetest", decl: "(*relation).text",
		old: "depth < maxLinks", new: "false", test: "TestSoundAndFaultyPrograms/all/answers_to_a_random_comment"},
	{rule: "kit: a remote counts its ids", in: "onlyoncetest", decl: "(*Remote).take",
		old: "idOfEffect(e, m.made[id])", new: "len(m.effects)", test: "TestSoundAndFaultyPrograms/all/provider's_id_by_a_step"},
	{rule: "kit: a conflict in a clean run passes", in: "onlyoncetest", decl: "(*state).aside",
		old: "slices.Contains(allowed, reason)", new: "true", test: "TestSoundAndFaultyPrograms/all/queue,_id_of_the_order"},
	{rule: "kit: a fault is blamed if clean runs differ", in: "onlyoncetest", decl: "(*runner).unsteady",
		old: "len(found) == 0", new: "len(found) >= 0", test: "TestCleanRunsThatAgreeByChance"},
}
