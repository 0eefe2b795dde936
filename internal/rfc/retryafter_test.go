package rfc_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rfc"
)

func TestRetryAfterForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"0":                                0,
		"5":                                5 * time.Second,
		" 5 ":                              5 * time.Second,
		"007":                              7 * time.Second,
		"2147483648":                       2147483647 * time.Second,
		"Sat, 21 Nov 2026 12:00:10 GMT":    10 * time.Second,
		"Saturday, 21-Nov-26 12:00:10 GMT": 10 * time.Second,
		"Sat Nov 21 12:00:10 2026":         10 * time.Second,
		"Sat, 21 Nov 2026 11:00:00 GMT":    0,
		"1.5":                              2 * time.Second,
		"2.0":                              2 * time.Second,
		"299.997":                          300 * time.Second,
		"0.001":                            time.Second,
		"99999999999999999999.5":           2147483647 * time.Second,
		".5":                               -1,
		"2.":                               -1,
		".":                                -1,
		"2e3":                              -1,
		"1.5.1":                            -1,
		"1.-5":                             -1,
		"-1.5":                             -1,
		"":                                 -1,
		"-1":                               -1,
		"+1":                               -1,
		"1s":                               -1,
		"soon":                             -1,
		"5, 6":                             -1,
		"0x10":                             -1,
		"1_0":                              -1,
		"Sat, 21 Nov 2026 12:00:10 CET":    -1,
	} {
		got, ok := rfc.RetryAfter(http.Header{"Retry-After": {value}}, now)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %v, %v; want %v", value, got, ok, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"5", "-1", "99999999999999999999999", "Sat, 21 Nov 2026 12:00:10 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", ""} {
		f.Add(s, "")
		f.Add(s, "Mon, 01 Jan 0001 00:00:00 GMT")
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value, date string) {
		h := http.Header{"Retry-After": {value}}
		if date != "" {
			h.Set("Date", date)
		}
		after, ok := rfc.RetryAfter(h, now)
		if after < 0 || !ok && after != 0 {
			t.Fatalf("%v, %v", after, ok)
		}
		n, err := strconv.Atoi(value)
		wrong := err == nil &&
			n >= 0 &&
			n < 1<<31 &&
			value[0] != '+' &&
			value[0] != '-' &&
			after != time.Duration(n)*time.Second
		if wrong {
			t.Fatalf("%v", after)
		}
	})
}
