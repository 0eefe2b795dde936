package main

// slotRules are mutants of several transactions of a partition at once: rules C. L1 to L10 are the
// interleavings of docs/rules.
var slotRules = []mutant{
	{rule: "C1 offset in two transactions (L1)", in: schema, decl: "table onlyonce.done",
		old: `null, primary key (cursor_id, run, "offset")`, new: "null", pkg: "consumer", test: "TestC1OneOffsetTwoTransactions"},
	{rule: "T6 slot without seal", in: schema, decl: "trigger sealed on onlyonce.done",
		old: "insert on onlyonce.done", new: "delete on onlyonce.done", pkg: "consumer", test: "TestT6SlotNeedsTheSeal"},
	{rule: "C2 predecessors are not looked for (L3)", in: schema, decl: "function onlyonce.fence_slot",
		old: "a.o >= stands and d.found is null", new: "false", pkg: "consumer", test: "TestC2FenceSlotRaises"},
	{rule: "C2 predecessors are not sent (L3)", in: "consumer", decl: "(*slotFence).begin",
		old: "e.After >= t.Low && !inside[e.After]", new: "e.After >= t.Low && !inside[e.After] && false", test: "TestC2LostPredecessor"},
	{rule: "C2 key in two hands (L6)", in: "consumer/internal/window", decl: "(*Window).Take",
		old: "k.task != nil && k.task != t", new: "k.task != nil && k.task != t && false", pkg: "consumer", test: "TestC2OneTransactionAtATimeForAKey"},
	{rule: "C3 owner of a slot is not compared (L2)", in: schema, decl: "function onlyonce.enter",
		old: enterOwner, new: "l.nonce is not null", pkg: "consumer", test: "TestC3TakeOverWaitsForSlots"},
	{rule: "C3 take-over does not wait for slots (L2)", in: schema, decl: "function onlyonce.raise_epoch",
		old: "perform pg_advisory_xact_lock(onlyonce.owner_lock(l.id))", new: "perform 1", pkg: "consumer", test: "TestC3TakeOverWaitsForSlots"},
	{rule: "C3 lock is not shared (L2)", in: schema, decl: "function onlyonce.enter",
		old: enterShared, new: "", pkg: "consumer", test: "TestC3TakeOverWaitsForSlots"},
	{rule: "C3 locked and read in one statement (L2)", in: schema, decl: "function onlyonce.enter",
		old: enterShared + ` else perform 1 from onlyonce.leases l where l.id = enter.cursor_id for share; end if;
  select coalesce((select p.next_offset from onlyonce.progress p where p.cursor_id = l.id and p.run = enter.run order by p.from_offset desc limit 1),
                  (select c.run_start from onlyonce.cursors c where c.id = l.id and c.run = enter.run))
    into stands
    from onlyonce.leases l where`,
		new: `else perform 1 from onlyonce.leases l where l.id = enter.cursor_id for share; end if;
  select coalesce((select p.next_offset from onlyonce.progress p where p.cursor_id = l.id and p.run = enter.run order by p.from_offset desc limit 1),
                  (select c.run_start from onlyonce.cursors c where c.id = l.id and c.run = enter.run))
    into stands
    from onlyonce.leases l where
    pg_advisory_xact_lock_shared(onlyonce.owner_lock(enter.cursor_id))::text = '' and`, pkg: "consumer", test: "TestC3SlotThatWaitsForATakeOver"},
	{rule: "C3 old snapshot, the row is not locked (L2)", in: schema, decl: "function onlyonce.enter",
		old: "perform 1 from onlyonce.leases l where l.id = enter.cursor_id for share;", new: enterShared, pkg: "consumer", test: "TestC3TakeOverWaitsForSlots"},
	{rule: "C3 operator does not wait (L2)", in: "ops", decl: "(*CursorName).lockLease",
		old: "cursor.LockOwnerSQL, ", new: "", pkg: "cmd/onlyonce", test: "TestAdoptWaitsForTheOwnersBatch"},
	{rule: "C4 memory moves the position (L3)", in: schema, decl: "function onlyonce.sweep",
		old: "covered is distinct from true", new: "false", pkg: "consumer", test: "TestC4LostTransactionAboveThePosition"},
	{rule: "C5 position is not compared (L4)", in: schema, decl: "function onlyonce.fence_slot",
		old: "or stands > (select min(u.o)", new: "or false and stands > (select min(u.o)", pkg: "consumer", test: "TestC2FenceSlotRaises"},
	{rule: "C5 pruning does not wait (L4)", in: "consumer", decl: "(*pruning).step",
		old: "p.waiting && slices.ContainsFunc", new: "false && slices.ContainsFunc", test: "TestC5LateSlotDoesNotCommit/repeatable"},
	{rule: "C5 pruning behind a failover (L4)", in: "consumer", decl: "pruneDoneSQL",
		old: "and p.next_offset >= $7", new: "", test: "TestC5PruningKeepsWhatIsAhead"},
	{rule: "C5 old rows in one statement", in: "consumer", decl: "(*ownership).deleteOld",
		old: "below.from, pruneRows)", new: "below.from, 1<<20)", test: "TestC5OldRowsInPortions"},
	{rule: "C5 owner without slots keeps their rows", in: "consumer", decl: "(*worker).workOnLog",
		old: "w.pruneOldDone(ctx, below)", new: "_ = below", test: "TestC7BackToOne"},
	{rule: "C5 idle partition keeps its rows", in: "consumer", decl: "(*slots).pruneIfDue",
		old: "!idle &&", new: "(idle || true) &&", test: "TestC5IdlePartitionKeepsNoRows"},
	{rule: "C6 work below a halt is left (L8)", in: "consumer", decl: "(*slots).slotReported",
		old: "min(s.below, halt.blockedAt)", new: "min(s.below, 0)", test: "TestC6HaltAtAMessage"},
	{rule: "C6 full window is not told (L8)", in: "consumer", decl: "(*slots).reportBlocked",
		old: "emit(cfg.Hooks.WindowFull,", new: "emit[MessageEvent](nil,", test: "TestC6WindowFull"},
	{rule: "C7 end of a replay forgets what is done (L9)", in: "consumer", decl: "(*positionFence).begin",
		old: "tx.Engine(stepFence, resumeDoneSQL, w.cur.id, w.cur.run, w.cur.replayResume)", new: "", test: "TestC7ReplayComesBack"},
	{rule: "C7 adopt forgets what is done (L9)", in: "ops", decl: "(*Cursor).keepsDoneFrom",
		old: "return &at", new: "return nil", pkg: "consumer", test: "TestC7AdoptKeepsWhatIsDone"},
	{rule: "C7 adopt keeps what is to be handled again (L9)", in: "ops", decl: "(*Cursor).keepsDoneFrom",
		old: "if at < c.stood() { return nil }", new: "", pkg: "consumer", test: "TestC7AdoptKeepsWhatIsDone"},
	{rule: "C7 counts of slots are forgotten", in: "consumer", decl: "countAttemptSQL",
		old: "greatest(a.attempts - $5::integer, 0) + 1", new: "1 + 0 * $5::integer", test: "TestC7AttemptsGoOnWithOne"},
	{rule: "C7 one transaction in an epoch of slots (L9)", in: "consumer", decl: "(*worker).acquire",
		old: "w.slotted != w.c.needsSlots(cur)", new: "false", test: "TestC7BackToOne"},
	{rule: "C8 records are not compared (L10)", in: "consumer", decl: "(*slots).add",
		old: "before && hash != storedHash(read.hash)", new: "before && hash != storedHash(read.hash) && false",
		test: "TestC8TruncatedAboveThePosition"},
}
