package idempotency

// PurgeOperationsSQL is for tests.
const PurgeOperationsSQL = purgeOperationsSQL
