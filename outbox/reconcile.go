package outbox

import "fmt"

// Reconciliation is what became of a call whose outcome the relay does not know.
type Reconciliation int

// Reconciliations. The zero value is none of them and is treated as Unknown.
const (
	// Applied: the remote has applied the call.
	Applied Reconciliation = iota + 1
	// NotApplied: it has not, and no call is under way that it could still apply. The call is sent again.
	NotApplied
	// Unknown: nobody can tell yet.
	Unknown
)

// String is the name in lower case.
func (r Reconciliation) String() string {
	switch r {
	case Applied:
		return "applied"
	case NotApplied:
		return "not applied"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("Reconciliation(%d)", int(r))
}
