package rfc

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// longest is more than any bound, and can be added to any time.
const longest = math.MaxInt32 * time.Second

// RetryAfter reads the header by which a server says when to ask again, in both forms (RFC 9110
// section 10.2.3): seconds, or a date, which is compared with the answer's own Date where it has
// one, so that clocks need not agree. Seconds may have a fraction, as some servers write them, and
// are rounded up. It is not ok if there is none that can be read.
func RetryAfter(h http.Header, now time.Time) (after time.Duration, ok bool) {
	v := strings.TrimSpace(h.Get("Retry-After"))
	whole, fraction, hasPoint := strings.Cut(v, ".")
	if hasPoint && (fraction == "" || strings.Trim(fraction, "0123456789") != "") {
		return 0, false
	}
	seconds, err := strconv.ParseUint(whole, 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) { // out of range: more than any bound
		if strings.Trim(fraction, "0") != "" {
			seconds++
		}
		return min(time.Duration(seconds)*time.Second, longest), true
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), longest), true
}
