package idempotency

// PurgeOperationsSQL is for tests.
const PurgeOperationsSQL = purgeOperationsSQL

// SetPurgeBatch sets how many records one statement deletes.
func (l *Layer) SetPurgeBatch(n int) { l.portions = newPortions(n) }
