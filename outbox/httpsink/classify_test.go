package httpsink

import (
	"net/http"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rfc"
	"github.com/onlyonce/onlyonce/outbox"
)

// Both forms of Retry-After are read. A date counts from the answer's own Date header if it has
// one.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		value, date string
		want        time.Duration
	}{
		"none":                {"", "", 0},
		"seconds":             {"120", "", 2 * time.Minute},
		"seconds, spaces":     {" 120 ", "", 2 * time.Minute},
		"zero":                {"0", "", 0},
		"negative":            {"-5", "", 0},
		"a fraction":          {"1.5", "", 2 * time.Second},
		"beyond an int":       {"99999999999999999999", "", (1<<31 - 1) * time.Second},
		"a date":              {"Sat, 21 Nov 2026 12:00:30 GMT", "", 30 * time.Second},
		"a date of RFC 850":   {"Saturday, 21-Nov-26 12:00:30 GMT", "", 30 * time.Second},
		"a date of asctime":   {"Sat Nov 21 12:00:30 2026", "", 30 * time.Second},
		"a date in the past":  {"Sat, 21 Nov 2026 11:00:00 GMT", "", 0},
		"clocks an hour off":  {"Sat, 21 Nov 2026 13:00:30 GMT", "Sat, 21 Nov 2026 13:00:00 GMT", 30 * time.Second},
		"a Date that is none": {"Sat, 21 Nov 2026 12:00:30 GMT", "soon", 30 * time.Second},
		"words":               {"soon", "", 0},
	} {
		if got, _ := rfc.RetryAfter(http.Header{"Retry-After": {c.value}, "Date": {c.date}}, now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Retry-After is used only if the call is tried again.
func TestRetryAfterIsForRetries(t *testing.T) {
	s := &Sink{}
	for status, want := range map[int]time.Duration{
		200: 0,
		202: 0,
		301: 0,
		400: 0,
		408: time.Minute,
		409: time.Minute,
		425: time.Minute,
		429: time.Minute,
		503: time.Minute,
	} {
		r := s.classify(Answer{Status: status, Header: http.Header{"Retry-After": {"60"}}}, "")
		if r.RetryAfter != want || (r.Outcome == outbox.Retry || r.Outcome == outbox.Postponed) != (want > 0) {
			t.Errorf("%d: %+v, want %v", status, r, want)
		}
	}
}

// Retry-After of 503 is about the remote, that of 429 about who calls.
func TestO14WhatRetryAfterHolds(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]outbox.RetryScope{
		503: outbox.RetryAuto,
		429: outbox.RetryTenant,
		500: outbox.RetryCall,
		409: outbox.RetryCall,
		200: outbox.RetryCall,
	} {
		s := &Sink{}
		if got := s.classify(Answer{Status: status, Header: http.Header{"Retry-After": {"60"}}}, "acme").RetryScope; got != want {
			t.Errorf("%d holds %d, want %d", status, got, want)
		}
	}
}
