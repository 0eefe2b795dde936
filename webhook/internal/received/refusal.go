package received

// Check is the check that refused a request.
type Check int

// The checks that the code of a sender's scheme makes.
const (
	IsMalformed Check = iota
	IsForged
	IsUnavailable
)

// Refusal is an error of a scheme's code. Package webhook makes its Error of it.
type Refusal struct {
	Check         Check
	Field, Reason string
	Cause         error
}

func (r *Refusal) Error() string { return r.Field + ": " + r.Reason }

// Malformed refuses a header or member that is not what the sender sends.
func Malformed(field, reason string) error {
	return &Refusal{Check: IsMalformed, Field: field, Reason: reason}
}

// Forged refuses a request because of its signature.
func Forged(field, reason string, cause error) error {
	return &Refusal{Check: IsForged, Field: field, Reason: reason, Cause: cause}
}

// Unavailable refuses a request because something could not be fetched.
func Unavailable(reason string, cause error) error {
	return &Refusal{Check: IsUnavailable, Reason: reason, Cause: cause}
}
