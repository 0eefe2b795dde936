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
	{rule: "T2 kit: claim does not raise", file: schemaInbox,
		old: "  case cur\n    EACH_SLOT{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1;}", new: "  case cur\n    EACH_SLOT{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1 on conflict do nothing;}",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/ids", extra: allCrashes},
	{rule: "T2 kit: fence does not raise", file: schemaConsumer, old: fence, new: open,
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "F1 kit: memory counts", file: schemaConsumer, old: "  if stands is distinct from fence.expected then", new: "  if false then", pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "F1 kit: Kafka's offset counts", file: "consumer/acquire.go",
		old: "		w.setPosition(cur.position, cur.anchor, cur.leaderEpoch)\n		if err := w.checkCursor", new: "		if o, _, _ := w.p.Committed(ctx); o >= 0 {\n			cur.run, cur.position = cur.run+1, o\n			_, _ = w.c.pool.Exec(ctx, `update onlyonce.cursors set run = run + 1, run_start = $2 where id = $1`, cur.id, o)\n		}\n		w.setPosition(cur.position, cur.anchor, cur.leaderEpoch)\n		if err := w.checkCursor",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "F1 kit: position is not kept", file: schemaConsumer,
		old: "         coalesce(p.next_offset, c.run_start) as next_offset,", new: "         c.run_start as next_offset,",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "F1 kit: idle owner does not look", file: "consumer/retry.go",
		old: "	case !a.owned, a.position < a.knownPosition:", new: "	case !a.owned:",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "F1 kit: retry is not fenced", file: schemaConsumer, old: settle, new: settleOpen,
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/retries", extra: allCrashes},
	{rule: "T1 kit: record before the work", file: "consumer/batch.go",
		old: "		err = w.runLogAttempt(work, &attempt{msgs: msgs, next: next})\n",
		new: "		_ = w.runLogAttempt(work, &attempt{next: next})\n		err = w.runLogAttempt(work, &attempt{msgs: msgs, next: next})\n",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/positions", extra: allCrashes},
	{rule: "T8 kit: no fallback", file: "consumer/attempt.go",
		old: "first, a.done.Fallback, e.claimFirstLeft = caution{claim: true, order: true}, true, claimFirstRuns", new: "a.done.Fallback, e.claimFirstLeft = true, 0",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/ids", extra: allCrashes},
	{rule: "O1 kit: identity", file: "outbox/call.go",
		old: "append(fields, call.Sink, call.Name, call.ID)...", new: "append(fields, call.Sink, call.Name, \"\")...",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/ids", extra: allCrashes},
	{rule: "O2 kit: pass of a relay that died", file: "outbox/pass.go",
		old: "	if o.reader.cursor.unread {\n", new: "	if false {\n",
		pkg: "./onlyoncetest", test: "TestSoundProgramWithRemote/relay"},
	{rule: "H17 kit: unknown COMMIT as done", file: "idempotency/transactional.go",
		old: "\tcase lost:\n\t\treturn run.resolveCommit(rep, sent, err)\n", new: "\tcase lost:\n\t\t_ = sent\n\t\treturn finalOutcome(rep)\n",
		pkg: "./onlyoncetest", test: "TestSoundProgramAtEveryPoint/http", extra: allCrashes},
	{rule: "H18 kit: key of a step", file: "idempotency/step.go",
		old: "req.scope.Tenant, req.subject.Scope, key, name)", new: "req.scope.Tenant, req.subject.Scope, key, name, req.token.String())",
		pkg: "./onlyoncetest", test: "TestSoundProgramWithRemote/step"},
	// Faults of a user's own, in the examples: the tests that stand there find them.
	{rule: "T1 kit: payments-api writes past the transaction", file: "examples/payments-api/charges.go",
		old: "	c, err := scanCharge(tx.QueryRow(r.Context(), insertChargeSQL,", new: "	c, err := scanCharge(a.pool.QueryRow(r.Context(), insertChargeSQL,",
		pkg: "./examples/payments-api", test: "TestChargesOnce"},
	{rule: "T1 kit: webhook-ingest writes past the transaction", file: "examples/webhook-ingest/ingest.go",
		old: "	tx.Queue(`insert into webhook_ingest_effects", new: "	_, _ = in.pool.Exec(context.Background(), `insert into webhook_ingest_effects",
		pkg: "./examples/webhook-ingest", test: "TestEventsOnce"},
	// The kit itself: a part that has not begun yet is waited for.
	{rule: "kit: relay is not waited for", file: "onlyoncetest/settled.go",
		old: "		if waits {", new: "		if waits && false {",
		pkg: "./onlyoncetest", test: "TestLatePartsAreAwaited/relay"},
	{rule: "kit: consumer of events is not waited for", file: "onlyoncetest/settled.go",
		old: "err != nil || topic == nil {", new: "err != nil || topic == nil || *topic != \"\" {",
		pkg: "./onlyoncetest", test: "TestLatePartsAreAwaited/consumer_of_events"},
}
