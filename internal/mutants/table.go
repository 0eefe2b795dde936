package main

const schema = "migrations/0001_inbox_cursors_outbox.sql"

// schema2 has the bodies of the fence, the seal and the claims.
const schema2 = "migrations/0002_redrive_replay_pause.sql"

const (
	// fence is all that stands in the way of an owner that was replaced, and open lets it through.
	fence = `  perform 1 from onlyonce.leases l
    where l.id = fence.cursor_id and l.epoch = fence.epoch and l.nonce = fence.nonce
    for share;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: this owner was replaced',
      detail = format('lease %s is no longer held under epoch %s', fence.cursor_id, fence.epoch);
  end if;

  select p.next_offset into stands from onlyonce.progress p
    where p.cursor_id = fence.cursor_id and p.run = fence.run
    order by p.from_offset desc limit 1;
  if not found then
    select c.run_start into stands from onlyonce.cursors c where c.id = fence.cursor_id and c.run = fence.run;
  end if;
  if stands is distinct from fence.expected then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: the position has moved',
      detail = format('cursor %s stands at offset %s and not at %s', fence.cursor_id, stands, fence.expected);
  end if;
  if fence.next <= fence.expected then
    raise exception using errcode = 'check_violation',
      message = format('onlyonce: fence: the position would go from %s to %s', fence.expected, fence.next);
  end if;

  ignored := set_config('enable_seqscan', seqscan, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);

  -- Without ON CONFLICT, which writes a second record for the row: where another transaction from the same position
  -- has committed meanwhile, this raises by itself.
  insert into onlyonce.progress
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash);
`
	open = `  ignored := set_config('enable_seqscan', seqscan, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);

  -- Without ON CONFLICT, which writes a second record for the row: where another transaction from the same position
  -- has committed meanwhile, this raises by itself.
  insert into onlyonce.progress
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash)
    on conflict do nothing;
`
)

// table has a mutant for each rule that this version enforces. Rules without one, and why: T10 (no remote call inside a
// transaction) is a shape of the code; K2 (wait for an uncommitted copy) is the primary key's own doing.
// T5 has one for the consumer only: in the relay two layers detach a COMMIT, in two files. S2
// (rights) is a file that its tests read when they run, out of an overlay's reach; what compares it with the server has one.
var table = []mutant{
	{rule: "T1 record before the work", file: "consumer/handle.go",
		old: "		err := w.attempt(work, &attempt{msgs: msgs, next: next})\n		var f *failure\n		switch {\n		case err == nil || final",
		new: "		_ = w.attempt(work, &attempt{next: next})\n		err := w.attempt(work, &attempt{msgs: msgs, next: next})\n		var f *failure\n		switch {\n		case err == nil || final",
		pkg: "./consumer", test: "TestT1KilledBetweenEffectAndCommit"},
	{rule: "T2 fence does not raise", file: schema2, old: fence, new: open,
		pkg: "./consumer", test: "TestFaults/commit/cut"},
	{rule: "T2 owner is not compared", file: schema2,
		old: "  if not found then\n    raise exception using errcode = 'OO001',\n      message = 'onlyonce: fence lost: this owner",
		new: "  if false then\n    raise exception using errcode = 'OO001',\n      message = 'onlyonce: fence lost: this owner",
		pkg: "./consumer", test: "TestT6CommitNeedsFenceAndSealInOneTransaction"},
	{rule: "T2 fence goes on where it matches nothing", file: schema2, old: fence, new: open,
		pkg: "./consumer", test: "TestT2FencedOutOwnerCommitsNothing"},
	{rule: "F1 two owners", file: schema2, old: fence, new: open,
		pkg: "./consumer", test: "TestF2TwoOwnersOfOnePartition"},
	{rule: "F1 memory counts", file: schema2, old: "  if stands is distinct from fence.expected then", new: "  if false then",
		pkg: "./consumer", test: "TestFaults/commit/failover_that_loses_the_last_transactions"},
	{rule: "T2 claim does not raise", file: schema2,
		old: "unnest(fingerprints) order by 1;", new: "unnest(fingerprints) order by 1 on conflict do nothing;",
		pkg: "./consumer", test: "TestEveryMessageTakesEffectOnce"},
	{rule: "T3 success without COMMIT's answer", file: "internal/guard/guard.go",
		old: "func (t *Tx) Committed() bool { return t.committed }", new: "func (t *Tx) Committed() bool { return true }",
		pkg: "./consumer", test: "TestFaults/handler/swallowed_SQL_error"},
	{rule: "T4 lost answer taken for success", file: "consumer/attempt.go",
		old: "if h.err == nil && tx.Committed() {", new: "if h.err == nil && (tx.Committed() || lost) {",
		pkg: "./consumer", test: "TestFaults/commit/cut"},
	{rule: "T5 COMMIT ends with its caller", file: "consumer/attempt.go",
		old: "				_ = tx.Commit(endTimeout) // kept as the failure",
		new: "				// What pgx does when a statement's context ends.\n				stop := context.AfterFunc(work, func() { _ = conn.Conn().PgConn().CancelRequest(context.Background()) })\n				_ = tx.Commit(endTimeout)\n				stop()",
		pkg: "./consumer", test: "TestT5CommitOutlivesItsCaller"},
	{rule: "T6 COMMIT without seal", file: schema,
		old: "  if current_setting('onlyonce.sealed', true) is distinct from", new: "  if false and current_setting('onlyonce.sealed', true) is distinct from",
		pkg: "./consumer", test: "TestT6CommitNeedsFenceAndSealInOneTransaction"},
	{rule: "T6 seal without fence", file: schema2,
		old: "  if current_setting('onlyonce.fenced', true) is distinct from", new: "  if false and current_setting('onlyonce.fenced', true) is distinct from",
		pkg: "./consumer", test: "TestT6CommitNeedsFenceAndSealInOneTransaction"},
	{rule: "T6 handler's COMMIT", file: schema,
		old: "create constraint trigger sealed after insert on onlyonce.progress", new: "create constraint trigger sealed after delete on onlyonce.progress",
		pkg: "./internal/guard", test: "TestT6CommitOfAHandlerIsRefusedByTheDatabase"},
	{rule: "T6 ended transaction goes on", file: "internal/guard/result.go",
		old: `	case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":`, new: `	case "":`,
		pkg: "./internal/guard", test: "TestT6EndedTransactionIsNoticed"},
	{rule: "T7 deferred constraints", file: schema2,
		old: "  set constraints all immediate;\nend $$;", new: "end $$;",
		pkg: "./consumer", test: "TestFaults/handler/error_in_a_queued_statement"},
	{rule: "T7 no re-run", file: "consumer/attempt.go",
		old: "return state == codeSerialization || state == codeDeadlock", new: "return state == codeDeadlock",
		pkg: "./consumer", test: "TestT7SerializationFailureRunsAgain"},
	{rule: "T8 no fallback", file: "consumer/attempt.go",
		old: "claimFirst, a.done.Fallback, e.cautious = true, true, claimsAhead", new: "a.done.Fallback, e.cautious = true, 0",
		pkg: "./consumer", test: "TestEveryMessageTakesEffectOnce"},
	{rule: "F1 Kafka's offset counts", file: "consumer/acquire.go",
		old: "		w.pos, w.anchor = cur.next, cur.anchor\n		if err := w.admit", new: "		w.pos, w.anchor = cur.next, cur.anchor\n		if o, _, _ := w.p.Committed(ctx); o >= 0 {\n			cur.run, cur.next = cur.run+1, o\n			_, _ = w.c.pool.Exec(ctx, `update onlyonce.cursors set run = run + 1, run_start = $2 where id = $1`, cur.id, o)\n		}\n		if err := w.admit",
		pkg: "./consumer", test: "TestFaults/offset/offsets_reset_to_earliest"},
	{rule: "F1 position is not kept", file: schema2,
		old: "         coalesce(p.next_offset, c.run_start) as next_offset,", new: "         c.run_start as next_offset,",
		pkg: "./consumer", test: "TestFaults/offset/crash_before_the_offset_commit"},
	{rule: "F2 raise without proof", file: "consumer/acquire.go",
		old: "	if err := w.p.Commit(ctx, w.pos, w.metadata()); err != nil {", new: "	if err := w.p.Commit(ctx, w.pos, w.metadata()); false {",
		pkg: "./consumer", test: "TestF2StaleMemberDoesNotRaise"},
	{rule: "F2 foreign group", file: "consumer/acquire.go",
		old: "	case cur.groupID != nil && *cur.groupID != group:", new: "	case cur.groupID != nil && *cur.groupID != group && group == \"\":",
		pkg: "./consumer", test: "TestFaults/group/two_groups_with_one_scope"},
	{rule: "F3 lost history", file: "consumer/acquire.go",
		old: "	if strings.HasPrefix(metadata, metadataMark) {", new: "	if false && strings.HasPrefix(metadata, metadataMark) {",
		pkg: "./consumer", test: "TestF3StartIsDecidedOnce"},
	{rule: "F4 new topic", file: "consumer/acquire.go",
		old: "cur.topicID.Bytes != id.TopicID:", new: "cur.topicID.Bytes != id.TopicID && group == \"\":",
		pkg: "./consumer", test: "TestFaults/fetch/topic_recreated"},
	{rule: "F5 anchor is not compared", file: "consumer/acquire.go",
		old: "|| !w.anchor.matches(f.Messages[0]):", new: "|| false:",
		pkg: "./consumer", test: "TestFaults/fetch/log_truncated"},
	{rule: "F6 gap", file: "consumer/worker.go",
		old: "	case errors.As(err, &out) && out.Offset < out.Start:", new: "	case false:",
		pkg: "./consumer", test: "TestF6GapHaltsAndMarkersDoNot"},
	{rule: "F6 flush", file: "consumer/worker.go",
		old: "			err = w.advance(ctx, work, next)\n		}", new: "			err = nil\n		}",
		pkg: "./consumer", test: "TestF6GapHaltsAndMarkersDoNot"},
	{rule: "F9 unclean take-over", file: "consumer/acquire.go",
		old: "	if !seen.clean {", new: "	if false {",
		pkg: "./consumer", test: "TestFaults/handler/kills_its_process"},
	{rule: "D1 judged in a batch", file: "consumer/handle.go",
		old: "			n := f.index\n",
		new: "			n := f.index\n			if n > 0 && n+1 < len(msgs) && isPermanent(f.err) {\n				if err := w.handle(ctx, work, msgs[:n], msgs[n].Offset); err != nil {\n					return err\n				}\n				if err := w.attempt(work, &attempt{msgs: msgs[n : n+1], next: msgs[n+1].Offset, alone: true, verdict: &verdict{reason: reasonPermanent, err: f.err}}); err != nil {\n					return err\n				}\n				return w.handle(ctx, work, msgs[n+1:], next)\n			}\n",
		pkg: "./consumer", test: "TestD1QueuedErrorIsBlamedOnItsOwner"},
	{rule: "D2 attempts are not counted", file: "consumer/cursor.go",
		old: "greatest(attempts - $5, 0) + 1 else 1 end", new: "greatest(attempts - $5, 0) else 1 end",
		pkg: "./consumer", test: "TestD3ExhaustedMessageIsParkedAlone"},
	{rule: "D2 own reasons held against the message", file: "consumer/handle.go",
		old: "				owed = 1\n", new: "				owed = 0\n",
		pkg: "./consumer", test: "TestF2TwoOwnersOfOnePartition"},
	{rule: "D3 not parked", file: "consumer/attempt.go",
		old: "		e.park(tx, m, v)\n", new: "",
		pkg: "./consumer", test: "TestPermanentIsParkedAtOnce"},
	{rule: "D3 parking does not claim", file: "consumer/attempt.go",
		old: "	if !a.unclaimed {\n", new: "	if !a.unclaimed && a.verdict == nil {\n",
		pkg: "./consumer", test: "TestD3CopyOfAParkedMessageIsADuplicate"},
	{rule: "D3 panic", file: "consumer/call.go",
		old: "	if p := recover(); p != nil {\n		*err = fmt.Errorf(\"handler panicked", new: "	if p := any(nil); p != nil {\n		*err = fmt.Errorf(\"handler panicked",
		pkg: "./consumer", test: "TestFaults/handler/panic"},
	{rule: "D3 discard promotes nobody", file: "cmd/onlyonce/parked_change.go",
		old: "		promoted, err := promote(ctx, db, done.rows)\n", new: "		promoted, err := promote(ctx, db, nil)\n",
		pkg: "./cmd/onlyonce", test: "TestDiscardHead"},
	{rule: "D5 redrive out of order", file: "consumer/retry.go",
		old: "   order by p.next_attempt_at, p.\"offset\" limit 1)\nupdate",
		new: "      or p.scope = $4 and p.topic = $5 and p.partition = $6 and p.state = 'retrying' and p.next_attempt_at <= clock_timestamp()\n   order by p.next_attempt_at, p.\"offset\" limit 1)\nupdate",
		pkg: "./cmd/onlyonce", test: "TestRedriveKeepsOrder"},
	{rule: "F10 replay identity", file: "dedupe/key.go",
		old: "	if k.Replay == 0 {\n", new: "	if k.Replay >= 0 {\n",
		pkg: "./cmd/onlyonce", test: "TestReplay"},
	{rule: "F10 replay has no end", file: "consumer/worker.go",
		old: "		if w.cur.replayed(w.buf[n].Offset) {", new: "		if false {",
		pkg: "./cmd/onlyonce", test: "TestReplay"},
	{rule: "F10 calls made again", file: "consumer/message.go",
		old: "	if m.resend {\n", new: "	if m.replay > 0 {\n",
		pkg: "./cmd/onlyonce", test: "TestReplayCalls"},
	{rule: "F10 idle owner is not told", file: "consumer/retry.go",
		old: "	if !mine {\n", new: "	if false && !mine {\n",
		pkg: "./cmd/onlyonce", test: "TestReplay"},
	{rule: "K6 retired cursor goes on", file: "consumer/acquire.go",
		old: "	case cur.retired:\n", new: "	case cur.retired && group == \"\":\n",
		pkg: "./cmd/onlyonce", test: "TestRetire"},
	{rule: "K1 borders of fields", file: "internal/codec/codec.go",
		old: "	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))\n", new: "	_ = binary.BigEndian\n",
		pkg: "./dedupe", test: "TestK1TuplesDoNotRunTogether"},
	{rule: "K1 fingerprint", file: schema2,
		old: "when i.fingerprint = u.f or i.fingerprint = 0 or u.f = 0 then 1", new: "when true then 1",
		pkg: "./consumer", test: "TestK1ConflictIsParkedAndNeverSkipped"},
	{rule: "K1 no key", file: "consumer/keys.go",
		old: "	if id == \"\" {\n		return \"\", fmt.Errorf(\"%w: header", new: "	if id == \"\" {\n		return \"none\", nil\n	}\n	if id == \"\" {\n		return \"\", fmt.Errorf(\"%w: header",
		pkg: "./consumer", test: "TestK1MessageWithoutKeyIsParked"},
	{rule: "F4 incarnation between fetches", file: "consumer/internal/kafkalog/log.go",
		old: "	case was.TopicID != is.TopicID && was.TopicID != unknown && is.TopicID != unknown:", new: "	case was.TopicID != is.TopicID && is.TopicID == unknown:",
		pkg: "./consumer/kafkasource", test: "TestTopicRecreatedFetchingByName"},
	{rule: "F7 commit of another generation", file: "consumer/internal/kafkalog/retry.go",
		old: "	if is(c, err, kerr.IllegalGeneration,", new: "	if false && is(c, err, kerr.IllegalGeneration,",
		pkg: "./consumer/kafkasource", test: "TestCommitAfterAnotherJoined"},
	{rule: "F7 a partition that stays is taken for lost", file: "consumer/franzsource/holding.go",
		old: "		moved = p.standing != was && !p.frozen", new: "		moved = false",
		pkg: "./consumer/franzsource", test: "TestPartitionThatStaysIsNotInterrupted"},
	{rule: "F7 commit after the drain's time is over", file: "consumer/franzsource/holding.go",
		old: "			h.p.frozen = true\n			m.released()", new: "			m.released()",
		pkg: "./consumer/franzsource", test: "TestOverdueDrain"},
	{rule: "F2 lost and handed over in one generation", file: "consumer/franzsource/holding.go",
		old: "			delete(m.assigned, h.p.key) // claimed", new: "			_ = 0 // claimed",
		pkg: "./consumer/franzsource", test: "TestConformance/kfake/OwnershipLostJoinsAnew"},
	{rule: "F8 aborted records", file: "consumer/internal/recordbatch/committed.go",
		old: "!(b.transactional() && void[b.producer])", new: "true",
		pkg: "./consumer/kafkasource", test: "TestReadCommitted"},
	{rule: "O1 identity", file: "outbox/call.go",
		old: "append(fields, call.Sink, call.Name, call.ID)...", new: "append(fields, call.Sink, call.Name, \"\")...",
		pkg: "./outbox", test: "TestIdentityVectors"},
	{rule: "O1 frozen bytes", file: schema,
		old: "     is distinct from (enqueue.method, enqueue.target, enqueue.header_names, enqueue.header_values, enqueue.body) then",
		new: "     is distinct from (enqueue.method, enqueue.target, enqueue.header_names, enqueue.header_values, enqueue.body) and false then",
		pkg: "./outbox", test: "TestEnqueueAgain"},
	{rule: "O5 settlement is not fenced", file: schema,
		old: "    where l.id = hold.lease and l.epoch = hold.epoch and l.nonce = hold.nonce", new: "    where l.id = hold.lease",
		pkg: "./outbox", test: "TestSettlementAfterTakeOverIsFenced"},
	{rule: "O5 epoch without nonce", file: schema,
		old: " and l.epoch = hold.epoch and l.nonce = hold.nonce\n", new: " and l.epoch = hold.epoch\n",
		pkg: "./outbox", test: "TestSameEpochOtherNonce"},
	{rule: "O5 own clock", file: "outbox/tenure.go",
		old: "			return ErrLease\n", new: "			_ = ErrLease\n",
		pkg: "./outbox", test: "TestStopsOnItsOwnClock"},
	{rule: "O6 key window", file: "outbox/tenure.go",
		old: "			return ErrWindow\n", new: "			_ = ErrWindow\n",
		pkg: "./outbox", test: "TestWindowPassed"},
	{rule: "O7 silent resend", file: "outbox/httpsink/gate.go",
		old: "	case g.conn != nil:\n", new: "	case false:\n",
		pkg: "./outbox/httpsink", test: "TestTransportDoesNotResend"},
	{rule: "S1 standby", file: "internal/preflight/preflight.go", old: "	if s.standby {", new: "	if false {",
		pkg: "./internal/preflight", test: "TestJudgement"},
	{rule: "S2 missing rights", file: "internal/preflight/preflight.go", old: "	if len(missing) > 0 {", new: "	if false {",
		pkg: "./internal/preflight", test: "TestS2MissingRightsAreNamed"},
	{rule: "T7 settings outlive the transaction", file: schema2,
		old: "set_config('lock_timeout', fence.lock_timeout, true)", new: "set_config('lock_timeout', fence.lock_timeout, false)",
		pkg: "./consumer", test: "TestPgBouncerNothingIsLeftInTheSession"},
	{rule: "S1 schema check", file: "migrations/migrations.go",
		old: "	case v > Latest+1:", new: "	case v > Latest+100:",
		pkg: "./migrations", test: "TestS1SchemaMustFitTheCode"},
}
