// Package outcome decides what is known of a request after several attempts under one key. The HTTP
// client and the outbox ask it after each answer: what one attempt has shown is the caller's to
// classify, what all together have shown is decided here. It also reads what the project's own HTTP
// layer says of an answer beside its status.
package outcome

// Applied is whether the remote has applied an attempt.
type Applied int

// What is known of an attempt. The zero value is the careful one.
const (
	MayBeApplied Applied = iota
	WasApplied
	NotApplied
)

// Answer is what one attempt has shown.
type Answer struct {
	Applied  Applied
	OfTheKey bool // NotApplied holds for all attempts under the key: the remote, which remembers it, has said so
	Again    bool // another attempt under the key is safe, and may end in another way
}

// Next is what becomes of a request after an attempt.
type Next int

// What becomes of it.
const (
	Accepted Next = iota + 1
	SendAgain
	Refused // the attempt was refused; whether an earlier one was applied, only open says
	Ask     // it may be applied, and another attempt may apply it again
)

// After returns what becomes of a request after an attempt. open is whether the remote may have
// applied it: by an attempt before, and in the result by any (O6).
//
// An attempt that may have been applied opens the request. It stays open whatever answers come
// after it, because a gateway that refuses an attempt knows nothing of those before. Only an
// acceptance, or an answer that is about the key, closes it. (A person may, too.)
func After(open bool, a Answer) (next Next, stillOpen bool) {
	stillOpen = (open || a.Applied == MayBeApplied) && !a.OfTheKey
	switch {
	case a.Applied == WasApplied:
		return Accepted, false
	case a.Again:
		return SendAgain, stillOpen
	case a.Applied == MayBeApplied:
		return Ask, true
	}
	return Refused, stillOpen
}
