package gate

// Key says whose calls a limit is for: of the sink as a whole (the zero value), of a tenant, of
// each tenant, or of ordering keys with a prefix.
type Key struct {
	Tenant string
	Prefix string
	Each   bool
}

// All are the calls of the sink as a whole.
var All Key

// Role is what a call is for.
type Role int

// Roles.
const (
	Sending    Role = iota // a call to the remote
	Inquiry                // asks what became of a call: it counts for its tenant's slots, and for no rate
	Completion             // of a call that the remote has accepted: it counts for a slot alone
)

// Entrant is a call that wants to start: what it counts for.
type Entrant struct {
	Tenant string
	Prefix int64 // of its ordering key, in its stored form; 0: it has none
	Role   Role
}

// Verdict is whether a call may start.
type Verdict int

// Verdicts.
const (
	Admitted Verdict = iota
	SetAside         // it waits elsewhere, and holds up no others of its lane
	NotYet           // it waits where it is, for a moment
)
