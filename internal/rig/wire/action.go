package wire

// Action is what happens at a message; see the package's documentation.
type Action int

// Actions.
const (
	Pass Action = iota
	Unsent
	Unheard
	Held
	Dropped
	Stalled
	Mute
	Silent
	Late
)

var actionNames = [...]string{"pass", "unsent", "unheard", "held", "dropped", "stalled", "mute", "silent", "late"}

func (a Action) String() string { return actionNames[a] }
