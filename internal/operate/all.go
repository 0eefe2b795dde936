package operate

// All returns the decisions, in the order in which help lists them.
func All() []*Decision {
	return []*Decision{
		retire(), pauseCursor(), resumeCursor(), replay(),
		Redrive(), Discard(),
		pauseSink(), resumeSink(), rate(), rebase(), eraseCall(),
		horizon(), class(), eraseEvents(),
		resolveRequest(), closeRequest(), eraseRequest(),
	}
}
