package onlyoncetest_test

// Kinds of verdicts.
const (
	kindAnswersDiffer    = "answers differ"
	kindCalledOutside    = "called outside of the transaction"
	kindCallsDiffer      = "calls differ"
	kindEffectsDiffer    = "effects differ"
	kindExited           = "exited"
	kindNotDeterministic = "not deterministic"
	kindNotUsed          = "the process's pool was not used"
	kindParkedWrongly    = "parked although nothing was wrong"
	kindRemotesDiffer    = "effects at a remote differ"
	kindStuck            = "stuck"
	kindWrittenOutside   = "written outside of the transaction"
)
