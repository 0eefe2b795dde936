package idempotency

import (
	"bytes"
	"slices"
	"strconv"
)

// decimal is a JSON number as its text has it.
type decimal struct {
	negative bool
	whole    []byte // digits in front of the point
	fraction []byte // digits behind it
	exponent []byte // digits after the e, with their sign; empty if there is none
}

// maxExponentDigits bounds an exponent, so that its sum with a body's length is an int64.
const maxExponentDigits = 18

// appendValue writes the number's value in the one form that all ways to write it share: the digits
// without zeros at either end, and the power of ten if it is not 0 (H7). It calculates with digits
// alone, because a float would make one number of two that differ in the twentieth digit. It
// returns false if the exponent has more than maxExponentDigits digits.
func (d decimal) appendValue(out []byte) ([]byte, bool) {
	power, ok := d.power()
	if !ok {
		return out, false
	}
	digits := bytes.TrimLeft(slices.Concat(d.whole, d.fraction), "0")
	if len(digits) == 0 {
		return append(out, '0'), true // -0 too
	}
	short := bytes.TrimRight(digits, "0")
	power += int64(len(digits) - len(short) - len(d.fraction))
	if d.negative {
		out = append(out, '-')
	}
	out = append(out, short...)
	if power != 0 {
		out = strconv.AppendInt(append(out, 'e'), power, 10)
	}
	return out, true
}

// power returns the exponent.
func (d decimal) power() (int64, bool) {
	if len(d.exponent) == 0 {
		return 0, true
	}
	digits := bytes.TrimLeft(bytes.TrimLeft(d.exponent, "+-"), "0")
	if len(digits) > maxExponentDigits {
		return 0, false
	}
	n, err := strconv.ParseInt(string(d.exponent), 10, 64)
	return n, err == nil
}
