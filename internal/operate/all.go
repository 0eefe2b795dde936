package operate

import "slices"

// All returns the decisions, in the order in which help lists them.
func All() []*Decision {
	return []*Decision{
		adopt(), retire(), pauseCursor(), resumeCursor(), replay(),
		redrive(), discard(), eraseParked(),
		pauseSink(), resumeSink(), rate(), rebase(), eraseCall(),
		horizon(), class(), retention(), eraseEvents(),
		resolveRequest(), closeRequest(), eraseRequest(),
		leavePlace(), adoptPlace(),
	}
}

// Pages are the decisions that the console offers.
func Pages() []*Decision {
	return slices.DeleteFunc(All(), func(d *Decision) bool { return d.Page == "" })
}
