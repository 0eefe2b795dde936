package outbox

import "fmt"

// Reconciliation is what became of a call whose outcome the relay does not know.
type Reconciliation int

// Reconciliations. The zero value is none of them and is treated as Unknown.
const (
	// Applied: the remote has applied the call.
	Applied Reconciliation = iota + 1
	// NotApplied: the remote has not applied the call, and no call is under way that it could still
	// apply. The relay sends the call again.
	NotApplied
	// Unknown: it is not known yet. The relay asks again later.
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
