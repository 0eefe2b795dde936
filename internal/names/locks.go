package names

// These are the classes of advisory locks of two numbers: one for each thing that is locked, so
// that no feature waits for another one. The migrations have the same numbers; a test compares
// them. Locks of one number are hashes with a seed of their own (onlyonce.owner_lock) or of a text
// that says what they are of (cursor.LockReplaysSQL), and never meet those of two numbers.
const (
	// PlaceLocks: a place, by the hash of its name.
	PlaceLocks = "1869507688"
	// PurgeLocks: the one process that deletes settled rows.
	PurgeLocks = "1869507696"
	// StripeLocks: a stripe of ordering keys in the outbox.
	StripeLocks = "1869507705"
	// RequestLocks: a request in transactional mode, by its id.
	RequestLocks = "1869507706"
	// AppendLocks: a partition of the event log.
	AppendLocks = "1702260340"
	// MigrationLocks: the one process that migrates. It must not change: processes of two versions
	// take turns on it.
	MigrationLocks = "1869505381"
)
