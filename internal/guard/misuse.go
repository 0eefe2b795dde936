package guard

import "errors"

// Misuse is an error of a program that does what it must not do: another try makes the same error.
type Misuse string

func (m Misuse) Error() string { return string(m) }

// IsMisuse reports whether an error is one that another try makes again, whatever else changes
// (D1).
func IsMisuse(err error) bool {
	for _, one := range []error{ErrControl, ErrEnded, ErrRowsOpen, ErrOption, ErrSavepoints} {
		if errors.Is(err, one) {
			return true
		}
	}
	switch SQLState(err) {
	case "2D000", "OO002": // a COMMIT in a procedure; one that the seal has not allowed
		return true
	}
	var m Misuse
	return errors.As(err, &m)
}
